"""The tables of a report, as grids: a column of a table is a line here, whatever shows it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from acclimate.core.text import DASH, count, percent, signed
from acclimate.records.rehearsal import Promise, Rehearsal
from acclimate.report.figures.label_shares import shifts
from acclimate.report.grid import Cell, Grid, accuracy, difference, number, share
from acclimate.results.comparison import AVERAGE, Comparison, Row
from acclimate.results.material import Labels, PromiseCheck
from acclimate.results.runs import Key
from acclimate.results.selection import Choice
from acclimate.results.statistics import Estimate, in_words

GAP_CLOSED = "Gap closed, %"  # between the baseline and the highest ceiling
_FEW = 6  # columns that stand side by side on a page


def comparison(found: Comparison) -> Grid:
    """One row per method: unseen domains, training domains, difference to the baseline. A column in
    which no row has a value is left out."""
    base = found.baseline.label
    columns: dict[str, Callable[[Row], Cell]] = {
        "Method": _name,
        "Unseen domains": lambda row: accuracy(row.average),
        "Worst unseen domain": lambda row: accuracy(row.worst),
        "Top-5": lambda row: accuracy(row.top5),
        "Training domains": lambda row: accuracy(row.seen),
        f"Difference to {base}": lambda row: difference(row.gain),
        f"Better than {base}": _improved,
        GAP_CLOSED: lambda row: accuracy(row.gap_closed),
        "Runs": _runs,
        "Domains": lambda row: number(row.domains),
    }
    if not found.tested:
        del columns[f"Difference to {base}"], columns[f"Better than {base}"]
    if len({row.domains for row in found.lines}) < 2:  # the first sentence has the number
        del columns["Domains"]
    rows = tuple(tuple(cell(row) for cell in columns.values()) for row in found.lines)
    grid = Grid(tuple(columns), rows)
    empty = [at for at in range(1, len(columns)) if all(row[at].text == DASH for row in rows)]
    return grid.without(*(grid.header[at] for at in empty))


def further(found: Comparison) -> Grid:
    """The comparison without what a table of results has as well."""
    return comparison(found).without("Unseen domains", f"Difference to {found.baseline.label}")


def _name(row: Row) -> Cell:
    return Cell(row.key.label, badge=row.badge, remark=row.note)


def _improved(row: Row) -> Cell:
    if row.difference is None or not row.difference.pairs:
        return Cell(DASH)
    improved = row.difference.improved / row.difference.pairs
    return Cell(f"{100 * improved:.0f} % of {row.difference.pairs}", improved)


def _runs(row: Row) -> Cell:
    seeds = f" ({count(row.trials, 'seed')})" if row.trials != row.runs else ""
    return Cell(f"{row.runs}{seeds}", row.runs)


def results_grid(found: Comparison) -> Grid:
    """One row per method, one column per domain and their average; the best of each is marked."""
    shown = (*found.columns, AVERAGE)
    rows = []
    for row in found.rows:
        values = {**row.cells, AVERAGE: row.average}
        cells = [accuracy(values.get(name), best=found.is_best(row, name)) for name in shown]
        rows.append((_name(row), *cells))
    return Grid(("Method", *found.columns, "Average"), tuple(rows))


def tests_grid(found: Comparison) -> Grid:
    """Each method's difference to its baseline, with its test."""
    header = ("Method", f"Difference to {found.baseline.label}", "p", "p (Holm)", "Pairs")
    tested = [row for row in found.rows if row.gain is not None and found.tested]
    return Grid(header, tuple((_name(row), *_test(row)) for row in tested))


def whole_grid(found: Comparison) -> Grid:
    """Both in one, as a page has room for: accuracies, their average and the difference."""
    grid, tests = results_grid(found), tests_grid(found).header
    if found.tested:
        rows = [(*cells, *_test(row)) for row, cells in zip(found.rows, grid.rows, strict=True)]
        grid = Grid((*grid.header, *tests[1:]), tuple(rows)).without("p", "Pairs")
    # Where domains are many, what matters most must not lie beyond the edge of the page.
    domains = range(1, len(found.columns) + 1)
    overall = range(len(found.columns) + 1, len(grid.header))
    early = len(found.columns) > _FEW
    return grid.only([0, *overall, *domains] if early else [0, *domains, *overall])


def _test(row: Row) -> tuple[Cell, ...]:
    """Difference, p, p after Holm's correction, pairs."""
    test = row.difference
    if test is None or test.gain is None:
        return (Cell(DASH),) * 4
    ps = (Cell(in_words(p), p) for p in (test.p, test.p_holm))
    return difference(test.gain), *ps, number(test.pairs)


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


def _promised(promise: Promise) -> Cell:
    return difference(Estimate(promise.gain, promise.error, promise.domains))


def promises_grid(found: Rehearsal) -> Grid:
    """A rehearsal's promises: by chain, number of images and how label frequencies were drawn."""
    header = ("Adapted by", "Images", "Label frequencies", "Accuracy", "Gain over plain, points")
    chosen = {*found.chosen.items()}
    rows = (
        (
            Cell(promise.chain + ", used by auto" * ((promise.n, promise.chain) in chosen)),
            number(promise.n),
            Cell(promise.frequencies),
            share(promise.accuracy),
            replace(_promised(promise), best=(promise.n, promise.chain) in chosen),
        )
        for promise in found.promises
    )
    return Grid(header, tuple(rows), frozenset({"Label frequencies"}))


def checks_grid(found: Iterable[PromiseCheck]) -> Grid:
    """What rehearsal promised, beside what happened on unseen domains; a row for each run."""
    header = ("Run", "Unseen domains", "auto is", "Promised gain", "True gain", "Expected", "Auto")
    rows = (
        (
            Cell(one.run.name),
            Cell(", ".join(one.domains), long=len(one.domains) > 3),
            Cell(one.promise.chain),
            _promised(one.promise),
            Cell(signed(one.gain), one.gain),
            Cell(f"{percent(one.promise.low)} to {percent(one.promise.high)}", one.promise.low),
            share(one.auto),
        )
        for one in found
    )
    return Grid(header, tuple(rows), frozenset({"Unseen domains", "auto is"}))


def labels_grid(labels: Labels) -> Grid:
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
