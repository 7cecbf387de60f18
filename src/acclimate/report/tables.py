"""The tables of a report, as grids: a column of a table is a line here, whatever shows it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from acclimate.adapt.rehearsal import Rehearsal
from acclimate.core.wording import DASH, count, percent, signed
from acclimate.report.figures.label_shares import shifts
from acclimate.report.grid import Cell, Grid, accuracy, difference, number, share
from acclimate.results.material import Labels
from acclimate.results.rehearsals import Kept
from acclimate.results.runs import Key
from acclimate.results.selection import Choice
from acclimate.results.statistics import Estimate, in_words
from acclimate.results.summary import Line, Summary
from acclimate.results.tabulate import AVERAGE, Results, Row

GAP_CLOSED = "Gap closed, %"  # between the baseline and the highest ceiling
_FEW = 6  # columns that stand side by side on a page


def comparison(summary: Summary) -> Grid:
    """One row per line: unseen domains, training domains, difference to the baseline."""
    base = summary.baseline.label
    header = ["Method", "Unseen domains", "Worst unseen domain", "Top-5", "Training domains"]
    header += [f"Difference to {base}", f"Better than {base}", GAP_CLOSED, "Runs", "Domains"]
    grid = Grid(tuple(header), tuple(tuple(_cells(summary, line)) for line in summary.lines))
    if not any(line.top5 is not None for line in summary.lines):
        grid = grid.without("Top-5")
    if not is_compared(summary):
        grid = grid.without(f"Difference to {base}", f"Better than {base}")
    if not summary.gap_closed:
        grid = grid.without(GAP_CLOSED)
    if len({line.domains for line in summary.lines}) < 2:  # the first sentence has the number
        grid = grid.without("Domains")
    return grid


def further(summary: Summary) -> Grid:
    """The comparison without what a table of results has as well."""
    return comparison(summary).without("Unseen domains", f"Difference to {summary.baseline.label}")


def is_compared(summary: Summary) -> bool:
    """Whether any method has its baseline beside it; a ceiling alone is no rival."""
    found = (summary.versus(key) for key in summary.contenders)
    return any(one is not None and summary.line(one.against) is not None for one in found)


def _cells(summary: Summary, line: Line) -> Iterable[Cell]:
    yield Cell(line.key.label, badge=line.key.badge)
    yield from map(accuracy, (line.unseen, line.worst, line.top5, line.seen))
    versus = summary.versus(line.key)
    yield difference(versus.gain if versus else None)
    if versus and versus.pairs:
        improved = versus.improved / versus.pairs
        yield Cell(f"{100 * improved:.0f} % of {versus.pairs}", improved)
    else:
        yield Cell(DASH)
    yield accuracy(summary.gap_closed.get(line.key))
    seeds = f" ({count(line.seeds, 'seed')})" if line.seeds != line.runs else ""
    yield Cell(f"{line.runs}{seeds}", line.runs)
    yield number(line.domains)


def by_domain(summary: Summary) -> Grid:
    """One row per test domain, one column per line: means over seeds."""
    keys = [line.key for line in summary.lines]
    names = [Cell(key.label, badge=key.badge).marked for key in keys]
    rows = ((Cell(row.domain), *(share(row.top1[key]) for key in keys)) for row in summary.domains)
    return Grid(("Unseen domain", *names), tuple(rows))


def results_grid(results: Results, columns: Sequence[str] | None = None) -> Grid:
    """One row per method, one column per domain and their average; the best of each is marked."""
    shown = (*results.columns, AVERAGE) if columns is None else tuple(columns)
    header = ("Method", *("Average" if name == AVERAGE else name for name in shown))
    rows = []
    for row in results.rows:
        values = {**row.cells, AVERAGE: row.average}
        cells = [accuracy(values.get(name), best=results.is_best(row, name)) for name in shown]
        rows.append((_name(row), *cells))
    return Grid(header, tuple(rows))


def tests_grid(results: Results) -> Grid:
    """Each method's difference to its baseline, with the paired test."""
    header = ("Method", f"Difference to {results.baseline.label}", "p", "p (Holm)", "Pairs")
    tested = [row for row in results.rows if row.test is not None]
    return Grid(header, tuple((_name(row), *_test(row)) for row in tested))


def whole_grid(results: Results) -> Grid:
    """Both in one, as a page has room for: accuracies, their average and the difference."""
    grid = results_grid(results)
    tested = any(row.test is not None for row in results.rows)
    gain, _, p, _ = tests_grid(results).header[1:]

    def arranged(first: Any, domains: Sequence[Any], overall: Sequence[Any]) -> tuple[Any, ...]:
        # Where domains are many, what matters most must not lie beyond the edge of the page.
        early = len(results.columns) > _FEW
        return (first, *overall, *domains) if early else (first, *domains, *overall)

    rows = []
    for row, (name, *domains, average) in zip(results.rows, grid.rows, strict=True):
        difference, _, p_holm, _ = _test(row)
        rows.append(arranged(name, domains, [average, *[difference, p_holm] * tested]))
    first, *columns, last = grid.header
    return Grid(arranged(first, columns, [last, *[gain, p] * tested]), tuple(rows))


def _name(row: Row) -> Cell:
    return Cell(row.key.label, badge=row.badge, remark=row.note)


def _test(row: Row) -> tuple[Cell, Cell, Cell, Cell]:
    """Difference, p, p after Holm's correction, pairs."""
    test = row.test
    if test is None:
        return Cell(DASH), Cell(DASH), Cell(DASH), Cell(DASH)
    return (
        difference(test.difference),
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
