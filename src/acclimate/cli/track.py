"""`track`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Json
from acclimate.cli.output import progress_bar, say_facts
from acclimate.core.errors import ConfigError, RunError


@app.command(epilog="Example: acclimate track sweeps/pacs --to mlflow")
def track(
    folder: Annotated[Path, typer.Argument(help="A run, or a folder with runs at any depth.")],
    to: Annotated[str, typer.Option(help="tensorboard, mlflow, wandb or trackio.")],
    model: Annotated[
        bool, typer.Option("--model", help="Log the model of each run as well (mlflow).")
    ] = False,
    site: Annotated[
        list[Path] | None,
        typer.Option(help="With --model: a state of `adapt`, for params={'site': its name}."),
    ] = None,
    json: Json = False,
) -> None:
    """Show finished runs in another tool. What it has already is not sent again.

    Where the tool keeps runs is the tool's own setting, such as MLFLOW_TRACKING_URI.
    """
    from acclimate.records.folder import RunFolder, runs_below
    from acclimate.track import replay

    if site and not model:
        raise ConfigError("--site goes with the model; add --model")
    if model and to != "mlflow":
        raise ConfigError(f"--model is for mlflow, not {to}; leave it out")
    runs = runs_below(folder)
    finished = [run for run in runs if RunFolder(run).finished is not None]
    if not finished:
        raise RunError(f"{folder}: there is no finished run; train one with `acclimate train`")
    options = {"model": site or []} if model else {}
    records = 0
    with progress_bar() as watch:
        for done, run in enumerate(finished, start=1):
            label = "" if run == folder else run.relative_to(folder).as_posix()
            group = folder.resolve().name if label else None
            records += replay(run, to, label=label, group=group, options=options)
            watch("runs", done, len(finished), label)
    facts = {"to": to, "runs": len(finished), "new_records": records}
    say_facts({**facts, "unfinished": (len(runs) - len(finished)) or None}, json=json)
