"""`suggest`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Images, Json, Run, State
from acclimate.cli.output import progress_bar, say, say_facts


@app.command(epilog="Example: acclimate suggest runs/sites new-site/ --out to-label.csv")
def suggest(
    run: Run,
    images: Images,
    out: Annotated[Path, typer.Option(help="CSV: fill in its column `label`.")],
    count: Annotated[int, typer.Option(help="Images to label.")] = 20,
    sheet: Annotated[
        Path | None, typer.Option(help="A picture of them, numbered as in the table (PNG).")
    ] = None,
    domain: State = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Name the images of a new domain to label: as different from each other as its images are.

    `acclimate adapt` takes the table with --labels.
    """
    from acclimate.adapt.classifier import apply_state, unadapted
    from acclimate.adapt.suggest import suggest as suggest_images
    from acclimate.adapt.suggest import to_label
    from acclimate.core.distributed import pick_device
    from acclimate.core.files import write_text
    from acclimate.data.readers import find_images
    from acclimate.data.source import Quarantine
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained
    from acclimate.records.folder import check_out
    from acclimate.report.figures.canvas import write_figure
    from acclimate.report.figures.thumbnails import draw_thumbnails

    check_out(out, "list of images to label", (run, domain, *images))
    if sheet is not None:
        check_out(sheet, "figure", (run, domain, *images))
    paths = find_images(images)
    trained = Trained.load(run, pick_device(device))
    quarantine = Quarantine()
    site = unadapted(trained)
    if domain is not None:
        site = apply_state(trained, DomainState.load(domain))
    with progress_bar() as watch:
        chosen = suggest_images(site, paths, count, quarantine, watch)
    write_text(out, to_label(chosen))
    if sheet is not None:
        write_figure(draw_thumbnails([one.image for one in chosen]), sheet, "png", dpi=130)
    facts = {
        "to_label": out,
        "sheet": sheet,
        "images": len(chosen),
        "unreadable": quarantine.as_dicts(),
    }
    say_facts(facts, json=json)
    if not json:
        given = " ".join(map(str, images))
        say(f"fill in the column label, then: acclimate adapt {run} {given} --labels {out} --out …")
