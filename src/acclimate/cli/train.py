"""`train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Data, Device, Json, MinImages, names
from acclimate.cli.output import progress_bar, remark, say, say_json, stoppable
from acclimate.cli.scores import show_run
from acclimate.core.text import count

if TYPE_CHECKING:
    from acclimate.runs.plan import Plan

NAMED = 8  # sites that are named


@app.command(epilog="Example: acclimate train sites --test-domains north --out runs/sites")
def train(
    data: Data,
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
    min_images: MinImages = None,
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
        bool, typer.Option("--dry-run", help="Say what would be trained, and stop.")
    ] = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a classifier. A killed run resumes when the same command is repeated.

    Without an algorithm or a preset it is --preset rehearsed: ordinary training, then each site is
    held out in turn and every adaptation method is tried on it. `adapt` uses what helped.

    Settings come from the defaults, then --preset, then --config, then the flags and --set.
    Under torchrun several processes share the work.
    """
    from acclimate.config import RECIPE, gather, parse_assignments
    from acclimate.data.manifest import Manifest
    from acclimate.data.readers import data_name
    from acclimate.records.folder import RunFolder
    from acclimate.rehearse.training import train as train_run
    from acclimate.runs.identity import run_identity
    from acclimate.runs.plan import make_plan

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
    outlook = _outlook(plan, folder, finished=place.finished is not None)
    if dry_run and json:
        say_json(outlook)
    elif dry_run or not outlook["finished"]:
        for line in _lines(outlook):
            (say if dry_run else remark)(line)
    if dry_run:
        return
    with stoppable(), progress_bar() as watch:
        result = train_run(
            chosen, manifest, folder, device=device, watch=watch, say=remark, plan=plan
        )
    show_run(folder, already=result.already, json=json)


def _outlook(plan: "Plan", folder: Path, *, finished: bool) -> dict[str, Any]:
    """What a run will do, by arithmetic alone: how long it takes, its first steps will tell."""
    train, images = plan.config.train, sum(map(len, plan.train_rows))
    batch = (train.domains_per_step or len(plan.train_domains)) * train.per_domain
    rehearse = plan.config.adapt.rehearse and len(plan.train_domains) > 1
    return {
        "run": str(folder),
        "finished": finished,
        "algorithm": plan.algorithm.name,
        "backbone": plan.config.model.backbone,
        "rehearsal": rehearse,
        "images": images,
        "classes": len(plan.classes),
        "train_domains": list(plan.train_domains),
        "unseen_domains": [*plan.val_domains, *plan.test_domains],
        "embedding_steps": plan.config.embedding.steps if plan.algorithm.adaptive else 0,
        "steps": train.steps,
        "images_per_step": batch,
        "epochs": round(train.steps * batch / max(images, 1), 1),
        "why": plan.decided,
    }


def _lines(outlook: dict[str, Any]) -> list[str]:
    if outlook["finished"]:
        return [f"{outlook['run']} is finished; there is nothing left to train"]
    what = outlook["algorithm"]
    if outlook["embedding_steps"]:
        what += f" after {outlook['embedding_steps']} steps of a domain embedding"
    if outlook["rehearsal"]:
        what += ", then a rehearsal: each site is held out in turn, and that decides how to adapt"
    sites, unseen = outlook["train_domains"], outlook["unseen_domains"]
    named = ", ".join(sites[:NAMED]) + (", …" if len(sites) > NAMED else "")
    further = f"; unseen: {', '.join(unseen[:NAMED])}" if unseen else ""
    classes = count(outlook["classes"], "class", "classes")
    return [
        f"will train {what}",
        f"on {count(outlook['images'], 'image')} of {classes} "
        f"from {count(len(sites), 'site')}: {named}{further}",
        f"{outlook['steps']} steps of {outlook['images_per_step']} images "
        f"({outlook['epochs']:g} epochs) with backbone {outlook['backbone']}",
        *outlook["why"],
        f"ends up in {outlook['run']}",
    ]
