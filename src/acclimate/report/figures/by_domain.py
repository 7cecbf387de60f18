"""Accuracy on each domain while it is unseen, method by method."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from acclimate.report.figures import canvas
from acclimate.report.figures.bars import HIGH, NEAR
from acclimate.report.figures.canvas import INKS, MOST_DOMAINS, Drawing, Illustration, of_data
from acclimate.results.comparison import Comparison, Row
from acclimate.results.material import Report
from acclimate.results.statistics import Estimate, in_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 64  # beyond, domains are drawn as rows of dots
MOST_METHODS = 8
_HATCHES = ("", "....", "////", "xxxx", "||||", "----")
_FILLS = ("full", "none", "left", "bottom", "right", "top")


def illustrate(report: Report) -> Iterable[Illustration]:
    if not report.rule or report.axis is not None:
        return  # a folder of runs has the dumbbells, an ablation its curve
    for results in report.tables:
        drawing = draw(results, canvas.colours_of(report))
        if drawing is None:
            continue
        hidden = len(results.columns) - MOST_DOMAINS
        some = f" {hidden} further domains are left out." if hidden > 0 else ""
        fewer = len(_methods(results)) - MOST_METHODS
        some += f" {fewer} further methods are in the table only." if fewer > 0 else ""
        yield Illustration(
            "Accuracy by domain",
            f"{of_data(results.dataset, len(report.tables))}Mean accuracy on each domain while "
            f"it is unseen; whiskers are one standard error over trials.{_axis(results)}{some}",
            drawing,
        )


def close(results: Comparison) -> bool:
    """Whether accuracies are so high, and in each domain so near each other, that bars from 0 would
    look alike."""
    found = [
        [100 * value.mean for row in _methods(results) if (value := row.cells.get(name))]
        for name in results.columns
    ]
    known = [values for values in found if values]
    lowest = min((min(values) for values in known), default=0.0)
    return lowest >= HIGH and all(max(values) - min(values) <= NEAR for values in known)


def _axis(results: Comparison) -> str:
    return " The axis does not start at 0." if close(results) else ""


def _methods(results: Comparison) -> list[Row]:
    """Our own methods, the baseline first; no controls, no published numbers."""
    rows = [row for row in results.rows if not row.badge]
    return sorted(rows, key=lambda row: row.key != results.baseline)


def draw(results: Comparison, colours: Mapping[str, str]) -> Drawing | None:
    """For each domain a bar per method with its standard error; dots where bars would be many."""
    rows = _methods(results)[:MOST_METHODS]
    known = [name for name in results.columns if any(row.cells.get(name) for row in rows)]
    columns = known[:MOST_DOMAINS]
    if not rows or not columns:
        return None
    many = len(rows) * len(columns) > MOST_BARS
    dots = many or close(results)
    step = 0.26 if many else 0.13 * len(rows) + 0.12
    figure = canvas.figure_of(step * len(columns) + 0.25 * len(rows) / 2 + 0.9)
    ax, titles = figure.subplots(), {}
    looks = _looks(rows, colours, dots=dots)
    offsets = canvas.spread(len(rows), 0.0 if many else 0.84 / len(rows))
    for index, (row, look, offset) in enumerate(zip(rows, looks, offsets, strict=True)):
        for place, name in enumerate(columns):
            value = row.cells.get(name)
            if value is None:
                continue
            gid = f"cell-{index}-{place}"
            _cell(ax, place + offset, value, look, gid, None if dots else 0.78 / len(rows))
            titles[gid] = f"{name}, {row.key.label}: {in_percent(value)} %"
        if dots:
            ax.plot([], [], **look, label=row.key.label)
        else:
            ax.barh([math.nan], [0], **look, label=row.key.label)
    names = [canvas.short(name, 18) for name in columns]
    ax.set_yticks(range(len(columns)), names, parse_math=False)
    ax.set_ylim(len(columns) - 0.5, -0.5)
    if not dots:
        ax.set_xlim(0, 100)
    ax.set_xlabel("accuracy, %")
    canvas.plain(ax, "both" if dots else "x")
    ax.tick_params(axis="y", length=0)
    canvas.legend(figure, ax)
    return Drawing(figure, titles)


def _looks(
    rows: Sequence[Row], colours: Mapping[str, str], *, dots: bool
) -> Iterable[dict[str, Any]]:
    """Of dots or bars: colour by algorithm; further lines of one are hollow or half full, or
    hatched."""
    seen: Counter[str] = Counter()
    markers = canvas.markers_of(colours)
    for row in rows:
        name = row.key.algorithm
        colour, nth = colours[name], seen[name]
        seen[name] += 1
        if dots:
            fill = _FILLS[nth % len(_FILLS)]
            yield {"marker": markers[name], "ls": "", "color": colour, "fillstyle": fill}
        else:
            hatch = _HATCHES[nth % len(_HATCHES)] or None
            face = "none" if hatch else colour
            yield {"facecolor": face, "edgecolor": colour, "hatch": hatch}


def _cell(
    ax: Axes, place: float, value: Estimate, look: Mapping[str, Any], gid: str, bar: float | None
) -> None:
    mean, se = 100 * value.mean, 100 * (value.se or 0.0)
    if bar is None:
        ax.plot(mean, place, **look, gid=gid, markersize=4.5, zorder=3)
    else:
        ax.barh(place, mean, bar, **look, linewidth=0.8, gid=gid)
    if se:
        ink = look["color"] if bar is None else INKS["ink"]
        ax.errorbar(mean, place, xerr=se, color=ink, capsize=0 if bar is None else 1.5, lw=0.9)
