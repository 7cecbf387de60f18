"""What a figure of a report is drawn from, and what it becomes: an `Illustration`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from acclimate.report.figures.canvas import Drawing, palette
from acclimate.results.material import Report
from acclimate.results.runs import RunView
from acclimate.results.summary import Summary
from acclimate.results.tabulate import ALL, Results


@dataclass(frozen=True)
class Illustration:
    """A figure as it is shown. Figures with one heading belong together; `name`, which the table
    of figures gives, is its file's name and the start of its ids."""

    heading: str
    caption: str
    drawing: Drawing
    name: str = ""


@dataclass(frozen=True)
class Subject:
    """A report under its first rule."""

    report: Report

    @property
    def rule(self) -> str:
        return self.report.rules[0]

    @property
    def summary(self) -> Summary:
        return self.report.summary

    @property
    def results(self) -> list[Results]:
        """A table for each data set."""
        return [one for one in self.report.results.get(self.rule, ()) if one.dataset != ALL]

    @cached_property
    def colours(self) -> Mapping[str, str]:
        """A colour per algorithm, the same in every figure."""
        runs = {run.algorithm for run in self.report.runs if run.problem is None}
        lines = {line.key.algorithm for line in self.summary.lines}
        tables = [one for found in self.report.results.values() for one in found]
        rows = {row.key.algorithm for one in tables for row in one.rows}
        return palette(runs | lines | rows, self.summary.baseline.algorithm)

    @property
    def varies(self) -> bool:
        """Whether it is an ablation."""
        return self.report.sweep is not None and self.report.sweep.axis is not None

    @property
    def datasets(self) -> Sequence[str]:
        """Of a sweep, in its order; of an ablation with data for each value, those of the first and
        the last value: what lies between looks like something in between."""
        sweep = self.report.sweep
        names = [] if sweep is None else [found.name for found in sweep.datasets]
        return [names[0], names[-1]] if self.varies and len(names) > 2 else names

    @property
    def runs_by_dataset(self) -> dict[str, list[RunView]]:
        """Finished runs of each data set of a sweep, in a fixed order: the first that has what is
        wanted speaks for its data set. Runs on their own are taken together."""
        runs = sorted(self.summary.finished, key=lambda run: (run.algorithm, run.seed, run.name))
        found: dict[str, list[RunView]] = {name: [] for name in self.datasets or [""]}
        for run in runs:
            if (name := run.dataset if self.report.sweep is not None else "") in found:
                found[name].append(run)
        return found


def of_data(dataset: str, among: int) -> str:
    """The start of a caption, where there are several data sets."""
    return f"Data set {dataset}. " if among > 1 and dataset else ""
