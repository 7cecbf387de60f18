"""`build folder`, `table`, `digits` and `long-tail`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.output import Json, say, say_json
from acclimate.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from acclimate.build.long_tail import LongTailSettings

build = typer.Typer(
    help="Make a manifest, the one table that everything reads.", no_args_is_help=True
)
app.add_typer(build, name="build")

GOES_ON = "stopped; the same command goes on"
Out = Annotated[Path, typer.Option(help="The manifest to write, ending in .parquet.")]


def _share(value: float) -> float:
    """Refuses what the library would, but in the words of the command line."""
    if not 0 <= value < 1:
        raise ConfigError(f"--val-share is {value}; give a share of at least 0 and less than 1")
    return value


ValShare = Annotated[
    float, typer.Option(callback=_share, help="Share of each domain kept for validation.")
]
Seed = Annotated[int, typer.Option(help="Seed of the splits.")]


@build.command("folder", epilog="Example: acclimate build folder PACS --out pacs.parquet")
def folder(
    root: Annotated[Path, typer.Argument(help="A domain/class/image tree.")],
    out: Out,
    val_share: ValShare = 0.2,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """From a tree of folders: domain/class/image."""
    from acclimate.build.folder import build_folder

    _show_manifest(build_folder(root, out, val_share=val_share, seed=seed), out, json=json)


@build.command("table", epilog="Example: acclimate build table photos.csv --out photos.parquet")
def table(
    file: Annotated[Path, typer.Argument(help="CSV, Parquet or JSON lines: image, label, domain.")],
    out: Out,
    root: Annotated[
        Path | None, typer.Option(help="Folder that image paths start from. [default: FILE's]")
    ] = None,
    val_share: ValShare = 0.2,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """From a table with columns image, label, domain and, if you have them, split and role."""
    from acclimate.data.manifest import Manifest

    manifest = Manifest.from_table(file, root=root, val_share=val_share, seed=seed)
    manifest.check()
    manifest.write(out)
    _show_manifest(manifest, out, json=json)


@build.command("digits", epilog="Example: acclimate build digits --out digits.parquet")
def digits(
    out: Out,
    train_domains: Annotated[int, typer.Option(min=2, help="Domains to train on.")] = 150,
    test_domains: Annotated[int, typer.Option(min=1, help="Unseen domains.")] = 20,
    noise: Annotated[float, typer.Option(min=0, help="Pixel noise; digits span 0 to 1.")] = 0.6,
    concentration: Annotated[
        float, typer.Option(min=0.01, help="Dirichlet parameter: less, more label shift.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of domains, images and splits.")] = 0,
    json: Json = False,
) -> None:
    """The embedded benchmark: real digits through many noisy sensors, images inside the table."""
    from acclimate.build.digits import DigitsSettings, build_digits

    settings = DigitsSettings(
        train_domains=train_domains,
        test_domains=test_domains,
        noise=noise,
        concentration=concentration,
        seed=seed,
    )
    manifest = build_digits(settings)
    manifest.write(out)
    _show_manifest(manifest, out, json=json)


@build.command(
    "long-tail",
    epilog="Example: acclimate build long-tail imagenet21k --preset lt-imagenet "
    "--only in5k_map.json --exclude-ilsvrc12 --out lt.parquet",
)
def long_tail(
    data: Annotated[
        Path,
        typer.Argument(
            help="A manifest, a table, or a folder: domain/class/image, or class/image as ImageNet."
        ),
    ],
    out: Out,
    preset: Annotated[
        str | None,
        typer.Option(help="lt-imagenet: the paper's numbers, 500 classes, pools as 350:50:300."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Classes to sample. [default: all]", show_default=False)
    ] = None,
    domains: Annotated[int, typer.Option(help="N, domains to train on.")] = 50,
    heads: Annotated[int, typer.Option(help="K, head classes of a domain.")] = 100,
    per_class: Annotated[int, typer.Option(help="A, training images of a head class.")] = 350,
    tail: Annotated[float, typer.Option(help="f, a tail class has this share of A.")] = 0.1,
    val_per_class: Annotated[int, typer.Option(help="A of validation splits and domains.")] = 50,
    test_per_class: Annotated[int, typer.Option(help="A of test splits and domains.")] = 300,
    val_domains: Annotated[int, typer.Option(help="Unseen domains to choose by.")] = 10,
    test_domains: Annotated[int, typer.Option(help="Unseen domains to score on.")] = 10,
    pools: Annotated[
        str,
        typer.Option(help="random: each class dealt out by the shares; splits: DATA's own."),
    ] = "random",
    val_share: Annotated[
        float | None,
        typer.Option(help="Share of a class's validation pool. [default: 0.1]", show_default=False),
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(help="Share of a class's test pool. [default: 0.2]", show_default=False),
    ] = None,
    constant_total: Annotated[
        int, typer.Option(help="Divide A so that the total is that of this many domains; 0: no.")
    ] = 0,
    only: Annotated[
        Path | None,
        typer.Option(help="A file of classes to sample from: one per line, or in5k_map.json."),
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option(help="A file of classes to leave out, in the same forms.")
    ] = None,
    exclude_ilsvrc12: Annotated[
        bool,
        typer.Option(
            "--exclude-ilsvrc12", help="Leave out ILSVRC12's classes; DATA's are synsets."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of classes, pools and domains.")] = 0,
    json: Json = False,
) -> None:
    """Domains with head and tail classes, sampled from any data, as LT-ImageNet was."""
    from acclimate.build.class_lists import not_in_data, open_pool
    from acclimate.build.geo_yfcc.labels import read_names
    from acclimate.build.long_tail import LongTailSettings, build_long_tail, facts

    default = _preset(preset)
    settings = LongTailSettings(
        classes=default.classes if classes is None else classes,
        val_share=default.val_share if val_share is None else val_share,
        test_share=default.test_share if test_share is None else test_share,
        only=() if only is None else read_names(only),
        exclude=() if exclude is None else read_names(exclude),
        exclude_ilsvrc12=exclude_ilsvrc12,
        domains=domains,
        heads=heads,
        per_class=per_class,
        tail=tail,
        val_per_class=val_per_class,
        test_per_class=test_per_class,
        val_domains=val_domains,
        test_domains=test_domains,
        pools="splits" if _one_of(pools, ("random", "splits"), "--pools") == "splits" else "random",
        constant_total=constant_total,
        seed=seed,
    )
    base = open_pool(data, settings.list_of_classes)
    base.check()
    manifest = build_long_tail(base, settings)
    manifest.write(out)
    strangers = {
        flag: not_in_data(names, data, base)
        for flag, names in (("--only", settings.only), ("--exclude", settings.exclude))
    }
    _show_long_tail(
        manifest, facts(manifest), out, json=json, notes=_notes(settings, manifest, strangers)
    )


def _notes(
    settings: "LongTailSettings", manifest: Any, strangers: dict[str, list[str]]
) -> list[str]:
    """What a user may not have meant."""
    from acclimate.build.geo_yfcc.labels import short
    from acclimate.build.long_tail import raised_total

    notes = []
    for flag, names in strangers.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            listed = ", ".join(map(short, names[:3]))
            verb = "name of {} is" if len(names) == 1 else "names of {} are"
            notes.append(f"{len(names)} {verb.format(flag)} not in the data: {listed}{more}")
    raised = raised_total(settings, len(manifest.classes))
    if raised is not None:
        notes.append(
            f"{raised[0]:,} training images instead of {raised[1]:,}: every class of a domain has "
            "one at least; lower --domains, or raise --constant-total or --per-class"
        )
    return notes


def _preset(name: str | None) -> "LongTailSettings":
    from acclimate.build.long_tail import LT_IMAGENET, LongTailSettings

    return (
        LT_IMAGENET if name and _one_of(name, ("lt-imagenet",), "--preset") else LongTailSettings()
    )


def _one_of(value: str, known: tuple[str, ...], flag: str) -> str:
    if value not in known:
        raise unknown(f"{flag} {value}: there is no such choice", value, known)
    return value


def _show_long_tail(
    manifest: Any, how: dict[str, Any], out: Path, *, json: bool, notes: list[str]
) -> None:
    if json:
        say_json({**_manifest_facts(manifest, out), **how, "notes": notes})
        return
    roles = list(manifest.roles().values())
    say(
        f"{roles.count('train')} training, {roles.count('val')} validation and "
        f"{roles.count('test')} test domains; "
        f"{len(manifest.rows(split='train'))} training images, "
        f"{len(manifest.rows(split='val'))} for validation, "
        f"{len(manifest.rows(split='test'))} for test"
    )
    say(f"{len(manifest.classes)} classes of the {how['offered']} that were offered")
    for split, cap in how["capped"].items():
        say(
            f"capped: {split}: {cap['wanted']} images of a head class wanted, {cap['fewest']} in "
            f"the smallest pool; {cap['missing']} images fewer in all"
        )
    if how["too_small"]:
        few = how["too_small"]
        more = f" and {len(few) - 5} more" if len(few) > 5 else ""
        say(f"left out, with too few images: {', '.join(few[:5])}{more}")
    for note in notes:
        say(f"note: {note}")
    _show_manifest(manifest, out, json=False)


def _manifest_facts(manifest: Any, out: Path) -> dict[str, Any]:
    return {
        "manifest": str(out),
        "rows": len(manifest),
        "domains": len(manifest.domains),
        "classes": len(manifest.classes),
        "digest": manifest.digest(),
    }


def _show_manifest(manifest: Any, out: Path, *, json: bool) -> None:
    facts = _manifest_facts(manifest, out)
    if json:
        say_json(facts)
        return
    say(
        f"{facts['rows']} rows, {facts['domains']} domains, {facts['classes']} classes "
        f"(digest {manifest.digest()[:12]})"
    )
    say(f"manifest: {out}")


def three_numbers(text: str) -> tuple[int, int, int]:
    """`--split` as numbers of domains."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ConfigError(
            f"--split is '{text}'; give the numbers of training, validation and test domains, "
            "such as 40,7,15"
        )
    train, val, test = map(int, parts)
    return train, val, test
