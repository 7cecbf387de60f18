"""`sweep`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import (
    DryRun,
    Json,
    MinImages,
    RetryFailed,
    assignments,
    flags_of,
    grouped,
    launch_options,
    names,
    with_parameters,
)
from acclimate.sweep.settings import LaunchOptions, SweepConfig


def _sweep_flags(**given: Any) -> dict[str, Any]:
    """The settings of a sweep that were given as flags."""
    from acclimate.config import parse_assignments

    for name in ("algorithms", "methods", "val_domains"):
        given[name] = names(given[name])
    example = "'train.optimiser.lr=log10(-5, -3.5)'"
    given["search"] = assignments(given["search"], "--search", example)
    given["settings"] = parse_assignments(given["settings"] or [])
    return given | {"test_domains": tuple(given["test_domains"] or ())}


# Tables of tables are for files.
sweep_flags = with_parameters(
    _sweep_flags, flags_of(SweepConfig, without=("data", "per_algorithm", "variants"))
)


@app.command(
    epilog="Example: acclimate sweep PACS --algorithms erm,coral,da-erm,da-coral "
    "--test-domains each --trials 2 --out sweeps/pacs"
)
@grouped(flags=sweep_flags, launch=launch_options)
def sweep(
    *,
    data: Annotated[
        list[Path] | None, typer.Argument(help="Manifests, tables or domain/class/image folders.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The sweep in a TOML file.")] = None,
    flags: dict[str, Any],
    min_images: MinImages = None,
    out: Annotated[Path | None, typer.Option(help="Sweep folder. [default: sweeps/DATA]")] = None,
    launch: LaunchOptions,
    retry_failed: RetryFailed = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add jobs to a sweep that has fewer.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="At the end keep the weights of chosen runs only.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train algorithms × unseen domains × drawn settings × trials, and choose among the runs.

    Repeating the command resumes it at any point and skips what is done. The sweep is what the
    --config file says, then the flags and --set.
    """
    from acclimate.cli.sweeps import announce, run_and_show
    from acclimate.config import layered
    from acclimate.data.readers import data_name
    from acclimate.sweep.conduct import Conduct, Prepared
    from acclimate.sweep.definition import gather, open_data
    from acclimate.sweep.jobs import count, define, notes

    if min_images is not None:
        least = {"data": {"min_images": min_images}}
        flags["settings"] = layered(least, flags["settings"])
    asked = gather(config, {**flags, "data": tuple(map(str, data or ()))})
    how = Conduct(launch=launch, retry_failed=retry_failed, extend=extend, prune=prune)
    manifests = open_data(asked)
    places = {data_name(path): Path(path) for path in asked.data}
    made = define(asked, manifests, device=launch.trained_on)
    remarks = notes(asked, manifests, made)
    plan = Prepared(made, manifests, places, count(asked, manifests), remarks)
    folder = out or Path("sweeps") / "-".join(places)
    (announce if dry_run else run_and_show)(folder, plan, how, json=json)
