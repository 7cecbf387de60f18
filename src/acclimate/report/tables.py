"""The tables of a report, as grids: a column of a table is a line here, whatever shows it."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from acclimate.config import flat
from acclimate.core.grid import Cell, Grid, number, share
from acclimate.core.text import DASH, count, signed
from acclimate.records.metrics import METRICS, Metric, measured
from acclimate.records.predictions import Predictions
from acclimate.records.rehearsal import Promise
from acclimate.report.figures.label_shares import shifts
from acclimate.results.comparison import AVERAGE, Comparison, Row
from acclimate.results.material import PromiseCheck, Report
from acclimate.results.protocol import Job
from acclimate.results.runs import Key, varied_settings
from acclimate.results.statistics import Estimate, accuracy, difference, in_words
from acclimate.results.sweep_folder import LabelCounts

BOOTSTRAP = "95 % bootstrap over domains"
GAP_CLOSED = "Gap closed, %"  # between the baseline and the highest ceiling


def comparison(results: Comparison) -> Grid:
    """One row per method: unseen domains, training domains, difference to the baseline with its
    test. A column in which no row has a value is left out."""
    base, metric = results.baseline.label, METRICS[results.metric]
    columns: dict[str, Callable[[Row], Cell]] = {
        "Method": _name,
        "Unseen domains": lambda row: accuracy(row.average, metric=metric),
        "Worst unseen domain": lambda row: accuracy(row.worst, metric=metric),
        "Top-5": lambda row: accuracy(row.metrics.get("top-5")),
        "Training domains": lambda row: accuracy(row.seen, metric=metric),
    }
    if results.tested:
        columns |= {
            f"Difference to {base}": lambda row: difference(row.gain, metric),
            "p": lambda row: _p(row.difference.p if row.difference else None),
            "p (Holm)": lambda row: _p(row.difference.p_holm if row.difference else None),
            BOOTSTRAP: lambda row: _interval(row, metric),
            f"Better than {base}": _improvement,
        }
    columns |= {
        GAP_CLOSED: lambda row: accuracy(row.gap_closed),
        "Runs": _runs,
        "Seconds a run": lambda row: number(row.seconds, ",.1f"),
    }
    if len({row.domains for row in results.lines}) > 1:  # else the first sentence has the number
        columns["Domains"] = lambda row: number(row.domains)
    rows = tuple(tuple(cell(row) for cell in columns.values()) for row in results.lines)
    grid = Grid(tuple(columns), rows)
    empty = [at for at in range(1, len(columns)) if all(row[at].text == DASH for row in rows)]
    return grid.without(*(grid.header[at] for at in empty))


def tests_grid(results: Comparison) -> Grid:
    """Its differences and tests alone, for where it stands below a table of results."""
    grid = comparison(results)
    tests = (f"Difference to {results.baseline.label}", "p", "p (Holm)", BOOTSTRAP)
    return grid.without(*(name for name in grid.header[1:] if name not in tests))


def _name(row: Row) -> Cell:
    return Cell(row.key.label, badge=row.badge, remark=row.note)


def _p(value: float | None) -> Cell:
    return Cell(in_words(value), value)


def _interval(row: Row, metric: Metric) -> Cell:
    if row.difference is None or row.difference.bootstrap is None:
        return Cell(DASH)
    low, high = row.difference.bootstrap
    return Cell(f"{metric.write_gap(low)} to {metric.write_gap(high)}", low)


def _improvement(row: Row) -> Cell:
    if row.difference is None or not row.difference.pairs:
        return Cell(DASH)
    improved = row.difference.improved / row.difference.pairs
    return Cell(f"{100 * improved:.0f} % of {row.difference.pairs}", improved)


def _runs(row: Row) -> Cell:
    seeds = f" ({count(row.trials, 'seed')})" if row.trials != row.runs else ""
    return Cell(f"{row.runs}{seeds}", row.runs)


def results_grid(results: Comparison) -> Grid:
    """One row per method, one column per domain and their average; the best of each is marked."""
    columns, metric, rows = (*results.columns, AVERAGE), METRICS[results.metric], []
    for row in results.rows:
        values = {**row.cells, AVERAGE: row.average}
        cells = [
            accuracy(values.get(name), best=results.is_best(row, name), metric=metric)
            for name in columns
        ]
        rows.append((_name(row), *cells))
    return Grid(("Method", *results.columns, "Average"), tuple(rows))


def metrics_grid(results: Comparison) -> Grid:
    """One row per method, one column per metric that any has: means over unseen domains."""
    rows = [
        (
            _name(row),
            *(
                accuracy(row.metrics.get(name), best=row.key in best, metric=METRICS[name])
                for name, best in results.best_by.items()
            ),
        )
        for row in results.lines
    ]
    return Grid(("Method", *map(measured, results.best_by)), tuple(rows))


def classes_grid(rows: Predictions) -> Grid:
    """One row per class that has rows or is predicted."""
    names = ("precision", "recall", "f1")
    shares = np.stack([METRICS[name].of(rows) for name in names], axis=1)
    counts = METRICS["confusion"].of(rows).sum(1)
    lines = tuple(
        (Cell(name), number(int(n), ","), *(share(None if np.isnan(s) else s) for s in own))
        for name, n, own in zip(rows.classes, counts, shares, strict=True)
        if not np.isnan(own[2])
    )
    return Grid(("Class", "Rows", *(f"{name.capitalize()}, %" for name in names)), lines)


def choices_grid(report: Report, rule: str) -> Grid:
    """The draw chosen for each target, with its settings: those that were drawn."""
    header = ("Method", "Data set", "Unseen domains", "Trial", "Draw", "Validation")
    settings = drawn_settings(report)
    rows = []
    for choice in report.choices.get(rule, ()):
        values = settings.get(choice.run or "", {})
        drawn = ", ".join(f"{path} {_value(value)}" for path, value in values.items())
        rows.append(
            (
                Cell(Key(choice.algorithm, choice.method, choice.variant).label),
                Cell(choice.dataset),
                Cell(", ".join(choice.target), long=len(choice.target) > 3),
                number(choice.trial),
                number(choice.draw),
                Cell(METRICS[report.metric].write(choice.score), choice.score),
                number(choice.candidates),
                Cell(drawn or choice.reason or "the only ones", long=True),
            )
        )
    words = frozenset({"Data set", "Unseen domains", "Settings"})
    return Grid((*header, "Draws compared", "Settings"), tuple(rows), words)


def drawn_settings(report: Report) -> dict[str, dict[str, Any]]:
    """By job, the settings that differ between draws of its algorithm, as the run resolved them:
    a sweep leaves open what follows from the rest."""
    resolved = {run.folder.name: run.config for run in report.runs if run.problem is None}
    draws: dict[tuple[object, ...], list[Job]] = defaultdict(list)
    for job in report.sweep.jobs if report.sweep else ():
        draws[job.dataset, job.algorithm, job.variant, job.trial].append(job)
    settings: dict[str, dict[str, Any]] = {}
    for jobs in draws.values():
        paths = varied_settings(job.config for job in jobs)
        for job in jobs:
            values = flat(job.config) | flat(resolved.get(job.id, {}))
            settings[job.id] = {path: values[path] for path in paths if path in values}
    return settings


def _value(value: object) -> str:
    if value is None:
        return "default"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _promise(promise: Promise) -> Cell:
    return difference(Estimate(promise.gain, promise.error, promise.domains))


def checks_grid(checks: Iterable[PromiseCheck]) -> Grid:
    """What rehearsal promised, beside what happened on unseen domains; a row for each run."""
    names = ("Run", "Unseen domains", "auto is")
    header = (*names, "Promised gain", "True gain", "Expected", "Floor", "Auto")
    rows = (
        (
            Cell(one.run.name),
            Cell(", ".join(one.domains), long=len(one.domains) > 3),
            Cell(one.promise.chain),
            _promise(one.promise),
            Cell(signed(one.gain), one.gain),
            share(None if one.expected is None else one.expected.accuracy),
            share(None if one.expected is None else one.expected.floor),
            share(one.auto),
        )
        for one in checks
    )
    return Grid(header, tuple(rows), frozenset({"Unseen domains", "auto is"}))


def labels_grid(labels: LabelCounts) -> Grid:
    """Every domain of a data set: how many rows, how shifted, its most frequent class."""
    header = ("Domain", "Role", "Rows", "Label shift", "Most frequent class", "Its share, %")
    rows = (
        (
            Cell(shift.domain),
            Cell(shift.role or DASH),
            number(shift.rows, ","),
            number(shift.distance, ".2f"),
            Cell(shift.largest),
            share(shift.share),
        )
        for shift in shifts(labels)
    )
    return Grid(header, tuple(rows), frozenset({"Role", "Most frequent class"}))
