"""Running a sweep from the command line: what it says before, while and after."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from acclimate.cli.output import progress_bar, remark, say, say_json, say_some, say_table, stoppable
from acclimate.config import AlgorithmName
from acclimate.core.errors import RecordError
from acclimate.core.text import DASH, count, duration, percent
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.statistics import Estimate
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.conduct import Chosen, Conduct, Conducted, Prepared, conduct, time_left
from acclimate.sweep.driver import Event, Listener, Queue, Tally, check_folder, look
from acclimate.sweep.launchers import expected_workers

NAMED = 3  # running jobs whose steps are shown
REFRESH = 1.0  # seconds


def announce(folder: Path, plan: Prepared, how: Conduct, *, json: bool) -> None:
    """Show the runs and the time they would take; nothing is written."""
    lines, facts = announcement(folder, plan, how)
    if json:
        say_json(facts)
        return
    for line in lines:
        say(line)


def announcement(folder: Path, plan: Prepared, how: Conduct) -> tuple[list[str], dict[str, Any]]:
    """What `announce` says: in words, and for JSON."""
    sweep = plan.sweep
    check_folder(folder, sweep, extend=how.extend)
    queue = look(folder, sweep, retry_failed=how.retry_failed)
    workers = expected_workers(how.launch)
    left = [job for job in sweep.jobs if queue.states[job.id] == "waiting"]
    settings = [job.config["train"] for job in left]
    # Epochs become steps once a run is planned.
    steps = (
        None
        if any(train["epochs"] for train in settings)
        else sum(train["steps"] for train in settings)
    )
    seconds = time_left(folder, sweep, queue, workers) if queue.unfinished() else None
    facts = {
        "sweep": str(folder),
        "rule": sweep.rule,
        "runs": len(sweep.jobs),
        "embeddings": len(sweep.embeddings),
        "done": queue.count("done"),
        "failed": queue.count("failed"),
        "left": len(left),
        "steps_left": steps,
        "seconds_left": seconds,
        "runs_by_rule": dict(plan.runs_by_rule),
    }
    phis = count(len(sweep.embeddings), "shared embedding")
    runs = count(len(sweep.jobs), "run") + (f" and {phis}" if sweep.embeddings else "")
    by_rule = "; ".join(f"{rule} {runs}" for rule, runs in plan.runs_by_rule.items())
    of_steps = "" if steps is None or not left else f", {steps} steps in all"
    lines = [
        f"runs that each rule would take: {by_rule}",
        f"this sweep: {runs}, chosen by {sweep.rule} ({RULES[sweep.rule]})",
        f"{facts['done']} done, {facts['failed']} failed, {len(left)} left{of_steps}",
        *plan.notes,
    ]
    at_a_time = f"{count(workers, 'job')} at a time"
    if seconds is not None:
        lines.append(f"time left: about {duration(seconds)} with {at_a_time}, by the finished runs")
    elif queue.unfinished():
        lines.append(f"{at_a_time}; the first finished runs will tell how long the others take")
    return lines, facts


def run_and_show(folder: Path, plan: Prepared, how: Conduct, *, json: bool) -> Chosen:
    """Run what is left, choose, and show both. Exits with 1 where jobs are not done."""
    done = run_announced(folder, plan, how)
    if json:
        say_json(_as_json(folder, plan.sweep, done.tally, done.chosen))
    else:
        _show(folder, plan.sweep, done.tally, done.chosen)
    if done.tally.done < done.tally.jobs:
        raise typer.Exit(1)
    return done.chosen


def run_announced(folder: Path, plan: Prepared, how: Conduct) -> Conducted:
    """Say on stderr what is to come, run what is left with its progress shown, and choose."""
    for line in announcement(folder, plan, how)[0]:
        remark(line)
    with stoppable(), progress_shown(folder, plan.sweep) as listener:
        done = conduct(folder, plan, how, listener=listener)
    if done.unpruned:
        remark(done.unpruned)
    return done


@contextmanager
def progress_shown(folder: Path, sweep: Sweep) -> Iterator[Listener]:
    """Finished runs as progress, with the steps of some that are running; and on stderr a line for
    each job that fails or, where there is no terminal, ends."""
    spoken_of = {"failed", "died"} if sys.stderr.isatty() else {"failed", "died", "done"}
    drawn = 0.0
    with progress_bar() as watch:

        def heard(queue: Queue, event: Event | None) -> None:
            nonlocal drawn
            done, total = queue.count("done"), len(sweep.jobs)
            if event is not None and event.kind in spoken_of:
                note = f": {event.note}" if event.note else ""
                remark(f"[{done}/{total}] {event.kind} {event.id}{note}")
            if event is None and time.monotonic() - drawn > REFRESH:
                drawn = time.monotonic()
                watch("runs", done, total, running(folder, sweep, queue))

        yield heard


def running(folder: Path, sweep: Sweep, queue: Queue) -> str:
    """The running jobs, each with the step it has reached."""
    here, phis = SweepFolder(folder), {phi.id for phi in sweep.embeddings}
    ids = [id for id, state in queue.states.items() if state == "running"]
    said = []
    for id in ids[:NAMED]:
        try:
            losses = (here.embedding(id) if id in phis else here.run(id)).records().losses
        except (OSError, RecordError):  # it is being written
            losses = []
        said.append(f"{id} (step {losses[-1].step})" if losses else id)
    return ", ".join([*said, *([f"{len(ids) - NAMED} more"] if len(ids) > NAMED else [])])


def _as_json(folder: Path, sweep: Sweep, tally: Tally, chosen: Chosen) -> dict[str, Any]:
    return {
        "sweep": str(folder),
        "rule": sweep.rule,
        "runs": tally.jobs,
        "done": tally.done,
        "done_before": tally.already,
        "failed": len(tally.failures),
        "choices": {
            rule: [{**asdict(choice), "top1": chosen.top1(choice)} for choice in choices]
            for rule, choices in chosen.by_rule.items()
        },
        "failures": [asdict(failure) for failure in tally.failures],
        "waiting_for_failed_embedding": list(tally.blocked),
    }


def _show(folder: Path, sweep: Sweep, tally: Tally, chosen: Chosen) -> None:
    if chosen.accuracy:
        _show_choices(sweep, chosen)
        say()
    here = SweepFolder(folder)
    failures = [
        f"{one.job}: {one.error} (traceback: {here.failure_file(one.job)})"
        for one in tally.failures
    ]
    say_some("failed", failures, most=10)
    if tally.blocked:
        say(f"{len(tally.blocked)} runs are waiting for a failed embedding")
    if tally.failures:
        say("once mended, try them again with --retry-failed")
    before = f" ({tally.already} before)" if tally.already else ""
    say(f"{tally.done} of {tally.jobs} runs done{before}; sweep folder: {folder}")
    say(f"report: run `acclimate report {folder}`")


def _show_choices(sweep: Sweep, chosen: Chosen) -> None:
    """Mean accuracy on unseen domains of the chosen runs: a line per algorithm and method, a column
    per rule."""
    rules = sorted(chosen.by_rule, key=lambda rule: rule != sweep.rule)
    several = len(sweep.datasets) > 1
    lines = dict.fromkeys(
        (job.dataset, job.algorithm, job.variant, method)
        for job in sweep.jobs
        for method in job.methods
    )
    rows = []
    for dataset, algorithm, variant, method in lines:
        cells = [_cell(chosen, rule, (dataset, algorithm, variant, method)) for rule in rules]
        usual = method == AlgorithmName.of(algorithm).usual_method
        name = " ".join(filter(None, (algorithm, variant, "" if usual else f"by {method}")))
        rows.append(((dataset,) if several else ()) + (name, *cells))
    header = (("data",) if several else ()) + ("algorithm", *rules)
    say("top-1 on unseen domains in percent, mean over them and over trials, by selection rule")
    say_table(header, rows)


def _cell(chosen: Chosen, rule: str, line: tuple[str, str, str, str]) -> str:
    choices = [
        c for c in chosen.by_rule[rule] if (c.dataset, c.algorithm, c.variant, c.method) == line
    ]
    mean = Estimate.of(map(chosen.top1, choices))
    if mean is None:
        return DASH
    # A mean over some of the domains is no mean over all: it says how many there are.
    part = "" if mean.n == len(choices) else f" ({mean.n} of {len(choices)})"
    return percent(mean.mean) + part
