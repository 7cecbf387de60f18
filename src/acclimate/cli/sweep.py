"""`sweep`: many runs from one definition; what it says before, while and after they run."""

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import LAUNCH, DryRun, Flags, Json, RetryFailed, grouped
from acclimate.cli.output import progress_bar, remark, say_facts, stoppable
from acclimate.config import RunConfig, settings_of
from acclimate.results.protocol import Sweep
from acclimate.sweep.settings import LaunchOptions, SweepConfig

if TYPE_CHECKING:  # what runs a sweep imports torch, and --help may not
    from acclimate.sweep.driver import Event, Listener, Queue, SweepPlan, Tally
    from acclimate.sweep.launchers import Launch

NAMED = 3  # running jobs that the progress bar names
REFRESH = 1.0  # seconds
NOT_FLAGS = ("data", "per_algorithm", "variants")  # an argument, and tables of tables: for files
METRIC = "train.metric"  # of all runs, and so of their comparison
SWEEP_FLAGS = [one for one in settings_of(SweepConfig()) if one.name not in NOT_FLAGS]
SWEEP_FLAGS += [one for one in settings_of(RunConfig()) if one.name == METRIC]


@app.command(
    epilog="Example: acclimate sweep PACS --algorithms erm,coral,da-erm,da-coral "
    "--test-domains each --trials 2 --out sweeps/pacs"
)
@grouped(flags=Flags(SWEEP_FLAGS, repeated="test_domains"), launch=LAUNCH)
def sweep(
    *,
    data: Annotated[
        list[Path] | None, typer.Argument(help="Manifests, tables or domain/class/image folders.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The sweep in a TOML file.")] = None,
    flags: dict[str, Any],
    out: Annotated[Path | None, typer.Option(help="Sweep folder. [default: sweeps/DATA]")] = None,
    launch: dict[str, Any],
    retry_failed: RetryFailed = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add jobs to a sweep that has fewer.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="At the end, delete weights that were not selected."),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train algorithms × unseen domains × drawn settings × trials; `report` compares them.

    Repeating the command resumes it at any point and skips what is done. The sweep is what the
    --config file says, then the flags and --set.
    """
    from acclimate.data.readers import data_name
    from acclimate.sweep import driver
    from acclimate.sweep.contenders import with_all
    from acclimate.sweep.definition import gather, open_data
    from acclimate.sweep.jobs import define, notes
    from acclimate.sweep.launchers import chosen_launcher

    if METRIC in flags:
        flags["settings"] = {**flags.get("settings", {}), METRIC: flags.pop(METRIC)}
    options = LaunchOptions(**launch)
    launcher = chosen_launcher(options)  # a mistake shows before any data are read
    definition = gather(config, {**flags, "data": tuple(map(str, data or ()))})
    manifests = open_data(definition)
    paths = {data_name(path): Path(path) for path in definition.data}
    definition, left_out = with_all(definition, manifests, options.trained_on)
    jobs = define(definition, manifests, device=options.trained_on)
    line = shlex.join(["acclimate", *sys.argv[1:]])
    jobs = replace(jobs, command=line, left_out=tuple(left_out))
    remarks = [*notes(definition, manifests, jobs), *left_out]
    plan = driver.SweepPlan(sweep=jobs, manifests=manifests, paths=paths, notes=remarks)
    folder = out or Path("sweeps") / "-".join(paths)
    if dry_run:
        say_facts(announcement(folder, plan, extend=extend), json=json)
        return
    tally = run_announced(folder, plan, launcher, retry_failed=retry_failed, extend=extend)
    problem = driver.prune(folder, jobs) if prune else ""
    if problem:
        remark(problem)
    show(folder, tally, json=json)


def announcement(folder: Path, plan: "SweepPlan", *, extend: bool = False) -> dict[str, Any]:
    """What a sweep will do: its runs, and what is left of them."""
    from acclimate.sweep.driver import check_folder, look

    check_folder(folder, plan.sweep, extend=extend)
    queue = look(folder, plan.sweep)
    return {
        "sweep": str(folder),
        "rule": plan.sweep.rule,
        "runs": len(plan.sweep.jobs),
        "embeddings": len(plan.sweep.embeddings),
        "done": queue.count("done"),
        "failed": queue.count("failed"),
        "left": queue.count("waiting"),
        "notes": list(plan.notes),
    }


def run_announced(
    folder: Path,
    plan: "SweepPlan",
    launch: "Launch",
    *,
    retry_failed: bool = False,
    extend: bool = False,
) -> "Tally":
    """Say on stderr what is to come, then run what is left with its progress shown."""
    from acclimate.sweep.driver import run_sweep, write_labels

    say_facts(announcement(folder, plan, extend=extend), err=True)
    with stoppable(), progress_shown(plan.sweep) as listener:
        tally = run_sweep(
            folder,
            plan.sweep,
            plan.paths,
            launch=launch,
            retry_failed=retry_failed,
            extend=extend,
            listener=listener,
        )
        write_labels(folder, plan)
    return tally


@contextmanager
def progress_shown(sweep: Sweep) -> Iterator["Listener"]:
    """Finished runs as progress, with the names of some that are running; and on stderr a line for
    each job that fails or, where there is no terminal, ends."""
    kinds = {"failed", "died"} if sys.stderr.isatty() else {"failed", "died", "done"}
    refreshed = 0.0
    with progress_bar() as watch:

        def listen(queue: "Queue", event: "Event | None") -> None:
            nonlocal refreshed
            done, total = queue.count("done"), len(sweep.jobs)
            if event is not None and event.kind in kinds:
                note = f": {event.note}" if event.note else ""
                remark(f"[{done}/{total}] {event.kind} {event.id}{note}")
            if event is None and time.monotonic() - refreshed > REFRESH:
                refreshed = time.monotonic()
                watch("runs", done, total, ", ".join(queue.ids("running")[:NAMED]))

        yield listen


def show(folder: Path, tally: "Tally", *, json: bool) -> None:
    """What is done and what failed. Exits with 1 where jobs are not done."""
    from acclimate.results.sweep_folder import SweepFolder

    notes = [f"for scores and choices run `acclimate report {folder}`"]
    if tally.failures:
        notes.append(
            f"tracebacks are in {SweepFolder(folder).failures}; --retry-failed tries again"
        )
    facts = {
        "sweep": folder,
        "runs": tally.jobs,
        "done": tally.done,
        "done_before": tally.already,
        "failures": [{"job": one.job, "error": one.error} for one in tally.failures],
        "waiting_for_failed_embedding": list(tally.blocked),
        "notes": notes,
    }
    say_facts(facts, json=json)
    if tally.done < tally.jobs:
        raise typer.Exit(1)
