"""What an ablation varies against accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from acclimate.core.text import short
from acclimate.paper.figures.scales import is_logarithmic, log_axis
from acclimate.records.metrics import METRICS, TOP_1, Metric, measured
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import TEXT, Drawing, Illustration
from acclimate.results.comparison import Comparison, Row
from acclimate.results.material import Report
from acclimate.results.protocol import Axis
from acclimate.results.runs import Key
from acclimate.results.statistics import in_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW_PLACES = 8  # as many variants as can each have a tick of its own
_LINES = {"method": "-", "control": "--", "ceiling": ":"}
_MARKS = {"method": "o", "control": "v", "ceiling": "^"}


def illustrate(report: Report) -> Iterable[Illustration]:
    axis = report.axis
    drawing = axis and draw(report.tables, axis, canvas.colours_of(report))
    if axis and drawing:
        yield Illustration("Ablation", " ".join(_caption(report.tables, axis)), drawing)


def _caption(comparisons: Sequence[Comparison], axis: Axis) -> Iterable[str]:
    """Of what is drawn, and nothing else."""
    rows = [row for one in _varied(comparisons) for line in _lines(one).values() for row in line]
    metric = comparisons[0].metric
    what = "Accuracy" if metric == TOP_1 else measured(metric)
    yield f"{what} on unseen domains by {axis.label}."
    if any(row.average is not None and row.average.se is not None for row in rows):
        yield "Whiskers are one standard error over trials."
    else:
        yield "A single trial, which has no standard error."
    kinds = {row.key.kind for row in rows}
    if "control" in kinds:
        yield "Hollow, pointing down: controls, which are meant to fail."
    if "ceiling" in kinds:
        yield "Hollow, pointing up: ceilings, which use what no method may know."


def draw(
    comparisons: Sequence[Comparison], axis: Axis, colours: Mapping[str, str]
) -> Drawing | None:
    """Accuracy against what the ablation varies; a line per algorithm and use, a panel per data
    set. Runs without a variant are a level line."""
    comparisons = _varied(comparisons)
    if not comparisons:
        return None
    places = _places(axis)
    figure = canvas.figure_of(2.7 * len(comparisons) + 0.5)
    titles: dict[str, str] = {}
    labels: set[str] = set()
    panels = list(figure.subplots(len(comparisons), squeeze=False)[:, 0])
    for number, (ax, results) in enumerate(zip(panels, comparisons, strict=True)):
        for (algorithm, method), rows in _lines(results).items():
            key = Key(algorithm, method)
            label = key.label if key.label not in labels else ""
            labels.add(key.label)
            gid = f"line-{number}-{algorithm}-{method}"
            titles |= _draw_line(
                *(ax, rows, places, colours[algorithm], label, gid, METRICS[results.metric]),
                joined=axis.ordered,
            )
        _scale(ax, axis, places)
        ax.set_ylabel(measured(results.metric))
        canvas.plain(ax, "y")
        if len(comparisons) > 1:
            canvas.headline(ax, short(results.dataset, 40))
    panels[-1].set_xlabel(short(axis.label, 60), parse_math=False)
    _one_legend(panels)
    canvas.legend(figure, panels[0], columns=2)
    return Drawing(figure, titles)


def _varied(comparisons: Sequence[Comparison]) -> list[Comparison]:
    return [results for results in comparisons if any(row.key.variant for row in results.rows)]


def _places(axis: Axis) -> dict[str, float]:
    """Where each variant stands: its own place, or its turn where variants have no order."""
    if not axis.ordered:
        return {name: float(turn) for turn, name in enumerate(axis.places)}
    return {name: float(place or 0.0) for name, place in axis.places.items()}


def _lines(results: Comparison) -> dict[tuple[str, str], list[Row]]:
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in results.rows:
        if row.average is not None and not row.published:
            lines.setdefault((row.key.algorithm, row.key.method), []).append(row)
    return lines


def _draw_line(
    ax: Axes,
    rows: Sequence[Row],
    places: Mapping[str, float],
    colour: str,
    label: str,
    gid: str,
    metric: Metric,
    *,
    joined: bool,
) -> dict[str, str]:
    """`joined`: the variants have an order, so that a line between them means something."""
    kind = rows[0].key.kind
    style: dict[str, Any] = {"color": colour, "linestyle": _LINES[kind], "linewidth": 1.3}
    titles: dict[str, str] = {}
    for row in rows:
        if row.key.variant not in places and row.average is not None:
            ax.axhline(metric.scale * row.average.mean, **(style | {"alpha": 0.7}), label=label)
            label = ""
    placed = sorted(
        ((places[row.key.variant], row) for row in rows if row.key.variant in places),
        key=lambda pair: pair[0],
    )
    if not placed:
        return titles
    values = [row.average for _, row in placed if row.average is not None]
    x, y = [place for place, _ in placed], [metric.scale * value.mean for value in values]
    hollow = "none" if kind != "method" else colour
    mark: dict[str, Any] = {"marker": _MARKS[kind], "markerfacecolor": hollow, "markersize": 4.5}
    # With its mark, for the legend's sake; the marks below are those that can be pointed at.
    ax.plot(x, y, **(style | mark | ({} if joined else {"linestyle": ""})), label=label)
    for number, ((place, row), value) in enumerate(zip(placed, values, strict=True)):
        mean, se = metric.scale * value.mean, metric.scale * (value.se or 0.0)
        ax.errorbar(place, mean, yerr=se or None, color=colour, capsize=2.5, linewidth=1)
        ax.plot(
            place, mean, linestyle="", color=colour, **mark, gid=f"{gid}-{number}"
        )  # fmt: skip
        titles[f"{gid}-{number}"] = f"{row.key.label}: {in_percent(value, metric)}{metric.unit}"
    return titles


def _scale(ax: Axes, axis: Axis, places: Mapping[str, float]) -> None:
    if not axis.ordered:
        turn = len(places) > 5 or any(len(name) > 9 for name in places)
        ax.set_xticks(
            list(places.values()),
            [short(name, 16) for name in places],
            parse_math=False,
            rotation=35 if turn else 0,
            ha="right" if turn else "center",
            rotation_mode="anchor",
            fontsize=TEXT,
        )
        ax.margins(x=0.08)
    elif is_logarithmic(list(places.values())):
        ax.set_xscale("log")
        log_axis(ax.xaxis)
    if len(places) <= _FEW_PLACES and axis.ordered:
        ticks = sorted(set(places.values()))
        ax.set_xticks(ticks, [f"{x:g}" for x in ticks])


def _one_legend(panels: Sequence[Axes]) -> None:
    """Entries that only a later panel has join the first panel's, which the legend is made of."""
    for ax in panels[1:]:
        for handle in ax.get_legend_handles_labels()[0]:
            (line,) = panels[0].plot([], [])
            line.update_from(handle)
