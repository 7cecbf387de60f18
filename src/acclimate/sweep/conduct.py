"""From a defined sweep to its choices: run what is left, choose among the runs, keep the chosen."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from acclimate.core.files import write_document
from acclimate.data.manifest import Manifest
from acclimate.records.folder import is_pruned
from acclimate.results.material import Labels
from acclimate.results.protocol import RULES, Sweep
from acclimate.results.selection import Choice, applicable, candidates, select
from acclimate.results.statistics import Estimate
from acclimate.results.sweep_folder import SweepFolder
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


@dataclass(frozen=True)
class Chosen:
    """The choices of the sweep's own rule and of each other that can choose, and the test accuracy
    of each run."""

    by_rule: Mapping[str, Sequence[Choice]]
    accuracy: Mapping[tuple[str, str, tuple[str, ...]], float]  # by run, method and target

    def top1(self, choice: Choice) -> float | None:
        """On its target; None where the rule could not choose."""
        return self.accuracy.get((choice.run or "", choice.method, choice.target))


@dataclass(frozen=True, kw_only=True)
class Conducted:
    """How it went. `unpruned` says why weights were kept that were to go; "" where none were."""

    tally: Tally
    chosen: Chosen
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
    ahead = [means.get(job.algorithm, typical) for job in sweep.jobs if _ahead(queue, job.id)]
    ahead += [typical for phi in sweep.embeddings if _ahead(queue, phi.id)]
    return sum(ahead) / workers


def _ahead(queue: Queue, id: str) -> bool:
    return queue.states[id] in ("waiting", "running")


def write_labels(folder: Path, sweep: Sweep, manifests: Mapping[str, Manifest]) -> None:
    """Write the rows of each class in each domain, so that a report needs no data."""
    for data in sweep.datasets:
        path = SweepFolder(folder).labels_file(data.digest)
        if not path.exists():
            write_document(path, asdict(Labels.of(data.name, manifests[data.name])))


def choose(folder: Path, sweep: Sweep) -> Chosen:
    """By the sweep's own rule and by each other that the finished runs allow."""
    runs = candidates(folder, sweep)
    # The sweep's own rule is asked in any case: what it cannot choose is then known by name.
    able = applicable(runs, expected=sweep.jobs, asked=sweep.rule)
    rules = [rule for rule in RULES if rule in able or rule == sweep.rule]
    by_rule = {rule: select(runs, rule, expected=sweep.jobs) for rule in rules}
    unseen = {(run.job.id, run.method): run.unseen for run in runs}
    accuracy = {}
    for choice in (choice for choices in by_rule.values() for choice in choices):
        if choice.run is not None:
            scores = unseen[choice.run, choice.method]
            mean = Estimate.of(scores.get(name) for name in choice.target)
            if mean is not None:
                accuracy[choice.run, choice.method, choice.target] = mean.mean
    return Chosen(by_rule, accuracy)


def keep(folder: Path, sweep: Sweep, chosen: Chosen, tally: Tally, *, weights: bool) -> str:
    """Write cards of the chosen runs and, unless all `weights` stay, delete those of the others;
    why they could not be deleted, or ""."""
    from acclimate.sweep.cards import prune, write_cards  # torch comes with it

    choices = chosen.by_rule[sweep.rule]
    write_cards(folder, sweep, choices, sweep.rule)
    if weights:
        return ""
    problem = _against_pruning(folder, sweep, choices, tally)
    if not problem:
        prune(folder, sweep, {choice.run for choice in choices if choice.run is not None})
    return problem


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
