"""Results as data: for each data set and selection rule, who scored what, and how sure that is.

A `Report` is everything that a page, a table or a figure is drawn from; `load` makes it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from acclimate.core.errors import unknown
from acclimate.results.protocol import Sweep
from acclimate.results.runs import scores_of
from acclimate.results.selection import Choice
from acclimate.results.statistics import holm, paired_p
from acclimate.results.summary import Estimate, Key, RunView, Summary, against
from acclimate.results.sweep_folder import Failure

AVERAGE = "average"
ALL = "all data sets"


@dataclass(frozen=True)
class Test:
    """A row less the baseline, paired over (domain, trial)."""

    difference: Estimate  # mean of the per-trial mean differences; its error is over trials
    pairs: int
    p: float | None  # `None` where it cannot be computed
    p_holm: float | None


@dataclass(frozen=True)
class Row:
    key: Key
    cells: Mapping[str, Estimate | None]
    average: Estimate | None
    test: Test | None
    published: bool = False
    note: str = ""


@dataclass(frozen=True)
class Results:
    """One data set under one rule: a column per test domain; or `ALL`: a column per data set."""

    dataset: str
    rule: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline: Key
    best: Mapping[str, frozenset[Key]]  # column, and AVERAGE -> the best of our own methods


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
    runs: tuple[RunView, ...]
    sweep: Sweep | None
    rules: tuple[str, ...]  # the sweep's own first; ("",) for a folder of plain runs
    summaries: Mapping[str, Summary]  # by rule: of the chosen runs, variants apart
    results: Mapping[str, tuple[Results, ...]]  # by rule; one per data set, then ALL if several
    choices: Mapping[str, tuple[Choice, ...]]
    failures: tuple[Failure, ...]
    waiting: int
    labels: tuple[Labels, ...]
    notes: tuple[str, ...]


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
        choices={rule: report.choices[rule] for rule in rules},
    )


def alike(report: Report) -> list[str]:
    """The further rules that give the same tables as the first: with one draw there is nothing to
    choose, and all of them do."""

    def tables(rule: str) -> list[Results]:
        return [replace(one, rule="") for one in report.results.get(rule, ())]

    return [rule for rule in report.rules[1:] if tables(rule) == tables(report.rules[0])]


@dataclass(frozen=True)
class Observation:
    """What one method scored on one unseen domain, once."""

    dataset: str
    key: Key
    data: str  # digest: seeds may have drawn data of their own under one name
    trial: int
    domain: str
    top1: float


@dataclass(frozen=True)
class Frame:
    """What a table should hold, so that what is missing shows as missing."""

    columns: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    needed: Mapping[str, frozenset[str]] = field(default_factory=dict)  # data -> its own columns

    def average(self, data: str, scores: Mapping[str, float]) -> float | None:
        """Over all columns of the data; over fewer it would be another quantity."""
        needed = self.needed.get(data, frozenset(self.columns))
        return fmean(scores[name] for name in needed) if needed and needed <= set(scores) else None


_Replicate = tuple[str, int]  # data, trial
_Scores = dict[_Replicate, dict[str, float]]  # -> domain -> accuracy
_Table = dict[Key, _Scores]


def observations(runs: Iterable[RunView]) -> list[Observation]:
    """What finished runs scored on their test domains."""
    return [
        Observation(
            dataset=run.dataset,
            key=Key(run.algorithm, score.method, run.variant),
            # The trials of a sweep share its data, whatever the digest is made from.
            data=run.data if run.trial is None else "",
            trial=run.replicate,
            domain=score.domain,
            top1=score.top1,
        )
        for run in runs
        for score in scores_of(run, "test")
        if score.top1 is not None
    ]


def frames_of(observations: Iterable[Observation]) -> dict[str, Frame]:
    """For runs that nobody planned: what any of them scored is what all should have scored."""
    found = list(observations)
    frames = {}
    for dataset in sorted({one.dataset for one in found}):
        needed: dict[str, set[str]] = defaultdict(set)
        for one in found:
            if one.dataset == dataset:
                needed[one.data].add(one.domain)
        columns = tuple(sorted({name for names in needed.values() for name in names}))
        frames[dataset] = Frame(columns, needed={d: frozenset(n) for d, n in needed.items()})
    return frames


def domains_of_a_trial(frames: Iterable[Frame]) -> dict[tuple[str, str], int]:
    """How many test domains a complete trial has, over all data sets, by algorithm and variant."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for frame in frames:
        for key in frame.keys:
            needed = frame.needed.get("", frozenset(frame.columns))
            counts[key.algorithm, key.variant] += len(needed)
    return counts


def tabulate(
    observations: Iterable[Observation], frames: Mapping[str, Frame], *, rule: str, baseline: Key
) -> tuple[Results, ...]:
    """One table per data set, and one over all of them where there are several."""
    tables = _tables(observations, frames)
    found = [_one(name, tables[name], frames[name], rule, baseline) for name in frames]
    keys = [key for table in tables.values() for key in table]
    if len(set(keys)) < len(keys):  # otherwise no method has more than one data set
        found.append(_all(found, tables, frames, rule, baseline))
    return tuple(found)


def _tables(observations: Iterable[Observation], frames: Mapping[str, Frame]) -> dict[str, _Table]:
    """Runs that are the same but for their folder are averaged and count once."""
    values: dict[tuple[str, Key, _Replicate, str], list[float]] = defaultdict(list)
    for one in observations:
        values[one.dataset, one.key, (one.data, one.trial), one.domain].append(one.top1)
    tables: dict[str, _Table] = {
        name: {key: {} for key in frame.keys} for name, frame in frames.items()
    }
    for (dataset, key, replicate, domain), same in values.items():
        scores = tables[dataset].setdefault(key, {})
        scores.setdefault(replicate, {})[domain] = fmean(same)
    return tables


def _one(name: str, table: _Table, frame: Frame, rule: str, baseline: Key) -> Results:
    def row(key: Key) -> Row:
        scores = table[key]
        cells = {
            column: Estimate.of(found.get(column) for found in scores.values())
            for column in frame.columns
        }
        averages = _averages(scores, frame).values()
        other = against(key, baseline, table)
        test = None if other == key else _test([_pairs(scores, table.get(other, {}))])
        return Row(key, cells, Estimate.of(averages), test)

    return _results(name, rule, frame.columns, map(row, _ordered(table, baseline)), baseline)


def _all(
    found: Sequence[Results],
    tables: Mapping[str, _Table],
    frames: Mapping[str, Frame],
    rule: str,
    baseline: Key,
) -> Results:
    """A data set counts as much as any other, however many domains it has."""
    keys = {key for table in tables.values() for key in table}
    rows = {results.dataset: {row.key: row for row in results.rows} for results in found}

    def row(key: Key) -> Row:
        scores = [table.get(key, {}) for table in tables.values()]
        cells = {name: rows[name][key].average if key in rows[name] else None for name in tables}
        trials: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for name, one in zip(tables, scores, strict=True):
            for (_, trial), average in _averages(one, frames[name]).items():
                trials[trial][name].append(average)
        complete = [by_set for by_set in trials.values() if len(by_set) == len(tables)]
        averages = [fmean(map(fmean, by_set.values())) for by_set in complete]
        other = against(key, baseline, keys)
        rivals = [table.get(other, {}) for table in tables.values()]
        test = None if other == key else _test(list(map(_pairs, scores, rivals)))
        return Row(key, cells, Estimate.of(averages), test)

    return _results(ALL, rule, tuple(tables), map(row, _ordered(keys, baseline)), baseline)


def _averages(scores: _Scores, frame: Frame) -> dict[_Replicate, float]:
    averages = {
        replicate: frame.average(replicate[0], found) for replicate, found in scores.items()
    }
    return {replicate: mean for replicate, mean in averages.items() if mean is not None}


def _ordered(keys: Iterable[Key], baseline: Key) -> list[Key]:
    return sorted(keys, key=lambda key: (key.place[0], key != baseline, key.place))


_Pairs = dict[_Replicate, list[tuple[float, float]]]  # -> (mine, theirs) per domain


def _pairs(mine: _Scores, theirs: _Scores) -> _Pairs:
    found = {
        replicate: [
            (value, theirs[replicate][domain])
            for domain, value in scores.items()
            if domain in theirs[replicate]
        ]
        for replicate, scores in mine.items()
        if replicate in theirs
    }
    return {replicate: pairs for replicate, pairs in found.items() if pairs}


def _test(by_dataset: Sequence[_Pairs]) -> Test | None:
    """Paired over everything that both scored; data sets count equally in the difference."""
    # Under one name, seeds may have data of their own; several names meet in the trial.
    several = len(by_dataset) > 1
    gains: dict[object, list[list[float]]] = defaultdict(list)
    for found in by_dataset:
        of_trial: dict[object, list[float]] = defaultdict(list)
        for replicate, pairs in found.items():
            of_trial[replicate[1] if several else replicate] += [a - b for a, b in pairs]
        for trial, values in of_trial.items():
            gains[trial].append(values)
    difference = Estimate.of(fmean(map(fmean, values)) for values in gains.values())
    if difference is None:
        return None
    flat = [pair for found in by_dataset for pairs in found.values() for pair in pairs]
    return Test(difference, len(flat), paired_p(flat), None)


def _results(
    dataset: str, rule: str, columns: tuple[str, ...], rows: Iterable[Row], baseline: Key
) -> Results:
    found = corrected(_compared(list(rows)))
    best = {column: _best({row.key: row.cells[column] for row in found}) for column in columns}
    best[AVERAGE] = _best({row.key: row.average for row in found})
    return Results(dataset, rule, columns, tuple(found), baseline, best)


def _compared(rows: Sequence[Row]) -> Sequence[Row]:
    """Where no method has a rival, a ceiling's own test would be a test of nothing."""
    rivals = any(row.key.kind == "method" and row.test is not None for row in rows)
    return rows if rivals else [replace(row, test=None) for row in rows]


def corrected(rows: Sequence[Row]) -> list[Row]:
    """Holm over the methods of a table; controls and ceilings are no claims."""
    family = {
        row.key: row.test.p
        for row in rows
        if row.key.kind == "method" and row.test is not None and row.test.p is not None
    }
    fixed = dict(zip(family, holm(list(family.values())), strict=True))
    return [
        replace(row, test=replace(row.test, p_holm=fixed[row.key]))
        if row.test is not None and row.key in fixed
        else row
        for row in rows
    ]


def _best(values: Mapping[Key, Estimate | None]) -> frozenset[Key]:
    """The best of the methods, with those that print the same; of one alone there is no best."""
    means = {
        key: round(round(100 * value.mean, 9), 1)
        for key, value in values.items()
        if key.kind == "method" and value is not None
    }
    top = max(means.values(), default=0.0)
    return frozenset(key for key, mean in means.items() if mean == top and len(means) > 1)
