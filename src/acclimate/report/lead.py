"""The first sentences of a report: what a reader with ten seconds should take away."""

from collections.abc import Mapping, Sequence

from acclimate.config import AlgorithmName
from acclimate.report import tables
from acclimate.results.material import Report
from acclimate.results.runs import Key
from acclimate.results.tabulate import ALL, Results, Row

_Rows = Mapping[str, Sequence[Row]]  # algorithm -> its rows in the order of the axis


def lead(report: Report) -> str:
    """Of an ablation what every algorithm scores; otherwise the first method and the baseline."""
    return course(report) or tables.headline(report.summaries[report.rules[0]])


def course(report: Report) -> str:
    """An ablation from its first value to its last; "" for anything else, or with too few runs."""
    sweep = report.sweep
    found = [one for one in report.results.get(report.rules[0], ()) if one.dataset != ALL]
    if sweep is None or sweep.axis is None or len(found) != 1:
        return ""
    places, label = sweep.axis.places, sweep.axis.label
    order = [job.variant for job in sweep.jobs if job.variant in places]
    if None not in places.values():
        order.sort(key=lambda name: places[name] or 0.0)
    rows = _by_algorithm(found[0], list(dict.fromkeys(order)))
    if sum(map(len, rows.values())) < 2:
        return ""
    said = _categories(rows) if None in places.values() else _ends(rows, found[0].baseline)
    return said and f"Accuracy on domains never seen in training, by {label}{said}"


def _by_algorithm(results: Results, order: Sequence[str]) -> _Rows:
    known = {row.key: row for row in results.rows if row.average is not None and not row.published}
    names = sorted(
        {key.algorithm for key in known},
        key=lambda name: (not AlgorithmName.of(name).adaptive, name),
    )
    found = {name: [known.get(Key.usual(name, variant)) for variant in order] for name in names}
    return {name: kept for name, rows in found.items() if (kept := [r for r in rows if r])}


def _categories(rows: _Rows) -> str:
    parts = [
        f"{row.key.variant} {tables.estimate(row.average)} % ({Key.usual(name).label})"
        for name, found in rows.items()
        for row in found
    ]
    return f": {', '.join(parts)}."


def _ends(rows: _Rows, baseline: Key) -> str:
    """Between the first and the last value that all algorithms have."""
    variants = [[row.key.variant for row in found] for found in rows.values()]
    common = [name for name in variants[0] if all(name in other for other in variants)]
    if len(common) < 2:
        return ""
    first, last = common[0], common[-1]
    scores, gaps = [], []
    for name, found in rows.items():
        low, high = ({row.key.variant: row for row in found}[end] for end in (first, last))
        label = Key.usual(name).label
        scores.append(
            f"{label} {tables.estimate(low.average)} to {tables.estimate(high.average)} %"
        )
        if low.test is not None and high.test is not None:
            gaps.append(
                f" {label} less {baseline.label}: {tables.points(low.test.difference)} points at "
                f"{first}, {tables.points(high.test.difference)} at {last}."
            )
    return f", from {first} to {last}: {', '.join(scores)}.{''.join(gaps)}"
