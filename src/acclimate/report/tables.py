"""The tables of a report, as grids: a column of a table is a line here, whatever shows it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from acclimate.core.text import DASH, count, percent, signed
from acclimate.records.rehearsal import Rehearsal
from acclimate.report.figures.label_shares import shifts
from acclimate.report.grid import Cell, Grid, accuracy, difference, number, share
from acclimate.results.comparison import AVERAGE, Comparison, Row
from acclimate.results.material import Labels
from acclimate.results.rehearsals import Kept
from acclimate.results.runs import Key
from acclimate.results.selection import Choice
from acclimate.results.statistics import Estimate, in_words

GAP_CLOSED = "Gap closed, %"  # between the baseline and the highest ceiling
_FEW = 6  # columns that stand side by side on a page


def comparison(found: Comparison) -> Grid:
    """One row per method: unseen domains, training domains, difference to the baseline."""
    base, lines = found.baseline.label, found.lines
    header = ["Method", "Unseen domains", "Worst unseen domain", "Top-5", "Training domains"]
    header += [f"Difference to {base}", f"Better than {base}", GAP_CLOSED, "Runs", "Domains"]
    grid = Grid(tuple(header), tuple(tuple(_cells(row)) for row in lines))
    if not any(row.top5 for row in lines):
        grid = grid.without("Top-5")
    if not found.tested:
        grid = grid.without(f"Difference to {base}", f"Better than {base}")
    if not any(row.gap_closed for row in lines):
        grid = grid.without(GAP_CLOSED)
    if len({row.domains for row in lines}) < 2:  # the first sentence has the number
        grid = grid.without("Domains")
    return grid


def further(found: Comparison) -> Grid:
    """The comparison without what a table of results has as well."""
    return comparison(found).without("Unseen domains", f"Difference to {found.baseline.label}")


def _cells(row: Row) -> Iterable[Cell]:
    yield Cell(row.key.label, badge=row.badge)
    yield from map(accuracy, (row.average, row.worst, row.top5, row.seen))
    yield difference(row.gain)
    if row.difference is not None and row.gain is not None:
        improved = row.difference.improved / row.difference.pairs
        yield Cell(f"{100 * improved:.0f} % of {row.difference.pairs}", improved)
    else:
        yield Cell(DASH)
    yield accuracy(row.gap_closed)
    seeds = f" ({count(row.trials, 'seed')})" if row.trials != row.runs else ""
    yield Cell(f"{row.runs}{seeds}", row.runs)
    yield number(row.domains)


def results_grid(found: Comparison, columns: Sequence[str] | None = None) -> Grid:
    """One row per method, one column per domain and their average; the best of each is marked."""
    shown = (*found.columns, AVERAGE) if columns is None else tuple(columns)
    header = ("Method", *("Average" if name == AVERAGE else name for name in shown))
    rows = []
    for row in found.rows:
        values = {**row.cells, AVERAGE: row.average}
        cells = [accuracy(values.get(name), best=found.is_best(row, name)) for name in shown]
        rows.append((_name(row), *cells))
    return Grid(header, tuple(rows))


def tests_grid(found: Comparison) -> Grid:
    """Each method's difference to its baseline, with its test."""
    header = ("Method", f"Difference to {found.baseline.label}", "p", "p (Holm)", "Pairs")
    tested = [row for row in found.rows if row.gain is not None and found.tested]
    return Grid(header, tuple((_name(row), *_test(row)) for row in tested))


def whole_grid(found: Comparison) -> Grid:
    """Both in one, as a page has room for: accuracies, their average and the difference."""
    grid = results_grid(found)
    gain, _, p, _ = tests_grid(found).header[1:]
    first, *names, last = grid.header
    overall = [last, gain, p] if found.tested else [last]
    # Where domains are many, what matters most must not lie beyond the edge of the page.
    early = len(found.columns) > _FEW
    rows = []
    for row, (name, *domains, average) in zip(found.rows, grid.rows, strict=True):
        points, _, p_holm, _ = _test(row)
        summed = [average, points, p_holm] if found.tested else [average]
        rows.append((name, *summed, *domains) if early else (name, *domains, *summed))
    header = (first, *overall, *names) if early else (first, *names, *overall)
    return Grid(header, tuple(rows))


def _name(row: Row) -> Cell:
    return Cell(row.key.label, badge=row.badge, remark=row.note)


def _test(row: Row) -> tuple[Cell, Cell, Cell, Cell]:
    """Difference, p, p after Holm's correction, pairs."""
    test = row.difference
    if test is None or test.gain is None:
        return Cell(DASH), Cell(DASH), Cell(DASH), Cell(DASH)
    return (
        difference(test.gain),
        Cell(in_words(test.p), test.p),
        Cell(in_words(test.p_holm), test.p_holm),
        number(test.pairs),
    )


def choices_grid(
    found: Sequence[Choice],
    configs: Mapping[str, Mapping[str, Any]],
    drawn: Mapping[str, Sequence[str]],
) -> Grid:
    """The draw chosen for each target, with its settings: those that were `drawn`."""
    header = ("Method", "Data set", "Unseen domains", "Trial", "Draw", "Validation")
    rows = []
    for choice in found:
        config = configs.get(choice.run or "", {})
        paths = drawn.get(choice.dataset, ())
        settings = ", ".join(f"{path} {_value(config[path])}" for path in paths if path in config)
        rows.append(
            (
                Cell(Key(choice.algorithm, choice.method, choice.variant).label),
                Cell(choice.dataset),
                Cell(", ".join(choice.target), long=len(choice.target) > 3),
                number(choice.trial),
                number(choice.draw),
                share(choice.score),
                number(choice.candidates),
                Cell(settings or choice.reason or "the only ones", long=True),
            )
        )
    words = frozenset({"Data set", "Unseen domains", "Settings"})
    return Grid((*header, "Draws compared", "Settings"), tuple(rows), words)


def _value(value: object) -> str:
    if value is None:
        return "default"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def promises_grid(found: Rehearsal) -> Grid:
    """A rehearsal's promises: by chain, number of images and how label frequencies were drawn."""
    header = ("Adapted by", "Images", "Label frequencies", "Accuracy", "Gain over plain, points")
    rows = []
    for promise in found.promises:
        chosen = found.chosen[promise.n] == promise.chain
        gain = Estimate(promise.gain, promise.error, promise.domains)
        rows.append(
            (
                Cell(promise.chain + ", used by auto" * chosen),
                number(promise.n),
                Cell(promise.frequencies),
                share(promise.accuracy),
                replace(difference(gain), best=chosen),
            )
        )
    return Grid(header, tuple(rows), frozenset({"Label frequencies"}))


def kept_grid(found: Iterable[Kept]) -> Grid:
    """What rehearsal promised, beside what happened on unseen domains; a row for each run."""
    header = ("Run", "Unseen domains", "auto is", "Promised gain", "True gain", "Expected", "Auto")
    rows = (
        (
            Cell(one.run.name),
            Cell(", ".join(one.domains), long=len(one.domains) > 3),
            Cell(one.promise.chain),
            difference(Estimate(one.promise.gain, one.promise.error, one.promise.domains)),
            Cell(signed(one.gain), one.gain),
            Cell(f"{percent(one.promise.low)} to {percent(one.promise.high)}", one.promise.low),
            share(one.auto),
        )
        for one in found
    )
    return Grid(header, tuple(rows), frozenset({"Unseen domains", "auto is"}))


def labels_grid(labels: Labels) -> Grid:
    """Every domain of a data set: how many rows, how shifted, its most frequent class."""
    rows = tuple(
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
    header = ("Domain", "Role", "Rows", "Label shift", "Most frequent class", "Its share, %")
    return Grid(header, rows, frozenset({"Role", "Most frequent class"}))
