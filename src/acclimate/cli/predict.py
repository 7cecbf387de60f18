"""`predict`."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.adapt import Images, Run, lenient, problems
from acclimate.cli.output import Device, Json, progress_bar, say, say_json


@app.command(
    epilog="Example: acclimate predict runs/pacs new-site/ --domain new-site.safetensors "
    "--out predictions.csv"
)
def predict(
    run: Run,
    images: Images,
    out: Annotated[Path, typer.Option(help="CSV: a header line, then one line per image.")],
    domain: Annotated[
        Path | None, typer.Option(help="The domain's state, from `acclimate adapt`.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="A column for each class as well.")
    ] = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Predict classes of images. An unreadable image keeps its line, with the problem in it."""
    from acclimate.adapt.classifier import apply_state, nothing_readable
    from acclimate.core.distributed import pick_device
    from acclimate.core.files import write_text
    from acclimate.data.images import find_images
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained

    paths = find_images(images)
    trained = Trained.load(run, pick_device(device))
    site = apply_state(trained, None if domain is None else DomainState.load(domain))
    quarantine = lenient(len(paths))
    with progress_bar() as watch:
        found = dict(site.predict_files(paths, quarantine, watch))
    if not found:
        raise nothing_readable(quarantine)
    reasons = dict(quarantine.entries)
    text = _csv(paths, found, reasons, site.classes, every_class=probabilities)
    write_text(out, text)
    if json:
        counts: dict[str, int] = {}
        for row in found.values():
            name = site.classes[int(row.argmax())]
            counts[name] = counts.get(name, 0) + 1
        say_json(
            {
                "predictions": str(out),
                "images": len(found),
                "unreadable": problems(quarantine),
                "classes": dict(sorted(counts.items())),
            }
        )
        return
    say(f"{len(found)} images classified, {len(quarantine)} unreadable; predictions: {out}")


def _csv(
    paths: Iterable[Path],
    found: dict[Path, Any],
    reasons: dict[str, str],
    classes: tuple[str, ...],
    *,
    every_class: bool,
) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    extra = classes if every_class else ()
    writer.writerow(["image", "label", "confidence", "problem", *extra])
    for path in paths:
        row = found.get(path)
        if row is None:
            writer.writerow([path, "", "", reasons[str(path)], *("" for _ in extra)])
            continue
        best = int(row.argmax())
        numbers = [f"{value:.6f}" for value in row] if every_class else []
        writer.writerow([path, classes[best], f"{row[best]:.6f}", "", *numbers])
    return text.getvalue()
