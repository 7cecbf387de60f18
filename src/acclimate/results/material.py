"""What a report is made of: everything that a page, a table or a figure is drawn from, as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from acclimate.core.errors import unknown
from acclimate.results.comparison import ALL, Comparison
from acclimate.results.protocol import Axis, Sweep
from acclimate.results.runs import RunView
from acclimate.results.selection import Choice
from acclimate.results.sweep_folder import Failure

if TYPE_CHECKING:
    from acclimate.data.manifest import Manifest


@dataclass(frozen=True)
class Labels:
    """How many rows each class has in each domain of a data set."""

    @dataclass(frozen=True)
    class Domain:
        role: str | None
        counts: tuple[int, ...]  # in the order of the classes
        group: str = ""  # such as its continent, where the data say so

    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, Domain] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, manifest: "Manifest") -> "Labels":
        from acclimate.data.inspection import all_domains, label_counts  # a report needs no data

        roles, groups = manifest.roles(), manifest.groups()
        counts = label_counts(manifest).tolist()
        domains = {
            domain: cls.Domain(roles.get(domain), tuple(row), groups.get(domain, ""))
            for domain, row in zip(all_domains(manifest), counts, strict=True)
        }
        return cls(name, manifest.classes, domains)


@dataclass(frozen=True)
class Report:
    folder: Path
    title: str
    rules: tuple[str, ...]  # the sweep's own first; ("",) for a folder of plain runs
    results: Mapping[str, tuple[Comparison, ...]]  # by rule: per data set, then ALL if several
    runs: tuple[RunView, ...] = ()
    chosen: Mapping[str, tuple[RunView, ...]] = field(default_factory=dict)  # by rule
    sweep: Sweep | None = None
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    waiting: int = 0
    labels: tuple[Labels, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """The first, which figures and sentences are about."""
        return self.rules[0]

    @property
    def overall(self) -> Comparison:
        """Of all data sets, by the first rule: what sentences are about."""
        return self.results[self.rule][-1]

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
        """Of a sweep, in its order; of an ablation with data for each value, those of the first and
        the last value: what lies between looks like something in between."""
        names = [] if self.sweep is None else [found.name for found in self.sweep.datasets]
        return [names[0], names[-1]] if self.axis is not None and len(names) > 2 else names

    @property
    def runs_by_dataset(self) -> dict[str, list[RunView]]:
        """Finished runs of each data set of a sweep, in a fixed order: the first that has what is
        wanted speaks for its data set. Runs on their own are taken together."""
        runs = sorted(self.finished, key=lambda run: (run.algorithm, run.seed, run.name))
        found: dict[str, list[RunView]] = {name: [] for name in self.datasets or [""]}
        for run in runs:
            if (name := run.dataset if self.sweep is not None else "") in found:
                found[name].append(run)
        return found


def limited(report: Report, rules: Sequence[str]) -> Report:
    """Only these rules, in this order."""
    for rule in rules:
        if rule not in report.rules:
            raise unknown(f"{report.folder} has no results by '{rule}'", rule, report.rules)
    return replace(report, rules=tuple(dict.fromkeys(rules)))


def alike(report: Report) -> list[str]:
    """The further rules that give the same tables as the first: with one draw there is nothing to
    choose, and all of them do."""
    tables = {
        rule: [replace(one, rule="") for one in report.results[rule]] for rule in report.rules
    }
    return [rule for rule in report.rules[1:] if tables[rule] == tables[report.rule]]
