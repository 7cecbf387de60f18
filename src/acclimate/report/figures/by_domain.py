"""Accuracy on each domain while it is unseen, method by method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from acclimate.report.figures.canvas import (
    INKS,
    MOST_DOMAINS,
    Drawing,
    figure_of,
    legend,
    markers_of,
    plain,
    short,
    spread,
)
from acclimate.report.figures.subject import Illustration, Subject, of_data
from acclimate.results.statistics import Estimate, in_percent
from acclimate.results.tabulate import Results, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 64  # beyond, domains are drawn as rows of dots
MOST_METHODS = 8
_HATCHES = ("", "....", "////", "xxxx")


def illustrate(subject: Subject) -> Iterable[Illustration]:
    if not subject.rule or subject.varies:
        return  # a folder of runs has the dumbbells, an ablation its curve
    for results in subject.results:
        drawing = draw(results, subject.colours)
        if drawing is None:
            continue
        hidden = len(results.columns) - MOST_DOMAINS
        some = f" {hidden} further domains are left out." if hidden > 0 else ""
        fewer = len(_methods(results)) - MOST_METHODS
        some += f" {fewer} further methods are in the table only." if fewer > 0 else ""
        yield Illustration(
            "Accuracy by domain",
            f"{of_data(results.dataset, len(subject.results))}Mean accuracy on each domain while "
            f"it is unseen; whiskers are one standard error over trials.{some}",
            drawing,
        )


def _methods(results: Results) -> list[Row]:
    """Our own methods, the baseline first; no controls, no published numbers."""
    rows = [row for row in results.rows if not row.badge]
    return sorted(rows, key=lambda row: row.key != results.baseline)


def draw(results: Results, colours: Mapping[str, str]) -> Drawing | None:
    """For each domain a bar per method with its standard error; dots where bars would be many."""
    rows = _methods(results)[:MOST_METHODS]
    known = [name for name in results.columns if any(row.cells.get(name) for row in rows)]
    columns = known[:MOST_DOMAINS]
    if not rows or not columns:
        return None
    dots = len(rows) * len(columns) > MOST_BARS
    step = 0.26 if dots else 0.13 * len(rows) + 0.12
    figure = figure_of(step * len(columns) + 0.25 * len(rows) / 2 + 0.9)
    ax, titles = figure.subplots(), {}
    looks = _looks(rows, colours)
    offsets = spread(len(rows), 0.0 if dots else 0.84 / len(rows))
    for index, (row, look, offset) in enumerate(zip(rows, looks, offsets, strict=True)):
        for place, name in enumerate(columns):
            value = row.cells.get(name)
            if value is None:
                continue
            gid = f"cell-{index}-{place}"
            _cell(ax, place + offset, value, look, gid, bar=None if dots else 0.78 / len(rows))
            titles[gid] = f"{name}, {row.key.label}: {in_percent(value)} %"
        _legend_entry(ax, row.key.label, look, dots=dots)
    ax.set_yticks(range(len(columns)), [short(name, 18) for name in columns], parse_math=False)
    ax.set_ylim(len(columns) - 0.5, -0.5)
    if not dots:
        ax.set_xlim(0, 100)
    ax.set_xlabel("accuracy, %")
    plain(ax, "both" if dots else "x")
    ax.tick_params(axis="y", length=0)
    legend(figure, ax)
    return Drawing(figure, titles)


def _looks(rows: Sequence[Row], colours: Mapping[str, str]) -> list[dict[str, str]]:
    """Colour by algorithm; further lines of the same algorithm are told apart by their hatch."""
    seen: dict[str, int] = {}
    markers = markers_of(colours)
    looks = []
    for row in rows:
        name = row.key.algorithm
        nth = seen[name] = seen.get(name, -1) + 1
        looks.append(
            {
                "colour": colours[name],
                "hatch": _HATCHES[nth % len(_HATCHES)],
                "marker": markers[name],
                "face": colours[name] if nth == 0 else "none",
            }
        )
    return looks


def _cell(
    ax: Axes,
    place: float,
    value: Estimate,
    look: Mapping[str, str],
    gid: str,
    *,
    bar: float | None,
) -> None:
    mean, se = 100 * value.mean, 100 * (value.se or 0.0)
    colour = look["colour"]
    if bar is None:
        ax.plot(
            mean, place, look["marker"], color=colour, markerfacecolor=look["face"], gid=gid,
            markersize=4.5, zorder=3,
        )  # fmt: skip
    else:
        face = "none" if look["hatch"] else colour
        ax.barh(
            place, mean, bar, facecolor=face, edgecolor=colour, hatch=look["hatch"] or None,
            linewidth=0.8, gid=gid,
        )  # fmt: skip
    if se:
        ink = colour if bar is None else INKS["ink"]
        ax.errorbar(mean, place, xerr=se, color=ink, capsize=0 if bar is None else 1.5, lw=0.9)


def _legend_entry(ax: Axes, label: str, look: Mapping[str, str], *, dots: bool) -> None:
    if dots:
        ax.plot(
            [], [], look["marker"], color=look["colour"], markerfacecolor=look["face"], label=label
        )
        return
    face = "none" if look["hatch"] else look["colour"]
    ax.barh(
        [math.nan], [0], facecolor=face, edgecolor=look["colour"],
        hatch=look["hatch"] or None, label=label,
    )  # fmt: skip
