"""`train`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.output import (
    Device,
    Json,
    names,
    progress_bar,
    remark,
    say,
    say_json,
    stoppable,
)
from acclimate.cli.scores import show_run


@app.command(epilog="Example: acclimate train sites --test-domains north --out runs/sites")
def train(
    data: Annotated[
        Path, typer.Argument(help="A manifest, a table, or a domain/class/image folder.")
    ],
    algorithm: Annotated[
        str | None,
        typer.Option(help="See `acclimate list algorithms`. [default: erm, rehearsed]"),
    ] = None,
    test_domains: Annotated[
        list[str] | None,
        typer.Option(help="Kept out of training, scored at the end; repeat or use commas."),
    ] = None,
    val_domains: Annotated[
        list[str] | None,
        typer.Option(help="Kept out of training, used to choose weights; repeat or use commas."),
    ] = None,
    min_images: Annotated[
        int | None, typer.Option(help="Leave out domains with fewer images, by name.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="See `acclimate list backbones`.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A local pretrained-weights file.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps of Step B.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    preset: Annotated[str | None, typer.Option(help="See `acclimate list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in a TOML file.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. train.per_domain=16."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. [default: runs/DATA-ALGORITHM-SEED]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained, and how long, and stop.")
    ] = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a classifier. A killed run resumes when the same command is repeated.

    Without an algorithm or a preset it is --preset rehearsed: ordinary training, after which the
    sites play "new site" in turn, and how `adapt` adapts is chosen by what that gave.

    Settings come from the defaults, then --preset, then --config, then the flags and --set.
    Under torchrun several processes share the work.
    """
    from acclimate.config import RECIPE, gather, parse_assignments
    from acclimate.data.manifest import Manifest
    from acclimate.data.readers import data_name
    from acclimate.runs.folder import RunFolder
    from acclimate.runs.forecast import forecast
    from acclimate.runs.identity import run_identity
    from acclimate.runs.plan import make_plan
    from acclimate.runs.training import train as train_run

    flags = {
        "algorithm": algorithm,
        "test_domains": names(test_domains),
        "val_domains": names(val_domains),
        "data.min_images": min_images,
        "model.backbone": backbone,
        "model.weights": None if weights is None else str(weights),
        "train.steps": steps,
        "seed": seed,
    }
    changes = parse_assignments(settings or [])
    chosen = gather(preset, config, flags, changes, recipe=RECIPE)
    recipe = chosen.algorithm + ("-rehearsed" if chosen.adapt.rehearse else "")
    folder = out or Path("runs") / f"{data_name(data)}-{recipe}-{chosen.seed}"
    manifest = Manifest.open(data)
    place = RunFolder(folder)
    plan = make_plan(place.settled(chosen), manifest, device=device)
    place.refuse_others(run_identity(plan))
    if place.finished is None:
        told = forecast(plan, place, device)
        if dry_run and json:
            say_json(told.to_dict())
        else:
            for line in told.lines():
                (say if dry_run else remark)(line)
    elif dry_run:
        say(f"{folder} is finished; there is nothing left to train")
    if dry_run:
        return
    with stoppable(), progress_bar() as watch:
        result = train_run(
            chosen, manifest, folder, device=device, watch=watch, say=remark, plan=plan
        )
    show_run(folder, already=result.already, json=json)
