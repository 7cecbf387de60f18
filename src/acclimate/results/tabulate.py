"""For each data set and selection rule, who scored what, and how sure that is."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from acclimate.core.wording import percent
from acclimate.results.observations import Frame, Observation, Pairs, Scores, by_method, paired
from acclimate.results.runs import Key
from acclimate.results.statistics import Estimate, holm, paired_p
from acclimate.results.summary import against, in_order

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
    """One method, or one that a paper has published."""

    key: Key
    cells: Mapping[str, Estimate | None]
    average: Estimate | None
    test: Test | None
    published: bool = False
    note: str = ""

    @property
    def badge(self) -> str:
        """What sets it off from our methods: "control", "ceiling", "published", or nothing."""
        return "published" if self.published else self.key.badge


@dataclass(frozen=True)
class Results:
    """One data set under one rule: a column per test domain; or `ALL`: a column per data set."""

    dataset: str
    rule: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline: Key
    best: Mapping[str, frozenset[Key]]  # column, and AVERAGE -> the best of our own methods

    def is_best(self, row: Row, column: str) -> bool:
        return not row.published and row.key in self.best.get(column, ())


_Table = Mapping[Key, Scores]


def tabulate(
    observations: Iterable[Observation], frames: Mapping[str, Frame], *, rule: str, baseline: Key
) -> tuple[Results, ...]:
    """One table per data set, and one over all of them where there are several."""
    of_set: dict[str, list[Observation]] = {name: [] for name in frames}
    for one in observations:
        of_set[one.dataset].append(one)
    tables: dict[str, _Table] = {
        name: {key: {} for key in frames[name].keys} | by_method(found)
        for name, found in of_set.items()
    }
    found = [_one(name, tables[name], frames[name], rule, baseline) for name in frames]
    keys = [key for table in tables.values() for key in table]
    if len(set(keys)) < len(keys):  # otherwise no method has more than one data set
        found.append(_all(found, tables, frames, rule, baseline))
    return tuple(found)


def _one(name: str, table: _Table, frame: Frame, rule: str, baseline: Key) -> Results:
    def row(key: Key) -> Row:
        scores = table[key]
        cells = {
            column: Estimate.of(found[column].top1 for found in scores.values() if column in found)
            for column in frame.columns
        }
        average = Estimate.of(frame.averages(scores).values())
        return Row(key, cells, average, _test(key, baseline, [table]))

    return _results(name, rule, frame.columns, map(row, in_order(table, baseline)), baseline)


def _all(
    found: Sequence[Results],
    tables: Mapping[str, _Table],
    frames: Mapping[str, Frame],
    rule: str,
    baseline: Key,
) -> Results:
    """A data set counts as much as any other, however many domains it has."""
    averages = {one.dataset: {row.key: row.average for row in one.rows} for one in found}

    def row(key: Key) -> Row:
        trials: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for name, table in tables.items():
            for (_, trial), average in frames[name].averages(table.get(key, {})).items():
                trials[trial][name].append(average)
        complete = [by_set for by_set in trials.values() if len(by_set) == len(tables)]
        overall = Estimate.of(fmean(map(fmean, by_set.values())) for by_set in complete)
        cells = {name: averages[name].get(key) for name in tables}
        return Row(key, cells, overall, _test(key, baseline, list(tables.values())))

    keys = {key for table in tables.values() for key in table}
    return _results(ALL, rule, tuple(tables), map(row, in_order(keys, baseline)), baseline)


def _test(key: Key, baseline: Key, tables: Sequence[_Table]) -> Test | None:
    """Paired over everything that both scored; `None` where that is nothing."""
    other = against(key, baseline, {known for table in tables for known in table})
    if other == key:
        return None
    by_dataset = [paired(table.get(key, {}), table.get(other, {})) for table in tables]
    difference = Estimate.of(_gains(by_dataset))
    if difference is None:
        return None
    flat = [
        (one.top1, rival.top1)
        for found in by_dataset
        for pairs in found.values()
        for one, rival in pairs
    ]
    return Test(difference, len(flat), paired_p(flat), None)


def _gains(by_dataset: Sequence[Pairs]) -> Iterable[float]:
    """The mean difference of each trial, in which data sets count equally."""
    # Under one name, seeds may have data of their own; several names meet in the trial.
    several = len(by_dataset) > 1
    gains: dict[object, list[float]] = defaultdict(list)
    for found in by_dataset:
        of_trial: dict[object, list[float]] = defaultdict(list)
        for replicate, pairs in found.items():
            of_trial[replicate[1] if several else replicate] += [
                one.top1 - rival.top1 for one, rival in pairs
            ]
        for trial, values in of_trial.items():
            gains[trial].append(fmean(values))
    return map(fmean, gains.values())


def _results(
    dataset: str, rule: str, columns: tuple[str, ...], rows: Iterable[Row], baseline: Key
) -> Results:
    found = _corrected(_compared(list(rows)))
    best = {column: _best({row.key: row.cells[column] for row in found}) for column in columns}
    best[AVERAGE] = _best({row.key: row.average for row in found})
    return Results(dataset, rule, columns, tuple(found), baseline, best)


def _compared(rows: Sequence[Row]) -> Sequence[Row]:
    """Where no method has a rival, a ceiling's own test would be a test of nothing."""
    rivals = any(row.key.kind == "method" and row.test is not None for row in rows)
    return rows if rivals else [replace(row, test=None) for row in rows]


def _corrected(rows: Sequence[Row]) -> list[Row]:
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
        key: float(percent(value.mean))
        for key, value in values.items()
        if key.kind == "method" and value is not None
    }
    top = max(means.values(), default=0.0)
    return frozenset(key for key, mean in means.items() if mean == top and len(means) > 1)


def merged(found: Sequence[Results], title: str) -> Results:
    """One table instead of one each, for variants that have data of their own."""
    columns = tuple(dict.fromkeys(column for one in found for column in one.columns))
    rows = [
        replace(row, cells={name: row.cells.get(name) for name in columns})
        for one in found
        for row in one.rows
    ]
    # Values have test data of their own, so that no cell is the best of its column.
    best: dict[str, frozenset[Key]] = dict.fromkeys((*columns, AVERAGE), frozenset())
    # Once more, now that all of them stand in one table.
    ordered = _corrected(sorted(rows, key=lambda row: row.key.place))
    return Results(title, found[0].rule, columns, tuple(ordered), found[0].baseline, best)
