"""From a defined sweep to its choices, as `sweep` and `ablate` show it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from acclimate.cli.output import remark, say, say_json, say_table, stoppable
from acclimate.cli.sweep_live import progress_shown
from acclimate.config import AlgorithmName
from acclimate.core.wording import DASH, count, duration, percent
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.statistics import Estimate
from acclimate.results.sweep_folder import Failure, SweepFolder
from acclimate.sweep.conduct import Chosen, Conduct, Conducted, Prepared, conduct
from acclimate.sweep.driver import Tally, look
from acclimate.sweep.launchers import expected_workers
from acclimate.sweep.opening import check_folder
from acclimate.sweep.queue import Queue

if TYPE_CHECKING:
    from acclimate.sweep.estimate import TimeLeft

LISTED = 10  # failures that are shown one by one


def announce(folder: Path, plan: Prepared, how: Conduct, *, json: bool) -> None:
    """The runs and the time they would take; nothing is written."""
    lines, facts = announcement(folder, plan, how)
    if json:
        say_json(facts)
        return
    for line in lines:
        say(line)


def announcement(folder: Path, plan: Prepared, how: Conduct) -> tuple[list[str], dict[str, Any]]:
    """What `announce` says: in words, and for JSON."""
    check_folder(folder, plan.sweep, extend=how.extend)
    queue = look(folder, plan.sweep, retry_failed=how.retry_failed)
    expected = _expected(folder, plan, how, queue)
    facts = {"sweep": str(folder), "rule": plan.sweep.rule, **_counts(plan.sweep, queue)}
    seconds = asdict(expected) if expected and not isinstance(expected, str) else None
    facts |= {"runs_by_rule": dict(plan.runs_by_rule), "estimate": seconds}
    return _announcement(plan, how, queue, expected), facts


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
    lines, facts = announcement(folder, plan, how)
    for line in lines:
        remark(line)
    shown = progress_shown(folder, plan.sweep, already=facts["done"])
    with stoppable(), shown as listener:
        done = conduct(folder, plan, how, listener=listener)
    if done.unpruned:
        remark(done.unpruned)
    return done


def _expected(folder: Path, plan: Prepared, how: Conduct, queue: Queue) -> "TimeLeft | str | None":
    from acclimate.sweep.estimate import expected_time  # torch comes with it

    if not queue.unfinished():
        return None
    return expected_time(folder, plan.sweep, plan.manifests, how.launch, queue)


def _announcement(
    plan: Prepared, how: Conduct, queue: Queue, expected: "TimeLeft | str | None"
) -> list[str]:
    sweep, counts = plan.sweep, _counts(plan.sweep, queue)
    phis = counts["embeddings"]
    shared = f" and {count(phis, 'shared embedding')}" if phis else ""
    runs = count(counts["runs"], "run") + shared
    needed = "; ".join(f"{rule} {runs}" for rule, runs in plan.runs_by_rule.items())
    text = [
        f"runs that each rule would take: {needed}",
        f"this sweep: {runs}, chosen by {sweep.rule} ({RULES[sweep.rule]})",
        f"{counts['done']} done, {counts['failed']} failed, {counts['left']} left",
        *plan.notes,
    ]
    if isinstance(expected, str):
        text.append(f"time left: not known before the first runs are done ({expected})")
    elif expected is not None:
        side_by_side = count(expected_workers(how.launch)[0], "job")
        left = duration(expected.wall)
        text.append(f"time left: about {left} with {side_by_side} at a time ({expected.how})")
    return text


def _counts(sweep: Sweep, queue: Queue) -> dict[str, int]:
    left = sum(queue.states[job.id] == "waiting" for job in sweep.jobs)
    return {
        "runs": len(sweep.jobs),
        "embeddings": len(sweep.embeddings),
        "done": queue.count("done"),
        "failed": queue.count("failed"),
        "left": left,
    }


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
    _show_failures(folder, tally)
    before = f" ({tally.already} before)" if tally.already else ""
    say(f"{tally.done} of {tally.jobs} runs done{before}; sweep folder: {folder}")
    say(f"report: run `acclimate report {folder}`")


def _show_choices(sweep: Sweep, chosen: Chosen) -> None:
    """Mean accuracy on unseen domains of the chosen runs: a line per algorithm and method, a column
    per rule."""
    rules = sorted(chosen.by_rule, key=lambda rule: rule != sweep.rule)
    several = len(sweep.datasets) > 1
    keys = dict.fromkeys(
        (job.dataset, job.algorithm, job.variant, method)
        for job in sweep.jobs
        for method in job.methods
    )
    rows = []
    for dataset, algorithm, variant, method in keys:
        cells = [_cell(chosen, rule, (dataset, algorithm, variant, method)) for rule in rules]
        usual = method == AlgorithmName.of(algorithm).usual_method
        name = " ".join(filter(None, (algorithm, variant, "" if usual else f"by {method}")))
        rows.append(((dataset,) if several else ()) + (name, *cells))
    header = (("data",) if several else ()) + ("algorithm", *rules)
    say("top-1 on unseen domains in percent, mean over them and over trials, by selection rule")
    say_table(header, rows)


def _cell(chosen: Chosen, rule: str, key: tuple[str, str, str, str]) -> str:
    choices = [
        c for c in chosen.by_rule[rule] if (c.dataset, c.algorithm, c.variant, c.method) == key
    ]
    found = Estimate.of(map(chosen.top1, choices))
    if found is None:
        return DASH
    # A mean over some of the domains is no mean over all: it says how many there are.
    part = "" if found.n == len(choices) else f" ({found.n} of {len(choices)})"
    return percent(found.mean) + part


def _show_failures(folder: Path, tally: Tally) -> None:
    for failure in tally.failures[:LISTED]:
        say(_line(folder, failure))
    if len(tally.failures) > LISTED:
        say(f"and {len(tally.failures) - LISTED} more failed; see {SweepFolder(folder).failures}")
    if tally.blocked:
        say(f"{len(tally.blocked)} runs are waiting for a failed embedding")
    if tally.failures:
        say("once mended, try them again with --retry-failed")


def _line(folder: Path, failure: Failure) -> str:
    where = SweepFolder(folder).failure_file(failure.job)
    return f"failed {failure.job}: {failure.error} (traceback: {where})"
