"""`inspect`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Data, Json
from acclimate.cli.output import progress_bar, say, say_json, say_some, say_table
from acclimate.core.text import DASH, percent

if TYPE_CHECKING:
    from acclimate.data.inspection import Inspection


@app.command(epilog="Example: acclimate inspect pacs.parquet --plots plots/")
def inspect(
    data: Data,
    plots: Annotated[Path | None, typer.Option(help="Write PNG plots into this folder.")] = None,
    read: Annotated[
        int, typer.Option(help="Images to try to read, at random; -1: all, 0: none.")
    ] = 1000,
    json: Json = False,
) -> None:
    """Domains, classes, label shift, long tails, problems and unreadable files."""
    from acclimate.data.columns import summaries
    from acclimate.data.inspection import find_copies, sampled, try_images
    from acclimate.data.inspection import inspect as inspect_manifest
    from acclimate.data.manifest import Manifest

    manifest = Manifest.open(data)
    problems = manifest.problems()
    found = inspect_manifest(manifest)
    with progress_bar() as watch:
        rows = sampled(manifest, read)
        unreadable = try_images(manifest, rows, watch)
    copies, tried = find_copies(manifest, rows), len(rows)
    pictures = []
    if plots is not None:
        from acclimate.report.figures.label_shares import write_label_plots

        pictures = [str(path) for path in write_label_plots(manifest, plots)]
    if json:
        facts = {
            **asdict(found),
            "problems": [str(problem) for problem in problems],
            "images_read": tried,
            "unreadable": unreadable,
            "duplicates": [asdict(group) for group in copies],
            "plots": pictures,
        }
        say_json(facts)
        return
    _show_domains(found)
    for line in summaries(problems):
        say(f"problem: {line}")
    say_some("copies", [" and ".join(one.images) for one in copies if not one.alike])
    say_some("look the same", [" and ".join(one.images) for one in copies if one.alike])
    if any(one.alike for one in copies):
        say(f"to keep them in one split: acclimate build folder {data} --alike --out FILE")
    if tried:
        others = len(manifest) - tried
        rest = f" (--read -1 tries the other {others} as well)" if others else ""
        say(f"{tried} images tried{rest}, {len(unreadable)} unreadable")
    say_some("unreadable", [f"{one['image']}: {one['reason']}" for one in unreadable])
    for picture in pictures:
        say(f"plot: {picture}")


def _show_domains(found: "Inspection") -> None:
    say(f"{found.source}: {found.rows} rows, {len(found.domains)} domains, {found.classes} classes")
    rows = [
        {
            "domain": one.domain,
            "rows": str(one.rows),
            "classes": str(one.classes),
            "top class": one.top_class or DASH,
            "share": percent(one.top_share),
            "imbalance": _rounded(one.imbalance, 1),
            "effective classes": _rounded(one.effective_classes, 1),
            "shift": _rounded(one.total_variation, 2),
        }
        for one in found.domains
    ]
    say_table(list(rows[0]), [list(row.values()) for row in rows])
    say("shift: total variation distance of the domain's labels from those of all others, 0 to 1")
    if found.pairwise is not None:
        one, two = found.pairwise.largest_pair
        say(
            f"between two domains it is {found.pairwise.mean:.2f} on average and "
            f"{found.pairwise.largest:.2f} at most ({one} and {two})"
        )


def _rounded(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}"
