"""What the paper printed and what we measured in its place, number by number."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from acclimate.paper.published import AVERAGE, Published, rows
from acclimate.results.comparison import Observation
from acclimate.results.runs import Key
from acclimate.results.statistics import Estimate

TOP_5 = "top-5"


@dataclass(frozen=True)
class Measured:
    """What runs scored on a role's domains of a data set, called as the paper calls it."""

    dataset: str
    role: str  # "train", "val" or "test"
    scores: Sequence[Observation]


@dataclass(frozen=True)
class Pair:
    """A cell of a table: ours and the printed number, either of which may be missing."""

    block: str  # the data set, where a table has a block of columns for each
    row: str
    column: str
    ours: Estimate | None
    printed: Published | None


@dataclass(frozen=True)
class _Place:
    """Where among our scores a printed number's counterpart is."""

    row: str
    column: str
    key: Key
    role: str = "test"
    measure: str = "top-1"
    block: str = ""


def beside(table: str, measured: Iterable[Measured]) -> list[Pair]:
    """Every cell of a published table that the data sets at hand have, row by row; of the table on
    points also the numbers that we alone have."""
    known = list(measured)
    datasets = {one.dataset for one in known}
    # The printed average is over all data sets of its table, and stands beside no other.
    if {one.dataset for one in rows(table)} - {AVERAGE} <= datasets:
        datasets.add(AVERAGE)
    pairs = []
    for printed in rows(table):
        if printed.dataset in datasets:
            for place in _places(printed):
                ours = _estimate(known, printed.dataset, place)
                counterpart = printed if place.measure == _measure(printed) else None
                pairs.append(Pair(place.block, place.row, place.column, ours, counterpart))
    return [*pairs, *_further_points(known, pairs)] if table == "points" else pairs


def _further_points(known: Sequence[Measured], pairs: Sequence[Pair]) -> Iterator[Pair]:
    printed = {(pair.block, pair.row) for pair in pairs}
    for one in known:
        for points in dict.fromkeys(score.key.variant for score in one.scores):
            for place in _of_points(one.dataset, points):
                ours = _estimate(known, one.dataset, place)
                if ours is not None and (place.block, place.row) not in printed:
                    yield Pair(place.block, place.row, place.column, ours, None)


def _of_points(dataset: str, points: str) -> list[_Place]:
    key = Key.usual("da-erm", points)  # on the validation domains, which the appendix chose by
    kinds = ("top-1", TOP_5)
    return [_Place(points, kind, key, "val", kind, dataset) for kind in kinds]


def _measure(printed: Published) -> str:
    """What the number is, which Table 4 misnames for LT-ImageNet."""
    if printed.table == "4":
        return TOP_5 if printed.dataset == "lt-imagenet" else "top-1"
    return TOP_5 if printed.column.endswith(TOP_5) else "top-1"


def _places(printed: Published) -> list[_Place]:
    name, dataset, column = printed.algorithm, printed.dataset, printed.column
    measure = _measure(printed)
    if printed.table == "1":
        return [_Place(Key.usual(name).label, dataset, Key.usual(name))]
    if printed.table == "2":
        role = column.split()[0]
        key = Key.usual(name)
        return [_Place(key.label, column, key, role, measure, dataset)]
    if printed.table == "points":
        return [one for one in _of_points(dataset, column.split()[0]) if one.measure == measure]
    key = Key.usual(name, column)
    if column == "random":  # a control of the prototypes
        key = Key(name, "wrong-embedding", "prototype")
    kinds = ("top-1", TOP_5)
    return [_Place(f"{dataset}, {kind}", column, key, measure=kind) for kind in kinds]


def _estimate(known: Sequence[Measured], dataset: str, place: _Place) -> Estimate | None:
    sets = [
        _by_trial(one.scores, place)
        for one in known
        if one.role == place.role and dataset in (one.dataset, AVERAGE)
    ]
    if not sets:
        return None
    trials = set.intersection(*(set(found) for found in sets))
    return Estimate.of(fmean(found[trial] for found in sets) for trial in sorted(trials))


def _by_trial(scores: Iterable[Observation], place: _Place) -> dict[int, float]:
    """Mean over domains; of a trial only where it has every domain that any trial has."""
    by_trial: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in scores:
        value = one.others.get(TOP_5) if place.measure == TOP_5 else one.value
        if one.key == place.key and value is not None:
            by_trial[one.trial][one.domain].append(value)
    domains: set[str] = {name for values in by_trial.values() for name in values}
    whole: Mapping[int, Mapping[str, list[float]]] = {
        trial: values for trial, values in by_trial.items() if set(values) == domains
    }
    return {trial: fmean(map(fmean, values.values())) for trial, values in whole.items()}
