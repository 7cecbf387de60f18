"""Printed results as data, the paper's and those of the field that published.toml has: in percent,
as printed, slips included and noted; and as rows next to ours: marked, never the best, never tested
against."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from acclimate.config import read_toml
from acclimate.core.errors import unknown
from acclimate.results.comparison import ALL, Comparison, Row
from acclimate.results.material import Report
from acclimate.results.runs import Key
from acclimate.results.statistics import Estimate

SOURCE = "Dubey et al., CVPR 2021"  # whose tables those with numbers are, for captions
AVERAGE = "average"


@dataclass(frozen=True)
class Published:
    """One printed number."""

    table: str
    algorithm: str
    dataset: str
    column: str
    mean: float
    se: float | None  # the printed ±; None where there is none
    note: str = ""


DATASETS: Mapping[str, tuple[str, ...]] = {  # ours -> further spellings
    "vlcs": (),
    "pacs": (),
    "office-home": ("offhome",),
    "domainnet": ("dnet",),
    "terra-incognita": ("terra", "terrainc"),
    "lt-imagenet": ("dg-imagenet",),
    "geo-yfcc": (),
}

_SMALL_SCALE = ("vlcs", "pacs", "office-home", "domainnet", "terra-incognita", AVERAGE)
_TABLE_1 = """
erm        76.7 0.9  83.2 0.7  67.2 0.5  41.1 0.8  46.2 0.3  62.9 0.6
irm        76.9 0.5  82.8 0.5  67.0 0.4  35.7 1.9  43.8 1.0  61.2 0.8
group-dro  77.3 0.2  83.3 0.3  66.8 0.1  33.0 0.5  42.0 0.6  60.4 0.4
mixup      78.2 0.6  83.9 0.8  68.3 0.4  40.2 0.4  46.2 0.5  63.3 0.7
mldg       76.8 0.4  82.6 0.6  67.7 0.3  42.2 0.6  46.0 0.4  63.0 0.4
coral      77.3 0.3  83.3 0.5  68.6 0.1  42.1 0.7  47.7 0.3  63.8 0.3
mmd        76.1 0.7  83.1 0.7  67.3 0.2  38.7 0.5  45.8 0.6  62.2 0.6
cdann      73.8 1.1  81.4 1.3  64.2 0.5  39.5 0.2  40.9 0.7  60.1 0.9
da-erm     78.0 0.2  84.1 0.5  67.9 0.4  43.6 0.3  47.3 0.5  64.1 0.8
da-mmd     78.6 0.5  84.4 0.3  68.2 0.1  43.3 0.5  47.9 0.4  64.5 0.5
da-coral   78.5 0.4  84.5 0.7  68.9 0.4  43.9 0.3  48.1 0.3  64.7 0.6
"""
# Averages that the printed accuracies do not give. Those were rounded before, which can account
# for less than 0.1: for all but cdann's 0.14.
_RECOMPUTED = {
    "group-dro": "60.5",
    "mixup": "63.4",
    "mldg": "63.1",
    "cdann": "60.0",
    "da-erm": "64.2",
    "da-coral": "64.8",
}

_LARGE_SCALE = ("train top-1", "train top-5", "test top-1", "test top-5")
_TABLE_2 = """
erm     70.9 90.3  53.7 77.5  28.5 56.3  22.4 48.2
coral   71.1 89.3  53.5 76.2  25.5 51.2  21.8 46.4
mmd     70.9 88.0  52.8 76.4  25.4 50.9  21.8 46.2
da-erm  73.4 91.8  56.1 80.5  28.3 55.8  23.4 49.1
"""

_EMBEDDINGS = ("none", "random", "mean", "softmax", "prototype")
_TABLE_4 = """
lt-imagenet  76.9 75.3 77.9 78.8 80.5
geo-yfcc     22.4 21.3 23.0 23.5 23.4
"""
_TOP_5 = "printed as top-1; these are top-5 figures (prototype: the top-5 of Table 2)"
_OTHER_ERM = f"{_TOP_5}; Table 2 has 77.5 for the same model"

_POINTS = (50, 100, 250, 500, 1000, 2000)
_TABLE_POINTS = """
lt-imagenet  --        56.0/80.1 56.1/80.2 56.2/80.2 --        --
geo-yfcc     23.7/49.0 23.3/49.1 23.4/49.3 23.6/49.3 23.4/49.1 23.4/49.2
"""
_OTHER_NAME = "printed as DG-ImageNet; the text beside it says LT-ImageNet"


def rows(table: str) -> tuple[Published, ...]:
    """Every number of a table, row by row; what is printed as a dash is not there."""
    if table not in TABLES:
        raise unknown(f"there is no published table '{table}'", table, TABLES)
    return tuple(TABLES[table]())


def for_dataset(name: str) -> tuple[Published, ...]:
    """What is published on a data set, however its name is spelt; nothing for any other."""
    known = _SPELLINGS.get(plain(name))
    return tuple(row for table in TABLES for row in rows(table) if row.dataset == known)


def _table_1() -> Iterator[Published]:
    for algorithm, *printed in _lines(_TABLE_1):
        means, errors = map(float, printed[::2]), map(float, printed[1::2])
        for dataset, mean, se in zip(_SMALL_SCALE, means, errors, strict=True):
            note = ""
            if dataset == AVERAGE and algorithm in _RECOMPUTED:
                note = f"the five printed accuracies average {_RECOMPUTED[algorithm]}"
            yield Published("1", algorithm, dataset, "top-1", mean, se, note)


def _table_2() -> Iterator[Published]:
    places = [(name, column) for name in ("lt-imagenet", "geo-yfcc") for column in _LARGE_SCALE]
    for algorithm, *printed in _lines(_TABLE_2):
        for (dataset, column), mean in zip(places, printed, strict=True):
            yield Published("2", algorithm, dataset, column, float(mean), None)


def _table_4() -> Iterator[Published]:
    for dataset, *printed in _lines(_TABLE_4):
        for column, mean in zip(_EMBEDDINGS, printed, strict=True):
            algorithm = "erm" if column == "none" else "da-erm"
            note = ""
            if dataset == "lt-imagenet":
                note = _OTHER_ERM if column == "none" else _TOP_5
            yield Published("4", algorithm, dataset, column, float(mean), None, note)


def _table_points() -> Iterator[Published]:
    for dataset, *printed in _lines(_TABLE_POINTS):
        note = _OTHER_NAME if dataset == "lt-imagenet" else ""
        for points, cell in zip(_POINTS, printed, strict=True):
            if cell == "--":
                continue
            for kind, mean in zip(("top-1", "top-5"), cell.split("/"), strict=True):
                column = f"{points} {kind}"
                yield Published("points", "da-erm", dataset, column, float(mean), None, note)


def _table_of_field(name: str) -> Iterator[Published]:
    for algorithm, *printed in _lines(_FIELD["tables"][name]["rows"]):
        pairs = zip(printed[::2], printed[1::2], strict=True)
        for dataset, (mean, se) in zip(_FIELD["columns"], pairs, strict=True):
            error = None if se == "-" else float(se)
            yield Published(name, algorithm, dataset, "top-1", float(mean), error)


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def plain(name: str) -> str:
    """A name in lower case, with letters and digits alone."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


_FIELD = read_toml(Path(__file__).with_suffix(".toml"))
TABLES: Mapping[str, Callable[[], Iterable[Published]]] = {
    "1": _table_1,
    "2": _table_2,
    "4": _table_4,
    "points": _table_points,
    **{name: partial(_table_of_field, name) for name in _FIELD["tables"]},
}
_SPELLINGS = {
    plain(spelling): name for name, others in DATASETS.items() for spelling in (name, *others)
}


@dataclass(frozen=True)
class _Origin:
    """Of a table that shows accuracy on unseen domains."""

    column: str
    where: str  # it stands, and how models were selected
    trials: int
    source: str = SOURCE
    variant: str = ""  # tells its rows from others of the same algorithm


_UNSEEN = {
    "1": _Origin("top-1", "Table 1 (leave-one-out)", 8),
    "2": _Origin("test top-1", "Table 2 (validation-domains)", 1),
    **{
        name: _Origin("top-1", one["where"], one["trials"], one["source"], one["name"])
        for name, one in _FIELD["tables"].items()
    },
}


def with_published(report: Report) -> Report:
    """Under every rule, each row saying which one the paper used."""
    results = {rule: tuple(map(_with_rows, found)) for rule, found in report.results.items()}
    if any(row.published for found in results.values() for one in found for row in one.rows):
        return replace(report, results=results)
    names = ", ".join(dict.fromkeys(one.dataset for found in results.values() for one in found))
    return replace(report, notes=(*report.notes, f"No published rows for {names or 'this'}."))


def _with_rows(results: Comparison) -> Comparison:
    if results.metric != "top-1":
        return results
    names = results.columns if results.dataset == ALL else (results.dataset,)
    printed = {name: _unseen(for_dataset(name)) for name in names}
    keys = dict.fromkeys(key for found in printed.values() for key in found)
    make = _over_data_sets if results.dataset == ALL else _of_data_set
    return replace(results, rows=(*results.rows, *(make(results, key, printed) for key in keys)))


_Printed = Mapping[Key, Published]


def _unseen(numbers: Iterable[Published]) -> dict[Key, Published]:
    return {
        Key.usual(one.algorithm, _UNSEEN[one.table].variant): one
        for one in numbers
        if one.table in _UNSEEN and one.column == _UNSEEN[one.table].column
    }


def _of_data_set(results: Comparison, key: Key, printed: Mapping[str, _Printed]) -> Row:
    """Without the domains of a data set: the paper prints only their mean."""
    one = printed[results.dataset][key]
    cells = dict.fromkeys(results.columns)
    return Row(key, cells, _estimate(one), None, published=True, note=_note([one]))


def _over_data_sets(results: Comparison, key: Key, printed: Mapping[str, _Printed]) -> Row:
    of_key = {name: printed[name].get(key) for name in results.columns}
    cells = {name: None if one is None else _estimate(one) for name, one in of_key.items()}
    # The printed average is over the five data sets of its table, and stands for no others.
    table = {(one.algorithm, one.dataset): one for one in rows("1")}
    mine = {one.dataset for one in of_key.values() if one is not None and one.table == "1"}
    theirs = {dataset for _, dataset in table} - {AVERAGE}
    average = table.get((key.algorithm, AVERAGE)) if mine == theirs else None
    used = [one for one in (*of_key.values(), average) if one is not None]
    mean = None if average is None or len(mine) < len(of_key) else _estimate(average)
    return Row(key, cells, mean, None, published=True, note=_note(used))


def _estimate(one: Published) -> Estimate:
    trials = _UNSEEN[one.table].trials
    return Estimate(one.mean / 100, None if one.se is None else one.se / 100, trials)


def _note(published: Iterable[Published]) -> str:
    numbers = list(published)
    tables = sorted({one.table for one in numbers})
    where, source = " and ".join(_UNSEEN[t].where for t in tables), _UNSEEN[tables[0]].source
    remarks = dict.fromkeys(one.note for one in numbers if one.note)
    return "; ".join([f"published by {source}, {where}, not measured here", *remarks])
