"""`inspect`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Data, Json, Page
from acclimate.cli.output import progress_bar, say, say_facts, say_json, say_some, say_table
from acclimate.core.text import count

if TYPE_CHECKING:
    from acclimate.core.grid import Grid
    from acclimate.data.inspection import Inspection


@app.command(epilog="Example: acclimate inspect sites --page look.html")
def inspect(
    data: Data,
    plots: Annotated[Path | None, typer.Option(help="Write PNG plots into this folder.")] = None,
    read: Annotated[
        int, typer.Option(help="Images to try to read, at random; -1: all, 0: none.")
    ] = 1000,
    page: Page = None,
    json: Json = False,
) -> None:
    """Domains, classes, label shift, long tails, problems and unreadable files."""
    from acclimate.data.columns import summaries
    from acclimate.data.inspection import (
        domains_grid,
        find_copies,
        sampled,
        several_labels,
        try_images,
    )
    from acclimate.data.inspection import inspect as inspect_manifest
    from acclimate.data.manifest import Manifest
    from acclimate.records.folder import check_out

    if page is not None:
        check_out(page, "page", (data,))
    with progress_bar() as watch:
        manifest = Manifest.open(data, watch=watch)
    problems = manifest.problems()
    inspection = inspect_manifest(manifest)
    with progress_bar() as watch:
        rows = sampled(manifest, read)
        looks, unreadable = try_images(manifest, rows, watch)
    several = several_labels(manifest)
    copies, tried = find_copies(manifest, rows), len(rows)
    figures = []
    if plots is not None:
        from acclimate.report.figures.label_shares import write_label_plots

        figures = [str(path) for path in write_label_plots(manifest, plots)]
    if page is not None:
        from acclimate.report.data_page import Findings, write_data_page

        findings = Findings(looks, unreadable, copies, [*summaries(problems), *several])
        write_data_page(page, manifest, inspection, findings)
    if json:
        facts = {
            **asdict(inspection),
            "problems": [str(problem) for problem in problems],
            "images_read": tried,
            "unreadable": unreadable,
            "several_labels": several,
            "duplicates": [asdict(group) for group in copies],
            "plots": figures,
            "page": page,
        }
        say_json(facts)
        return
    _show_domains(inspection, domains_grid(manifest))
    for line in summaries(problems):
        say(f"problem: {line}")
    say_some("several labels", several)
    say_some("copies", [" and ".join(one.images) for one in copies if not one.alike])
    say_some("look the same", [" and ".join(one.images) for one in copies if one.alike])
    if shared := manifest.shared_pictures():
        say(
            f"{count(shared, 'picture')} in several sites: a site that is held out is scored and "
            f"rehearsed without those that were trained on"
        )
    if any(one.alike for one in copies):
        say(f"to keep them in one split: acclimate build folder {data} --alike --out FILE")
    facts = {
        "images_tried": f"{tried} of {len(manifest)}",
        "unreadable": unreadable,
        "plots": figures,
        "page": page,
    }
    say_facts(facts)


def _show_domains(inspection: "Inspection", domains: "Grid") -> None:
    facts = (f"{inspection.rows} rows", f"{len(inspection.domains)} domains")
    say(f"{inspection.source}: {', '.join(facts)}, {inspection.classes} classes")
    header, *rows = domains.texts
    say_table(header, rows)
    say("shift: total variation distance of the domain's labels from those of all others, 0 to 1")
    if inspection.pairwise is not None:
        shift, most = inspection.pairwise, ""
        if shift.largest_pair is not None:
            one, two = shift.largest_pair
            most = f" and {shift.largest:.2f} at most ({one} and {two})"
        say(f"between two domains it is {shift.mean:.2f} on average{most}")
