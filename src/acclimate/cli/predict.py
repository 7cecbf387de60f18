"""`predict`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.adapt import Images, Run
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
    from acclimate.adapt.classifier import apply_state
    from acclimate.adapt.predictions import predictions
    from acclimate.core.distributed import pick_device
    from acclimate.core.files import write_text
    from acclimate.data.images import find_images
    from acclimate.data.quarantine import Quarantine
    from acclimate.learn.embeddings import DomainState
    from acclimate.learn.model import Trained

    paths = find_images(images)
    trained = Trained.load(run, pick_device(device))
    site = apply_state(trained, None if domain is None else DomainState.load(domain))
    quarantine = Quarantine.lenient(len(paths))
    with progress_bar() as watch:
        found = predictions(site, paths, quarantine, watch)
    write_text(out, found.csv(every_class=probabilities))
    if json:
        facts = {"predictions": str(out), "images": len(found), "engine": site.engine}
        say_json({**facts, "unreadable": quarantine.as_dicts(), "classes": found.counts()})
        return
    say(f"{len(found)} images classified, {len(quarantine)} unreadable; predictions: {out}")
