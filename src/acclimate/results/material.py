"""What a report is made of: everything that a page, a table or a figure is drawn from, as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from acclimate.core.errors import unknown
from acclimate.results.protocol import Sweep
from acclimate.results.runs import RunView
from acclimate.results.selection import Choice
from acclimate.results.summary import Summary
from acclimate.results.sweep_folder import Failure
from acclimate.results.tabulate import Results


@dataclass(frozen=True)
class Labels:
    """How many rows each class has in each domain of a data set."""

    @dataclass(frozen=True)
    class Domain:
        role: str
        counts: tuple[int, ...]  # in the order of the classes

    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, Domain] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    folder: Path
    title: str
    rules: tuple[str, ...]  # the sweep's own first; ("",) for a folder of plain runs
    summaries: Mapping[str, Summary]  # by rule: of the chosen runs, variants apart
    results: Mapping[str, tuple[Results, ...]]  # by rule; one per data set, then ALL if several
    runs: tuple[RunView, ...] = ()
    sweep: Sweep | None = None
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    waiting: int = 0
    labels: tuple[Labels, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> Summary:
        """Under the first rule."""
        return self.summaries[self.rules[0]]


def limited(report: Report, rules: Sequence[str]) -> Report:
    """Only these rules, in this order."""
    for rule in rules:
        if rule not in report.rules:
            raise unknown(f"{report.folder} has no results by '{rule}'", rule, report.rules)
    return replace(
        report,
        rules=tuple(dict.fromkeys(rules)),
        summaries={rule: report.summaries[rule] for rule in rules},
        results={rule: report.results[rule] for rule in rules},
        choices={rule: report.choices.get(rule, ()) for rule in rules},
    )


def alike(report: Report) -> list[str]:
    """The further rules that give the same tables as the first: with one draw there is nothing to
    choose, and all of them do."""

    def tables(rule: str) -> list[Results]:
        return [replace(one, rule="") for one in report.results.get(rule, ())]

    return [rule for rule in report.rules[1:] if tables(rule) == tables(report.rules[0])]
