"""Where each variant of an ablation has data of its own: one table, not one for each."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from acclimate.results.tabulate import AVERAGE, Report, Results, corrected
from acclimate.results.summary import Key


def one_table(report: Report) -> Report:
    """Where each variant has data of its own: one table for all of them instead of one each."""
    sweep = report.sweep
    if sweep is None or sweep.axis is None or len(sweep.datasets) < 2:
        return report
    variants: dict[str, set[str]] = defaultdict(set)
    for job in sweep.jobs:
        variants[job.variant].add(job.dataset)
    if any(len(sets) > 1 for sets in variants.values()):
        return report
    names = {data.name for data in sweep.datasets}
    results = {
        rule: (_merged([one for one in found if one.dataset in names], report.title),)
        for rule, found in report.results.items()
    }
    return replace(report, results=results)


def _merged(found: Sequence[Results], title: str) -> Results:
    columns = tuple(dict.fromkeys(column for one in found for column in one.columns))
    rows = [row for one in found for row in one.rows]
    rows = [replace(row, cells={name: row.cells.get(name) for name in columns}) for row in rows]
    # Values have test data of their own, so that no cell is the best of its column.
    best: dict[str, frozenset[Key]] = dict.fromkeys((*columns, AVERAGE), frozenset())
    first = found[0]
    # Once more, now that all of them stand in one table.
    ordered = corrected(sorted(rows, key=lambda row: row.key.place))
    return Results(title, first.rule, columns, tuple(ordered), first.baseline, best)
