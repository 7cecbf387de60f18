"""From a defined sweep to its choices, as `sweep` and `ablate` show it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from acclimate.cli.output import percent, say, say_json, say_table, stoppable
from acclimate.cli.sweep_live import duration, progress_shown
from acclimate.core.layout import is_pruned
from acclimate.data.manifest import Manifest
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.selection import Candidate, Choice, applicable, candidates, select
from acclimate.results.sweep_folder import Failure, SweepFolder
from acclimate.sweep.driver import Tally, look, run_sweep
from acclimate.sweep.launchers import LaunchOptions, chosen_launcher, expected_workers
from acclimate.sweep.opening import check_folder, write_labels
from acclimate.sweep.queue import Queue

if TYPE_CHECKING:
    from acclimate.sweep.estimate import Estimate

LISTED = 10  # failures that are shown one by one


@dataclass(frozen=True)
class Plan:
    """A sweep with its data, and what is to be said of it before it starts."""

    sweep: Sweep
    manifests: Mapping[str, Manifest]
    places: Mapping[str, Path]
    runs_by_rule: Mapping[str, int]
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How to carry it out."""

    launch: LaunchOptions
    retry_failed: bool = False
    extend: bool = False
    prune: bool = False
    dry_run: bool = False
    json: bool = False


@dataclass(frozen=True)
class Chosen:
    """The choices of the sweep's own rule and of each other that can choose, and the test accuracy
    of each run."""

    by_rule: Mapping[str, Sequence[Choice]]
    accuracy: Mapping[tuple[str, tuple[str, ...]], float]  # by run and target


def conduct(folder: Path, plan: Plan, how: Conduct) -> Chosen | None:
    """Run what is left, choose, and show both. Exits with 1 where jobs are not done; with
    `dry_run` nothing is written and None returned."""
    sweep = plan.sweep
    launch = chosen_launcher(how.launch)
    check_folder(folder, sweep, extend=how.extend)
    queue = look(folder, sweep, retry_failed=how.retry_failed)
    _announce(folder, plan, how, queue)
    if how.dry_run:
        return None
    with stoppable():
        with progress_shown(folder, sweep, already=queue.count("done")) as listener:
            tally = run_sweep(
                folder,
                sweep,
                plan.places,
                launch=launch,
                retry_failed=how.retry_failed,
                extend=how.extend,
                listener=listener,
            )
        write_labels(folder, sweep, plan.manifests)
        chosen = choose(folder, sweep)
        _keep(folder, sweep, chosen, tally, how)
    if how.json:
        say_json(_as_json(folder, sweep, tally, chosen))
    else:
        _show(folder, sweep, tally, chosen)
    if tally.done < tally.jobs:
        raise typer.Exit(1)
    return chosen


def choose(folder: Path, sweep: Sweep) -> Chosen:
    found = candidates(folder, sweep)
    # The sweep's own rule is asked in any case: what it cannot choose is then known by name.
    able = applicable(found, expected=sweep.jobs, asked=sweep.rule)
    rules = [rule for rule in RULES if rule in able or rule == sweep.rule]
    by_rule = {rule: select(found, rule, expected=sweep.jobs) for rule in rules}
    runs = {candidate.run: candidate for candidate in found}
    taken = [choice for choices in by_rule.values() for choice in choices]
    accuracy = {}
    for choice in taken:
        if choice.run is not None:
            value = _accuracy(runs[choice.run], choice.target)
            if value is not None:
                accuracy[choice.run, choice.target] = value
    return Chosen(by_rule, accuracy)


def _accuracy(run: Candidate, target: tuple[str, ...]) -> float | None:
    known = [value for name in target if (value := run.unseen.get(name)) is not None]
    return fmean(known) if known else None


def _keep(folder: Path, sweep: Sweep, chosen: Chosen, tally: Tally, how: Conduct) -> None:
    from acclimate.sweep.cards import prune, write_cards

    choices = chosen.by_rule[sweep.rule]
    write_cards(folder, sweep, choices, sweep.rule)
    if not how.prune:
        return
    problem = _against_pruning(folder, sweep, choices, tally)
    if problem:
        typer.echo(problem, err=True)
        return
    prune(folder, sweep, {choice.run for choice in choices if choice.run is not None})


def _against_pruning(folder: Path, sweep: Sweep, choices: Sequence[Choice], tally: Tally) -> str:
    """Why pruning might take weights that nothing is left in place of; "" where it does not."""
    if tally.done < tally.jobs:
        return "nothing is pruned before every job is done"
    for choice in choices:
        if choice.run is None:
            return f"nothing is pruned, as {sweep.rule} cannot choose: {choice.reason}"
        if is_pruned(SweepFolder(folder).run(choice.run).path):
            return (
                f"nothing is pruned, as the weights of the chosen {choice.run} were pruned before; "
                f"delete its folder and repeat the sweep to have them again"
            )
    return ""


def _announce(folder: Path, plan: Plan, how: Conduct, queue: Queue) -> None:
    """The runs and the time it takes: on stdout where that is all, else on stderr."""
    sweep, counts = plan.sweep, _counts(plan.sweep, queue)
    expected = _expected(folder, plan, how, queue) if queue.unfinished() else None
    if how.dry_run and how.json:
        facts = {"sweep": str(folder), "rule": sweep.rule, **counts}
        seconds = None if expected is None or isinstance(expected, str) else asdict(expected)
        say_json({**facts, "runs_by_rule": dict(plan.runs_by_rule), "estimate": seconds})
        return
    phis = counts["embeddings"]
    shared = f" and {_several(phis, 'shared embedding')}" if phis else ""
    runs = _several(counts["runs"], "run") + shared
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
        side_by_side = _several(expected_workers(how.launch)[0], "job")
        left = duration(expected.wall)
        text.append(f"time left: about {left} with {side_by_side} at a time ({expected.how})")
    for line in text:
        if how.dry_run:
            say(line)
        else:
            typer.echo(line, err=True)


def _several(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"


def _expected(folder: Path, plan: Plan, how: Conduct, queue: Queue) -> "Estimate | str":
    """How long it takes, or why that is not known. Jobs that failed and rest are not counted."""
    import torch

    from acclimate.sweep.estimate import estimate

    seconds = {}
    for job in plan.sweep.jobs:
        if queue.states[job.id] == "done":
            finished = SweepFolder(folder).run(job.id).finished
            if finished is not None:
                seconds[job.id] = finished.seconds
    on_gpus = how.launch.device != "cpu"
    if not seconds and how.launch.elsewhere and on_gpus and not torch.cuda.is_available():
        return "jobs run elsewhere, and there is no GPU here to time steps on"
    (workers, full_speed), threads = expected_workers(how.launch), torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # as a job on the CPU has; on a GPU it makes no difference
        return estimate(
            _without_failed(plan.sweep, queue),
            plan.manifests,
            device=how.launch.device,
            max_parallel=workers,
            full_speed=full_speed,
            done=seconds,
        )
    except RuntimeError as error:  # no room on a GPU, as a rule: no reason not to start
        return f"steps cannot be timed: {str(error).partition(chr(10))[0]}"
    finally:
        torch.set_num_threads(threads)


def _without_failed(sweep: Sweep, queue: Queue) -> Sweep:
    jobs = [job for job in sweep.jobs if queue.states[job.id] not in ("failed", "blocked")]
    needed = {job.needs for job in jobs}
    phis = [phi for phi in sweep.embeddings if phi.id in needed]
    return replace(sweep, jobs=tuple(jobs), embeddings=tuple(phis))


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
            rule: [
                {
                    **asdict(choice),
                    "top1": chosen.accuracy.get((choice.run or "", choice.target)),
                }
                for choice in choices
            ]
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
    """Mean accuracy on unseen domains of the chosen runs: a line per algorithm, a column per
    rule."""
    rules = sorted(chosen.by_rule, key=lambda rule: rule != sweep.rule)
    several = len(sweep.datasets) > 1
    keys = dict.fromkeys((job.dataset, job.algorithm, job.variant) for job in sweep.jobs)
    rows = []
    for dataset, algorithm, variant in keys:
        cells = [_cell(chosen, rule, (dataset, algorithm, variant)) for rule in rules]
        name = f"{algorithm} {variant}".strip()
        rows.append(((dataset,) if several else ()) + (name, *cells))
    header = (("data",) if several else ()) + ("algorithm", *rules)
    say("top-1 on unseen domains in percent, mean over them and over trials, by selection rule")
    say_table(header, rows)


def _cell(chosen: Chosen, rule: str, key: tuple[str, str, str]) -> str:
    choices = [c for c in chosen.by_rule[rule] if (c.dataset, c.algorithm, c.variant) == key]
    values = [chosen.accuracy.get((c.run or "", c.target)) for c in choices]
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    # A mean over some of the domains is no mean over all: it says how many there are.
    part = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return percent(fmean(known)) + part


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
