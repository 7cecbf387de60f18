"""`evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Device, Json, MethodSettings, Run, names
from acclimate.cli.output import progress_bar, say, say_json
from acclimate.cli.scores import as_json, show_run, show_scores
from acclimate.core.errors import ConfigError


@app.command(epilog="Example: acclimate evaluate runs/pacs pacs.parquet --source test")
def evaluate(
    run: Run,
    data: Annotated[
        Path | None, typer.Argument(help="Data to score; the run's own final scores if left out.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="held-out: images adapted on are not scored; test: they are."),
    ] = None,
    points: Annotated[int | None, typer.Option(help="Unlabelled images that make μ.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed that chooses them.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Score unseen domains by this method too; can be repeated."),
    ] = None,
    settings: MethodSettings = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Score a run per domain: top-1, top-5, worst domain, and the controls."""
    if data is None and (method or settings):
        asked = "--method" if method else "--set"
        raise ConfigError(f"{asked} scores anew; name the data to score as well")
    if data is None:
        show_run(run, already=True, json=json)
        return
    from acclimate.config import flat, parse_assignments
    from acclimate.runs.evaluate import evaluate_run

    flags = {"adapt.source": source, "adapt.points": points, "seed": seed}
    given = {key: value for key, value in flags.items() if value is not None}
    given |= flat(parse_assignments(settings or [], only="adapt"))
    with progress_bar() as watch:
        found = evaluate_run(run, data, given, methods=names(method), device=device, watch=watch)
    if json:
        facts = {"unreadable": found.unreadable, "same_data": found.same_data}
        say_json({**as_json(found.scores), **facts})
        return
    show_scores(found.scores)
    if found.unreadable:
        say(f"{len(found.unreadable)} unreadable images left out, e.g. {found.unreadable[0]}")
    if not found.same_data and any(score.role == "train" for score in found.scores):
        say("note: not the run's own data: training domains may be scored on images trained on")
