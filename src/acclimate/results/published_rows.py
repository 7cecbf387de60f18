"""The paper's printed rows next to ours: marked, never the best, never tested against."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from acclimate.results.material import Report
from acclimate.results.published import AVERAGE as PRINTED_AVERAGE
from acclimate.results.published import SOURCE, Published, for_dataset, rows
from acclimate.results.runs import Key
from acclimate.results.statistics import Estimate
from acclimate.results.tabulate import ALL, Results, Row

# The tables that show accuracy on unseen domains: the column, how models were selected, trials.
_UNSEEN = {"1": ("top-1", "leave-one-out", 8), "2": ("test top-1", "validation-domains", 1)}


def with_published(report: Report) -> Report:
    """Under every rule, each row saying which one the paper used."""
    results = {rule: tuple(map(_with_rows, found)) for rule, found in report.results.items()}
    if any(row.published for found in results.values() for one in found for row in one.rows):
        return replace(report, results=results)
    names = ", ".join(dict.fromkeys(one.dataset for found in results.values() for one in found))
    return replace(report, notes=(*report.notes, f"The paper has no rows for {names or 'this'}."))


def _with_rows(results: Results) -> Results:
    names = results.columns if results.dataset == ALL else (results.dataset,)
    printed = {name: _unseen(for_dataset(name)) for name in names}
    keys = dict.fromkeys(key for found in printed.values() for key in found)
    make = _over_data_sets if results.dataset == ALL else _of_data_set
    return replace(results, rows=(*results.rows, *(make(results, key, printed) for key in keys)))


_Printed = Mapping[Key, Published]


def _unseen(found: Iterable[Published]) -> dict[Key, Published]:
    return {
        Key.usual(one.algorithm): one
        for one in found
        if one.table in _UNSEEN and one.column == _UNSEEN[one.table][0]
    }


def _of_data_set(results: Results, key: Key, printed: Mapping[str, _Printed]) -> Row:
    """The paper prints no domains of a data set, only their mean."""
    one = printed[results.dataset][key]
    cells = dict.fromkeys(results.columns)
    return Row(key, cells, _estimate(one), None, published=True, note=_note([one]))


def _over_data_sets(results: Results, key: Key, printed: Mapping[str, _Printed]) -> Row:
    found = {name: printed[name].get(key) for name in results.columns}
    cells = {name: None if one is None else _estimate(one) for name, one in found.items()}
    # The printed average is over the five data sets of its table, and stands for no others.
    table = {(one.algorithm, one.dataset): one for one in rows("1")}
    mine = {one.dataset for one in found.values() if one is not None and one.table == "1"}
    theirs = {dataset for _, dataset in table} - {PRINTED_AVERAGE}
    average = table.get((key.algorithm, PRINTED_AVERAGE)) if mine == theirs else None
    shown = [one for one in (*found.values(), average) if one is not None]
    mean = None if average is None or len(mine) < len(found) else _estimate(average)
    return Row(key, cells, mean, None, published=True, note=_note(shown))


def _estimate(one: Published) -> Estimate:
    return Estimate(one.mean / 100, None if one.se is None else one.se / 100, _UNSEEN[one.table][2])


def _note(found: Iterable[Published]) -> str:
    shown = list(found)
    tables = sorted({one.table for one in shown})
    where = " and ".join(f"Table {table} ({_UNSEEN[table][1]})" for table in tables)
    remarks = dict.fromkeys(one.note for one in shown if one.note)
    return "; ".join([f"published by {SOURCE}, {where}, not measured here", *remarks])
