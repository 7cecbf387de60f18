"""From a defined sweep to its choices: run what is left, choose among the runs, keep the chosen."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from acclimate.core.files import write_document
from acclimate.data.manifest import Manifest
from acclimate.records.folder import is_pruned
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.selection import Choice, applicable, candidates, select
from acclimate.results.statistics import Estimate
from acclimate.results.sweep_folder import LabelCounts, SweepFolder
from acclimate.sweep.driver import Listener, Queue, Tally, run_sweep, silent
from acclimate.sweep.launchers import chosen_launcher
from acclimate.sweep.settings import LaunchOptions


@dataclass(frozen=True)
class Prepared:
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


# What the sweep's own rule and each other that can choose chose, with the mean accuracy on the
# target; None where the rule could not choose or the accuracy is not known.
Choices = Mapping[str, Mapping[Choice, float | None]]


@dataclass(frozen=True, kw_only=True)
class Conducted:
    """How it went. `unpruned` says why weights were kept that were to go; "" where none were."""

    tally: Tally
    chosen: Choices
    unpruned: str = ""


def conduct(
    folder: Path, plan: Prepared, how: Conduct, *, listener: Listener = silent
) -> Conducted:
    """Run what is left of the sweep, choose by every rule that can, and keep what it chose."""
    sweep = plan.sweep
    tally = run_sweep(
        folder,
        sweep,
        plan.places,
        launch=chosen_launcher(how.launch),
        retry_failed=how.retry_failed,
        extend=how.extend,
        listener=listener,
    )
    write_labels(folder, sweep, plan.manifests)
    chosen = choose(folder, sweep)
    unpruned = keep(folder, sweep, chosen, tally, weights=not how.prune)
    return Conducted(tally=tally, chosen=chosen, unpruned=unpruned)


def time_left(folder: Path, sweep: Sweep, queue: Queue, workers: int) -> float | None:
    """Seconds until the sweep is done with `workers` jobs at a time; None while no run is finished.

    A run that is left takes what finished ones of its algorithm took on average, or else what all
    did; an embedding takes as long as a run."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for job in sweep.jobs:
        if queue.states[job.id] == "done":
            finished = SweepFolder(folder).run(job.id).finished
            if finished is not None:
                seconds[job.algorithm].append(finished.seconds)
    if not seconds:
        return None
    means = {algorithm: fmean(values) for algorithm, values in seconds.items()}
    typical = fmean(means.values())
    algorithms = {job.id: job.algorithm for job in sweep.jobs}
    ahead = queue.ids("waiting", "running")
    return sum(means.get(algorithms.get(id, ""), typical) for id in ahead) / workers


def write_labels(folder: Path, sweep: Sweep, manifests: Mapping[str, Manifest]) -> None:
    """Write the rows of each class in each domain, so that a report needs no data."""
    for data in sweep.datasets:
        path = SweepFolder(folder).labels_file(data.digest)
        if not path.exists():
            write_document(path, asdict(LabelCounts.of(data.name, manifests[data.name])))


def choose(folder: Path, sweep: Sweep) -> Choices:
    """By the sweep's own rule and by each other that the finished runs allow."""
    runs = candidates(folder, sweep)
    unseen = {(run.job.id, run.method): run.unseen for run in runs}

    def top1(choice: Choice) -> float | None:
        scores = unseen.get((choice.run or "", choice.method), {})
        mean = Estimate.of(scores.get(name) for name in choice.target)
        return None if mean is None else mean.mean

    # The sweep's own rule is asked in any case: what it cannot choose is then known by name.
    rules = {*applicable(runs, expected=sweep.jobs, asked=sweep.rule), sweep.rule}
    return {
        rule: {choice: top1(choice) for choice in select(runs, rule, expected=sweep.jobs)}
        for rule in RULES
        if rule in rules
    }


def keep(folder: Path, sweep: Sweep, chosen: Choices, tally: Tally, *, weights: bool) -> str:
    """Write cards of the chosen runs and, unless all `weights` stay, delete those of the others;
    why they could not be deleted, or ""."""
    from acclimate.sweep.cards import prune, write_cards  # torch comes with it

    choices = [*chosen[sweep.rule]]
    write_cards(folder, sweep, choices, sweep.rule)
    if weights:
        return ""
    if tally.done < tally.jobs:
        return "nothing is pruned before every job is done"
    runs = set()
    for choice in choices:
        if choice.run is None:
            return f"nothing is pruned, as {sweep.rule} cannot choose: {choice.reason}"
        if is_pruned(SweepFolder(folder).run(choice.run).path):
            return (
                f"nothing is pruned, as the weights of the chosen {choice.run} were pruned before; "
                f"delete its folder and repeat the sweep to have them again"
            )
        runs.add(choice.run)
    prune(folder, sweep, runs)
    return ""
