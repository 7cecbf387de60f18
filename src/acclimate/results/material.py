"""What a report is made of: everything that a page, a table or a figure is drawn from, as data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from acclimate.core.errors import require_known
from acclimate.records.doubt import Forecast
from acclimate.records.folder import RunFolder
from acclimate.records.predictions import Predictions
from acclimate.records.rehearsal import Promise, Rehearsal
from acclimate.results.comparison import ALL, Comparison
from acclimate.results.protocol import Axis, Sweep
from acclimate.results.runs import ERM, Key, RunView, scores_of
from acclimate.results.selection import Choice
from acclimate.results.sweep_folder import Failure, LabelCounts


class ClassRows(NamedTuple):
    """Predictions of one method on a data set, to look at class by class."""

    dataset: str
    label: str  # of the method
    where: str
    rows: Predictions


@dataclass(frozen=True)
class Report:
    folder: Path
    title: str
    rules: tuple[str, ...]  # that choose differently, the sweep's own first; ("",) for plain runs
    results: Mapping[str, tuple[Comparison, ...]]  # by rule: per data set, then ALL if several
    runs: tuple[RunView, ...] = ()
    chosen: Mapping[str, tuple[RunView, ...]] = field(default_factory=dict)  # by rule
    sweep: Sweep | None = None
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    waiting: int = 0
    labels: tuple[LabelCounts, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """The first, which figures and sentences are about."""
        return self.rules[0]

    @property
    def overall(self) -> Comparison:
        """The comparison over all data sets by the first rule, which sentences describe."""
        return self.results[self.rule][-1]

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self.results[self.rule])

    @property
    def metric(self) -> str:
        """What all its comparisons are of."""
        return self.overall.metric

    @property
    def tables(self) -> list[Comparison]:
        """One for each data set, by the first rule."""
        return [one for one in self.results[self.rule] if one.dataset != ALL]

    @property
    def finished(self) -> list[RunView]:
        """The finished runs that the first rule chose."""
        return [run for run in self.chosen.get(self.rule, ()) if run.finished is not None]

    @property
    def axis(self) -> Axis | None:
        """What an ablation varies, as its jobs have it: a sweep file keeps no order of places."""
        if self.sweep is None or self.sweep.axis is None:
            return None
        places = self.sweep.axis.places
        order = dict.fromkeys(job.variant for job in self.sweep.jobs if job.variant in places)
        return replace(self.sweep.axis, places={name: places[name] for name in order})

    @property
    def datasets(self) -> Sequence[str]:
        """The data sets of a sweep, in its order. For an ablation with data for each value, those
        of the first and the last value."""
        names = [] if self.sweep is None else [data.name for data in self.sweep.datasets]
        return [names[0], names[-1]] if self.axis is not None and len(names) > 2 else names

    @property
    def runs_by_dataset(self) -> dict[str, list[RunView]]:
        """Finished runs of each data set of a sweep, in a fixed order, so that the first with some
        property can represent its data set. Runs outside of sweeps form one group."""
        runs: dict[str, list[RunView]] = {name: [] for name in self.datasets or [""]}
        for run in sorted(self.finished, key=lambda run: (run.algorithm, run.seed, run.name)):
            if (name := run.dataset if self.sweep is not None else "") in runs:
                runs[name].append(run)
        return runs

    @property
    def rehearsals(self) -> list[tuple[str, RunView, Rehearsal]]:
        """The first rehearsed run of each data set, with its rehearsal."""
        first = {
            name: next(((run, run.rehearsal) for run in runs if run.rehearsal), None)
            for name, runs in self.runs_by_dataset.items()
        }
        return [(name, *rehearsed) for name, rehearsed in first.items() if rehearsed is not None]

    @cached_property
    def by_class(self) -> list[ClassRows]:
        """Of each data set, what the first contender (or the only method) predicted in its first
        trial: on unseen domains, or on the training domains where none is unseen."""
        found, lines = [], [*self.overall.contenders, *self.overall.lines]
        for dataset, runs in self.runs_by_dataset.items():
            usual = [Key.usual(run.algorithm, run.variant) for run in runs]
            key = lines[0].key if lines else next(iter(usual), ERM)
            own = [run for run in runs if run.counts_for(key)]
            parts = []
            for run in (run for run in own if run.replicate == own[0].replicate):
                rows = RunFolder(run.folder).predictions()
                if rows is not None:
                    unseen = np.isin(rows.domain, run.domains["test"]) == bool(lines)
                    parts.append(rows.where((rows.method == key.method) & unseen))
            same = [rows for rows in parts if len(rows) and rows.classes == parts[0].classes]
            if same:
                where = "unseen domains" if lines else "held-out rows of training domains"
                found.append(ClassRows(dataset, key.label, where, Predictions.joined(same)))
        return found

    def limited(self, rules: Sequence[str]) -> "Report":
        """Only these rules, in this order."""
        for rule in rules:
            require_known(rule, self.results, f"{self.folder} has no results by '{rule}'")
        return replace(self, rules=tuple(dict.fromkeys(rules)))


@dataclass(frozen=True)
class PromiseCheck:
    """A run's promise for what `auto` does, and what came of it on its unseen test domains."""

    run: RunView
    promise: Promise
    domains: tuple[str, ...]
    plain: float  # accuracy, a mean over the domains
    auto: float

    @property
    def gain(self) -> float:
        return self.auto - self.plain

    @property
    def expected(self) -> Forecast | None:
        return self.promise.expected()


def check_promises(runs: Iterable[RunView]) -> Iterator[PromiseCheck]:
    """Promised and measured gains of the rehearsed runs that have unseen test domains."""
    for run in runs:
        if run.finished is None or run.rehearsal is None:
            continue
        scores: dict[str, dict[str, float]] = {"none": {}, "auto": {}}
        for score in scores_of(run, "test"):
            if score.method in scores and score.top1 is not None:
                scores[score.method][score.domain] = score.top1
        domains = tuple(name for name in scores["auto"] if name in scores["none"])
        if domains:
            images = int(run.config["adapt"]["points"])
            promise = run.rehearsal.promise(run.rehearsal.chain_for(images), images)
            plain, auto = (fmean(scored[name] for name in domains) for scored in scores.values())
            yield PromiseCheck(run, promise, domains, plain, auto)
