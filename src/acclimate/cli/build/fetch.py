"""`build domainbed`, `build geo-yfcc-released` and `build fetch`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.build.long_tail import GOES_ON, Out, Seed, ValShare, build, three_numbers
from acclimate.cli.output import Json, percent, progress_bar, say, say_json, say_table, stoppable
from acclimate.core.errors import ManifestError

if TYPE_CHECKING:
    from acclimate.build.domainbed.builder import FolderCheck
    from acclimate.build.fetch.images import FetchReport
    from acclimate.data.manifest import Manifest


@build.command(
    "domainbed",
    epilog="Example: acclimate build domainbed --dataset pacs data/PACS --out pacs.parquet",
)
def domainbed(
    root: Annotated[Path, typer.Argument(help="The folder that holds the domains.")],
    dataset: Annotated[
        str, typer.Option(help="vlcs, pacs, office-home, domainnet or terra-incognita.")
    ],
    out: Out,
    drop_list: Annotated[
        Path | None,
        typer.Option(help="Images to leave out, such as domain_net_duplicates.txt of DomainBed."),
    ] = None,
    only_expected: Annotated[
        bool,
        typer.Option("--only-expected", help="Leave out domains and classes that are extra."),
    ] = False,
    val_share: ValShare = 0.2,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """One of DomainBed's image folders, checked against what it should hold."""
    from acclimate.build.domainbed.builder import build_domainbed

    built = build_domainbed(
        dataset,
        root,
        out,
        drop_list=drop_list,
        only_expected=only_expected,
        val_share=val_share,
        seed=seed,
    )
    if json:
        say_json({**_facts(built.manifest, out), "check": built.check.as_dict()})
        return
    _show_check(built.check)
    _show_manifest(built.manifest, out)


@build.command(
    "geo-yfcc-released",
    epilog="Example: acclimate build geo-yfcc-released geoyfcc.pkl --labels in5k_map.json "
    "--out geo.parquet",
)
def geo_yfcc_released(
    file: Annotated[Path, typer.Argument(help="The authors' pickled table, unpacked.")],
    out: Out,
    labels: Annotated[
        Path | None,
        typer.Option(help="The authors' in5k_map.json. [default: classes are numbers]"),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the photos. [default: images beside OUT]")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Countries to train, validate and test on, by their ids.")
    ] = "40,7,15",
    val_share: Annotated[
        float, typer.Option(help="Share of a domain's training photos kept for validation.")
    ] = 0.2,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Geo-YFCC from the table that its authors released; the pickle is read, not run."""
    from acclimate.build.released.builder import ReleasedSettings, build_released

    settings = ReleasedSettings(split=three_numbers(split), val_share=val_share, seed=seed)
    built = build_released(file, out, settings, labels=labels, images=images)
    if json:
        say_json({**_facts(built.manifest, out), **built.as_dict()})
        return
    for what, counts in (("left out", built.lost), ("note", built.notes)):
        for reason, number in counts.items():
            say(f"{what}: {number} × {reason}")
    say(f"{built.photos} photos")
    _show_manifest(built.manifest, out)


@build.command(
    "fetch",
    epilog="Example: acclimate build fetch geo.parquet --root images --out geo-here.parquet",
)
def fetch(
    data: Annotated[Path, typer.Argument(help="A manifest with a column 'url'.")],
    root: Annotated[Path, typer.Option(help="Folder that the images are in, or go to.")],
    out: Annotated[
        Path | None, typer.Option(help="Write a manifest of the images that exist.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Images fetched at a time.")] = 16,
    per_host: Annotated[int, typer.Option(min=1, help="Connections to one host.")] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds for one attempt.")] = 20,
    retries: Annotated[int, typer.Option(help="Further attempts after a passing failure.")] = 3,
    max_bytes: Annotated[int, typer.Option(min=1, help="Largest image.")] = 64 << 20,
    check_only: Annotated[
        bool, typer.Option("--check-only", help="Look which images exist; fetch nothing.")
    ] = False,
    retry_dead: Annotated[
        bool, typer.Option("--retry-dead", help="Try links again that were found dead.")
    ] = False,
    private: Annotated[
        bool,
        typer.Option("--private", help="Also ask private addresses, such as a mirror of yours."),
    ] = False,
    json: Json = False,
) -> None:
    """Check the images of a manifest, fetch those that are missing, and say what is gone."""
    from acclimate.build.fetch.download import DownloadSettings
    from acclimate.build.fetch.images import FetchSettings, fetch_images
    from acclimate.data.manifest import Manifest

    if out is not None:
        _require_name(out)
    settings = FetchSettings(
        workers=workers,
        check_only=check_only,
        retry_dead=retry_dead,
        download=DownloadSettings(
            timeout=timeout,
            retries=retries,
            per_host=per_host,
            max_bytes=max_bytes,
            private=private,
        ),
    )
    with stoppable(GOES_ON), progress_bar() as watch:
        report = fetch_images(Manifest.open(data), root, settings, watch=watch)
    empty = len(report.manifest) == 0
    if out is not None and not empty:
        report.manifest.write(out)
    if json:
        say_json({**_facts(report.manifest, None if empty else out), **report.as_dict()})
    else:
        _show_losses(report)
        if out is not None and not empty:
            _show_manifest(report.manifest, out)
    if empty and (out is not None or not check_only):
        raise _nothing_left(report)


def _require_name(out: Path) -> None:
    """Refuses a name that could only be refused after the work."""
    if out.suffix.lower() != ".parquet":
        raise ManifestError(f"'{out.name}' is no name for a manifest; end it in .parquet")
    if out.is_dir():
        raise ManifestError(f"--out: '{out}' is a folder; name a file that ends in .parquet")


def _nothing_left(report: "FetchReport") -> ManifestError:
    reason, number = next(iter(report.reasons.items()), ("no rows", 0))
    return ManifestError(
        f"no image of {report.manifest.source} is there ({number} × {reason}); "
        "mend its URLs or --root, no manifest was written"
    )


def _facts(manifest: "Manifest", out: Path | None) -> dict[str, object]:
    return {
        "manifest": None if out is None else str(out),
        "rows": len(manifest),
        "domains": len(manifest.domains),
        "classes": len(manifest.classes),
        "digest": manifest.digest(),
    }


def _show_manifest(manifest: "Manifest", out: Path) -> None:
    say(
        f"{len(manifest)} rows, {len(manifest.domains)} domains, {len(manifest.classes)} classes "
        f"(digest {manifest.digest()[:12]})"
    )
    say(f"manifest: {out}")


def _show_check(check: "FolderCheck") -> None:
    say(f"{check.title}, nearest edition: {check.edition} ({check.expected} images)")
    say_table(
        ("domain", "folder", "images", "expected", "classes", "expected"),
        [
            (
                domain.domain,
                domain.folder or "–",
                str(domain.images),
                "–" if domain.expected is None else str(domain.expected),
                str(domain.classes),
                str(domain.expected_classes),
            )
            for domain in check.domains
        ],
    )
    differences = check.differences()
    for difference in differences:
        say(f"warning: {difference}")
    if not differences:
        say("as expected")


def _show_losses(report: "FetchReport") -> None:
    say_table(
        (
            "domain",
            "role",
            "images",
            "there",
            "fetched now",
            "missing",
            "dead",
            "failed",
            "lost %",
            "classes lost",
        ),
        [
            (
                loss.domain,
                loss.role or "–",
                str(loss.images),
                str(loss.there),
                str(loss.fetched),
                str(loss.missing),
                str(loss.dead),
                str(loss.failed),
                percent(loss.lost_share),
                str(loss.classes - loss.classes_left),
            )
            for loss in report.domains
        ],
    )
    for reason, number in report.reasons.items():
        say(f"gone: {number} × {reason}")
    if report.journal is not None:
        say(f"journal: {report.journal}")
