"""`build geo-yfcc`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.build.long_tail import GOES_ON, Out, build, three_numbers
from acclimate.cli.output import Json, progress_bar, say, say_json, say_table, stoppable

if TYPE_CHECKING:
    from acclimate.build.geo_yfcc.builder import GeoBuild


@build.command(
    "geo-yfcc",
    epilog="Example: acclimate build geo-yfcc --metadata yfcc100m_dataset-0.bz2 "
    "yfcc100m_dataset-1.bz2 --labels in5k_map.json --out geo.parquet",
)
def geo_yfcc(
    metadata: Annotated[
        list[Path],
        typer.Option(help="A metadata file of YFCC100M, plain, .bz2 or .gz; others may follow."),
    ],
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Further metadata files.", show_default=False),
    ] = None,
    *,
    labels: Annotated[
        Path, typer.Option(help="in5k_map.json, or a list of synsets, one on each line.")
    ],
    out: Out,
    polygons: Annotated[
        Path | None,
        typer.Option(help="GeoJSON of countries. [default: those of the extra 'geo']"),
    ] = None,
    country_property: Annotated[
        str | None, typer.Option(help="Property of the polygons that names their country.")
    ] = None,
    places: Annotated[
        Path | None, typer.Option(help="YFCC100M's places file, instead of polygons.")
    ] = None,
    min_countries: Annotated[
        int, typer.Option(help="Countries that a category must be found in.")
    ] = 5,
    min_images: Annotated[int, typer.Option(help="Photos that a country must have.")] = 10_000,
    max_images: Annotated[int, typer.Option(help="Photos sampled from a country.")] = 20_000,
    test_images: Annotated[int, typer.Option(help="Photos of a domain's test split.")] = 3_000,
    val_share: Annotated[
        float, typer.Option(help="Share of a domain's other photos kept for validation.")
    ] = 0.2,
    split: Annotated[
        str, typer.Option(help="Domains to train, validate and test on; in proportion.")
    ] = "40,7,15",
    plurals: Annotated[bool, typer.Option(help="Let regular plurals of a lemma match.")] = False,
    keep_ilsvrc12: Annotated[
        bool, typer.Option("--keep-ilsvrc12", help="Keep labels that are among ILSVRC12's 1,000.")
    ] = False,
    keep_damaged: Annotated[
        bool, typer.Option("--keep-damaged", help="Take what can be read of damaged files.")
    ] = False,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the photos. [default: images beside OUT]")
    ] = None,
    plots: Annotated[bool, typer.Option(help="Plot labels and domains beside OUT.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of samples, roles and splits.")] = 0,
    json: Json = False,
) -> None:
    """Geo-YFCC from YFCC100M's metadata: domains are countries, labels are tags."""
    from acclimate.build.geo_yfcc.builder import GeoSettings, GeoSources, build_geo_yfcc

    settings = GeoSettings(
        min_countries=min_countries,
        min_images=min_images,
        max_images=max_images,
        test_images=test_images,
        val_share=val_share,
        split=three_numbers(split),
        plurals=plurals,
        exclude_ilsvrc12=not keep_ilsvrc12,
        seed=seed,
    )
    sources = GeoSources(
        metadata=(*metadata, *(more or ())),
        labels=labels,
        polygons=polygons,
        country_property=country_property,
        places=places,
        keep_damaged=keep_damaged,
    )
    with stoppable(GOES_ON), progress_bar() as watch:
        built = build_geo_yfcc(sources, out, settings, images=images, workers=workers, watch=watch)
    _show(built, out, _plots(built, out) if plots else [], json=json)


def _plots(built: "GeoBuild", out: Path) -> list[str]:
    from acclimate.data.inspection import inspect
    from acclimate.report.label_plots import write_label_plots

    folder = out.with_suffix(".plots")
    paths = write_label_plots(inspect(built.manifest), built.manifest, folder)
    return [str(path) for path in paths]


def _show(built: "GeoBuild", out: Path, plots: list[str], *, json: bool) -> None:
    manifest, funnel = built.manifest, built.funnel
    reports = [str(path) for path in built.report]
    if json:
        say_json(
            {
                "manifest": str(out),
                "rows": len(manifest),
                "domains": len(manifest.domains),
                "classes": len(manifest.classes),
                "digest": manifest.digest(),
                "reports": reports,
                "plots": plots,
                "funnel": funnel.as_dict(),
            }
        )
        return
    rows = [(stage.lost_to, str(stage.lost), str(stage.left)) for stage in funnel.stages]
    say_table(("lost to", "lost", "left"), [("rows read", "–", str(funnel.rows)), *rows])
    say(
        f"{funnel.photos} photos, {len(manifest)} rows, {len(manifest.domains)} domains, "
        f"{len(manifest.classes)} classes (digest {manifest.digest()[:12]})"
    )
    for note in funnel.notes:
        say(f"note: {note}")
    for what, paths in (("manifest", [str(out)]), ("report", reports), ("plot", plots)):
        for path in paths:
            say(f"{what}: {path}")
