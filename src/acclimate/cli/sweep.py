"""`sweep`: many runs from one definition; what it says before, while and after they run."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import DryRun, Json, RetryFailed, flags_of, grouped, launch_options
from acclimate.cli.output import (
    progress_bar,
    remark,
    say,
    say_facts,
    say_json,
    say_some,
    say_table,
    stoppable,
)
from acclimate.config import AlgorithmName, RunConfig, layered, nested, settings_of
from acclimate.core.errors import RecordError
from acclimate.core.text import percent
from acclimate.results.protocol import Sweep
from acclimate.sweep.settings import LaunchOptions, SweepConfig

if TYPE_CHECKING:  # what runs a sweep imports torch, and --help may not
    from acclimate.sweep.conduct import Choices, Conduct, Conducted, Prepared
    from acclimate.sweep.driver import Event, Listener, Queue

NAMED = 3  # running jobs whose steps are shown
REFRESH = 1.0  # seconds
NOT_FLAGS = ("data", "per_algorithm", "variants")  # an argument, and tables of tables: for files
SWEEP_FLAGS = [one for one in settings_of(SweepConfig()) if one.name not in NOT_FLAGS]
RUN_FLAGS = [one for one in settings_of(RunConfig()) if one.name == "data.min_images"]


@app.command(
    epilog="Example: acclimate sweep PACS --algorithms erm,coral,da-erm,da-coral "
    "--test-domains each --trials 2 --out sweeps/pacs"
)
@grouped(
    flags=flags_of(SWEEP_FLAGS, repeated="test_domains"),
    run=flags_of(RUN_FLAGS),
    launch=launch_options,
)
def sweep(
    *,
    data: Annotated[
        list[Path] | None, typer.Argument(help="Manifests, tables or domain/class/image folders.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The sweep in a TOML file.")] = None,
    flags: dict[str, Any],
    run: dict[str, Any],
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
    from acclimate.data.readers import data_name
    from acclimate.sweep.conduct import Conduct, Prepared
    from acclimate.sweep.definition import gather, open_data
    from acclimate.sweep.jobs import count, define, notes

    flags["settings"] = layered(nested(run), flags.get("settings", {}))
    asked = gather(config, {**flags, "data": tuple(map(str, data or ()))})
    how = Conduct(launch=launch, retry_failed=retry_failed, extend=extend, prune=prune)
    manifests = open_data(asked)
    places = {data_name(path): Path(path) for path in asked.data}
    made = define(asked, manifests, device=launch.trained_on)
    remarks = notes(asked, manifests, made)
    plan = Prepared(made, manifests, places, count(asked, manifests), remarks)
    folder = out or Path("sweeps") / "-".join(places)
    if dry_run:
        announce(folder, plan, how, json=json)
    else:
        show(folder, made, run_announced(folder, plan, how), json=json)


def announce(folder: Path, plan: "Prepared", how: "Conduct", *, json: bool) -> None:
    """Show the runs and the time they would take; nothing is written."""
    facts = announcement(folder, plan, how)
    if json:
        say_json(facts)
    else:
        say_facts(facts)


def announcement(folder: Path, plan: "Prepared", how: "Conduct") -> dict[str, Any]:
    """What a sweep will do: its runs, and what is left of them."""
    from acclimate.sweep.conduct import time_left
    from acclimate.sweep.driver import check_folder, look
    from acclimate.sweep.launchers import expected_workers

    sweep = plan.sweep
    check_folder(folder, sweep, extend=how.extend)
    queue = look(folder, sweep, retry_failed=how.retry_failed)
    left = [job.config["train"] for job in sweep.jobs if queue.states[job.id] == "waiting"]
    epochs = any(train["epochs"] for train in left)  # they become steps once a run is planned
    workers = expected_workers(how.launch)
    return {
        "sweep": str(folder),
        "rule": sweep.rule,
        "runs_by_rule": dict(plan.runs_by_rule),
        "runs": len(sweep.jobs),
        "embeddings": len(sweep.embeddings),
        "done": queue.count("done"),
        "failed": queue.count("failed"),
        "left": len(left),
        "steps_left": None if epochs else sum(train["steps"] for train in left),
        "jobs_at_a_time": workers,
        "seconds_left": time_left(folder, sweep, queue, workers) if queue.unfinished() else None,
        "notes": list(plan.notes),
    }


def run_announced(folder: Path, plan: "Prepared", how: "Conduct") -> "Conducted":
    """Say on stderr what is to come, run what is left with its progress shown, and choose."""
    from acclimate.sweep.conduct import conduct

    say_facts(announcement(folder, plan, how), err=True)
    with stoppable(), progress_shown(folder, plan.sweep) as listener:
        result = conduct(folder, plan, how, listener=listener)
    if result.unpruned:
        remark(result.unpruned)
    return result


@contextmanager
def progress_shown(folder: Path, sweep: Sweep) -> Iterator["Listener"]:
    """Finished runs as progress, with the steps of some that are running; and on stderr a line for
    each job that fails or, where there is no terminal, ends."""
    shown = {"failed", "died"} if sys.stderr.isatty() else {"failed", "died", "done"}
    drawn = 0.0
    with progress_bar() as watch:

        def listen(queue: "Queue", event: "Event | None") -> None:
            nonlocal drawn
            done, total = queue.count("done"), len(sweep.jobs)
            if event is not None and event.kind in shown:
                note = f": {event.note}" if event.note else ""
                remark(f"[{done}/{total}] {event.kind} {event.id}{note}")
            if event is None and time.monotonic() - drawn > REFRESH:
                drawn = time.monotonic()
                watch("runs", done, total, running(folder, sweep, queue))

        yield listen


def running(folder: Path, sweep: Sweep, queue: "Queue") -> str:
    """The running jobs, each with the step it has reached."""
    from acclimate.results.sweep_folder import SweepFolder

    here, phis = SweepFolder(folder), {phi.id for phi in sweep.embeddings}
    ids = queue.ids("running")
    names = []
    for id in ids[:NAMED]:
        try:
            losses = (here.embedding(id) if id in phis else here.run(id)).records().losses
        except (OSError, RecordError):  # it is being written
            losses = []
        names.append(f"{id} (step {losses[-1].step})" if losses else id)
    return ", ".join([*names, *([f"{len(ids) - NAMED} more"] if len(ids) > NAMED else [])])


def show(folder: Path, sweep: Sweep, result: "Conducted", *, json: bool) -> None:
    """What was chosen and what failed. Exits with 1 where jobs are not done."""
    from acclimate.results.sweep_folder import SweepFolder

    tally = result.tally
    if json:
        facts = {
            "sweep": str(folder),
            "rule": sweep.rule,
            "runs": tally.jobs,
            "done": tally.done,
            "done_before": tally.already,
            "failed": len(tally.failures),
            "choices": {
                rule: [{**asdict(choice), "top1": top1} for choice, top1 in choices.items()]
                for rule, choices in result.chosen.items()
            },
            "failures": [asdict(failure) for failure in tally.failures],
            "waiting_for_failed_embedding": list(tally.blocked),
        }
        say_json(facts)
    else:
        if any(top1 is not None for choices in result.chosen.values() for top1 in choices.values()):
            _show_choices(sweep, result.chosen)
        say_some("failed", [f"{one.job}: {one.error}" for one in tally.failures], most=10)
        if tally.blocked:
            say(f"{len(tally.blocked)} runs are waiting for a failed embedding")
        if tally.failures:
            place = SweepFolder(folder).failures
            say(f"tracebacks: {place}; once mended, try again with --retry-failed")
        before = f" ({tally.already} before)" if tally.already else ""
        say(f"{tally.done} of {tally.jobs} runs done{before}; sweep folder: {folder}")
        say(f"report: run `acclimate report {folder}`")
    if tally.done < tally.jobs:
        raise typer.Exit(1)


def _show_choices(sweep: Sweep, chosen: "Choices") -> None:
    """Mean accuracy on unseen domains of the chosen runs: a line per algorithm and method, a column
    per rule."""
    rules = sorted(chosen, key=lambda rule: rule != sweep.rule)
    lines: dict[tuple[str, str, str, str], dict[str, list[float | None]]] = {
        (job.dataset, job.algorithm, job.variant, method): {rule: [] for rule in rules}
        for job in sweep.jobs
        for method in job.methods
    }
    for rule in rules:
        for one, top1 in chosen[rule].items():
            lines[one.dataset, one.algorithm, one.variant, one.method][rule].append(top1)
    rows = []
    for (dataset, algorithm, variant, method), accuracies in lines.items():
        usual = method == AlgorithmName.of(algorithm).usual_method
        name = " ".join(filter(None, (algorithm, variant, "" if usual else f"by {method}")))
        rows.append((dataset, name, *map(_cell, accuracies.values())))
    first = 0 if len(sweep.datasets) > 1 else 1  # the data are named where there are several
    say("top-1 on unseen domains in percent, mean over them and over trials, by selection rule")
    say_table(("data", "algorithm", *rules)[first:], [row[first:] for row in rows])
    say()


def _cell(accuracies: list[float | None]) -> str:
    known = [one for one in accuracies if one is not None]
    # A mean over some of the domains is no mean over all: it says how many there are.
    part = "" if len(known) in (0, len(accuracies)) else f" ({len(known)} of {len(accuracies)})"
    return percent(fmean(known) if known else None) + part
