"""Figures of results: accuracy on each domain, and what an ablation varies against accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from acclimate.report.canvas import (
    INKS,
    MOST_DOMAINS,
    TEXT,
    Drawing,
    figure_of,
    headline,
    legend,
    log_axis,
    markers_of,
    plain,
    short,
    spread,
)
from acclimate.report.tables import estimate
from acclimate.results.protocol import Axis
from acclimate.results.runs import Key
from acclimate.results.statistics import Estimate
from acclimate.results.tabulate import Results, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 64  # beyond, domains are drawn as rows of dots
MOST_METHODS = 8
_HATCHES = ("", "....", "////", "xxxx")
_FEW_PLACES = 8  # as many variants as can each have a tick of its own
_LINES = {"method": "-", "control": "--", "ceiling": ":"}
_MARKS = {"method": "o", "control": "v", "ceiling": "^"}


def methods_shown(results: Results) -> list[Row]:
    """Our own methods, the baseline first; no controls, no published numbers."""
    rows = [row for row in results.rows if row.key.kind == "method" and not row.published]
    return sorted(rows, key=lambda row: row.key != results.baseline)[:MOST_METHODS]


def draw_by_domain(results: Results, colours: Mapping[str, str]) -> Drawing | None:
    """For each domain a bar per method with its standard error; dots where bars would be many."""
    rows = methods_shown(results)
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
            titles[gid] = f"{name}, {row.key.label}: {estimate(value)} %"
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


def draw_ablation(
    found: Sequence[Results], axis: Axis, colours: Mapping[str, str]
) -> Drawing | None:
    """Accuracy against what the ablation varies; a line per algorithm and use, a panel per data
    set. Runs without a variant are a level line."""
    found = [results for results in found if any(row.key.variant for row in results.rows)]
    if not found:
        return None
    places = axis_places(axis)
    figure = figure_of(2.7 * len(found) + 0.5)
    titles: dict[str, str] = {}
    labels: set[str] = set()
    panels = list(figure.subplots(len(found), squeeze=False)[:, 0])
    for number, (ax, results) in enumerate(zip(panels, found, strict=True)):
        for (algorithm, method), rows in _lines(results).items():
            key = Key(algorithm, method)
            label = key.label if key.label not in labels else ""
            labels.add(key.label)
            gid = f"line-{number}-{algorithm}-{method}"
            joined = None not in axis.places.values()
            titles |= _draw_line(ax, rows, places, colours[algorithm], label, gid, joined=joined)
        _scale(ax, axis, places)
        ax.set_ylabel("accuracy, %")
        plain(ax, "y")
        if len(found) > 1:
            headline(ax, short(results.dataset, 40))
    panels[-1].set_xlabel(short(axis.label, 60), parse_math=False)
    _one_legend(panels)
    legend(figure, panels[0], columns=2)
    return Drawing(figure, titles)


def axis_places(axis: Axis) -> dict[str, float]:
    """Where each variant stands: its own place, or its turn where variants have no order."""
    if any(place is None for place in axis.places.values()):
        return {name: float(turn) for turn, name in enumerate(axis.places)}
    return {name: float(place or 0.0) for name, place in axis.places.items()}


def is_logarithmic(values: Sequence[float]) -> bool:
    """More than a decade, and nothing at or below 0."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > 10


def _lines(results: Results) -> dict[tuple[str, str], list[Row]]:
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
    *,
    joined: bool,
) -> dict[str, str]:
    """`joined`: the variants have an order, so that a line between them means something."""
    kind = rows[0].key.kind
    style: dict[str, Any] = {"color": colour, "linestyle": _LINES[kind], "linewidth": 1.3}
    titles: dict[str, str] = {}
    for row in rows:
        if row.key.variant not in places and row.average is not None:
            ax.axhline(100 * row.average.mean, **(style | {"alpha": 0.7}), label=label)
            label = ""
    placed = sorted(
        ((places[row.key.variant], row) for row in rows if row.key.variant in places),
        key=lambda pair: pair[0],
    )
    if not placed:
        return titles
    values = [row.average for _, row in placed if row.average is not None]
    x, y = [place for place, _ in placed], [100 * value.mean for value in values]
    hollow = "none" if kind != "method" else colour
    mark: dict[str, Any] = {"marker": _MARKS[kind], "markerfacecolor": hollow, "markersize": 4.5}
    ax.plot(x, y, **(style if joined else style | mark | {"linestyle": ""}), label=label)
    for number, ((place, row), value) in enumerate(zip(placed, values, strict=True)):
        mean, se = 100 * value.mean, 100 * (value.se or 0.0)
        ax.errorbar(place, mean, yerr=se or None, color=colour, capsize=2.5, linewidth=1)
        ax.plot(
            place, mean, linestyle="", color=colour, **mark, gid=f"{gid}-{number}"
        )  # fmt: skip
        titles[f"{gid}-{number}"] = f"{row.key.label}: {estimate(value)} %"
    return titles


def _scale(ax: Axes, axis: Axis, places: Mapping[str, float]) -> None:
    if any(place is None for place in axis.places.values()):
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
    if len(places) <= _FEW_PLACES and None not in axis.places.values():
        ax.set_xticks(
            sorted(set(places.values())), [f"{x:g}" for x in sorted(set(places.values()))]
        )


def _one_legend(panels: Sequence[Axes]) -> None:
    """Entries that only a later panel has join the first panel's, which the legend is made of."""
    for ax in panels[1:]:
        handles, labels = ax.get_legend_handles_labels()
        lines: list[Any] = list(handles)
        for handle, label in zip(lines, labels, strict=True):
            panels[0].plot(
                [], [], color=handle.get_color(), linestyle=handle.get_linestyle(), label=label
            )
