"""Plots of how labels are spread over domains, from an inspection and its manifest.

`share_plots` draws the same from a report, in a page's colours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from acclimate.core.files import write_atomically
from acclimate.data.inspection import Inspection, label_counts
from acclimate.data.manifest import Manifest
from acclimate.report.canvas import short

if TYPE_CHECKING:  # matplotlib takes most of a second, which only drawing should pay
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 12
MOST_DOMAINS = 60
MOST_CLASSES = 100
_FEW_CLASSES = 12  # as many as can be named below a panel and counted in a cell
_DOTS_PER_INCH = 130

# From the Okabe-Ito palette, which colour-blind readers can tell apart.
_BLUE, _ORANGE, _GREY = "#0072B2", "#E69F00", "#5A5A5A"


def write_label_plots(inspection: Inspection, manifest: Manifest, folder: Path) -> list[Path]:
    """PNGs of label distributions, label counts and label shift; their paths.

    One domain alone has no label shift, and then there is no such plot.
    """
    figures = {
        "label_distributions.png": draw_distributions(inspection, manifest),
        "label_counts.png": draw_counts(inspection, manifest),
    }
    if any(domain.total_variation is not None for domain in inspection.domains):
        figures["label_shift.png"] = draw_shift(inspection)
    for name, figure in figures.items():
        _save(figure, folder / name)
    return [folder / name for name in figures]


def draw_distributions(inspection: Inspection, manifest: Manifest) -> Figure:
    """A panel per domain, most shifted first: its class frequencies over those of all domains."""
    counts = label_counts(manifest)
    order = _by_frequency(counts)
    pooled = counts.sum(axis=0)[order] / max(int(counts.sum()), 1)
    shown = [i for i in _by_shift(inspection) if counts[i].any()][:MOST_PANELS]
    columns = min(4, max(len(shown), 1))
    lines = max(1, -(-len(shown) // columns))
    named = len(order) <= _FEW_CLASSES
    figure = _figure(max(4.5, 2.9 * columns + 0.6), 1.9 * lines + (1.6 if named else 1.2))
    axes = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    for i, ax in zip(shown, axes, strict=False):
        _panel(ax, counts[i][order] / counts[i].sum(), pooled)
        shift = inspection.domains[i].total_variation
        note = "" if shift is None else f"  (TV {shift:.2f})"
        _headline(ax, short(inspection.domains[i].domain, 24) + note, size=9)
    axes[0].set_ylim(0, 1.06 * max([*pooled, *(counts[i].max() / counts[i].sum() for i in shown)]))
    for position, ax in enumerate(axes):
        ax.set_visible(position < len(shown))
        # A panel above an empty place is the lowest of its column, and carries the labels.
        ax.tick_params(labelbottom=position + columns >= len(shown))
        if named:
            names = [short(manifest.classes[c], 16) for c in order]
            ax.set_xticks(range(len(order)), names, rotation=60, ha="right", parse_math=False)
    figure.supylabel("share of the domain's rows", fontsize=9)
    figure.suptitle(
        f"Label distributions of {_some(len(shown), inspection)}\n"
        "classes from the most to the least frequent overall",
        fontsize=10,
    )
    _legend(figure, axes[0])
    return figure


def _panel(ax: Axes, shares: np.ndarray, pooled: np.ndarray) -> None:
    """shares, pooled: [classes], in the order to draw."""
    edges = np.arange(len(shares) + 1) - 0.5
    ax.stairs(shares, edges, fill=True, color=_BLUE, alpha=0.85, label="this domain")
    ax.stairs(pooled, edges, color=_ORANGE, linewidth=1.6, label="all domains")
    ax.set_xlim(edges[0], edges[-1])
    _plain(ax)


def draw_counts(inspection: Inspection, manifest: Manifest) -> Figure:
    """Heat map of rows per domain and class on a log scale; cells without rows stay empty."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator

    counts = label_counts(manifest)
    rows = np.sort(_by_shift(inspection)[:MOST_DOMAINS])
    columns = _by_frequency(counts)[:MOST_CLASSES]
    cells = counts[np.ix_(rows, columns)]
    figure = _figure(
        max(5.0, 0.15 * len(columns) + 3.2, 0.55 * min(len(columns), _FEW_CLASSES) + 3.0),
        max(2.8, 0.17 * len(rows) + 2.2),
    )
    ax = figure.subplots()
    ax.set_facecolor("#EDEDED")
    image = ax.imshow(
        np.ma.masked_equal(cells, 0),
        norm=LogNorm(vmin=1, vmax=max(2, int(cells.max(initial=0)))),
        cmap="viridis",
        aspect="auto",
        interpolation="nearest",
    )
    domains = [short(inspection.domains[i].domain, 24) for i in rows]
    classes = [short(manifest.classes[c], 20) for c in columns]
    ax.set_yticks(range(len(rows)), domains, fontsize=7, parse_math=False)
    ax.set_xticks(range(len(columns)), classes, fontsize=7, rotation=90, parse_math=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ticks = LogLocator(subs=(1, 2, 5))
    bar = figure.colorbar(image, ax=ax, fraction=0.04, pad=0.02, ticks=ticks, format="{x:,.0f}")
    bar.minorticks_off()
    bar.set_label("rows (grey: none)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if cells.shape[1] <= _FEW_CLASSES and cells.shape[0] <= 20:
        _write_counts(ax, cells)
    shown = _some(len(rows), inspection)
    _headline(ax, f"Rows of {shown} in {_classes(len(columns), manifest)}", size=11)
    return figure


def _write_counts(ax: Axes, cells: np.ndarray) -> None:
    """cells: [domains, classes]"""
    bright = np.sqrt(max(2, int(cells.max())))  # the middle of the log scale from 1
    for (row, column), count in np.ndenumerate(cells):
        if count:
            colour = "black" if count > bright else "white"
            text = f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"
            ax.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)


def draw_shift(inspection: Inspection) -> Figure:
    """Each domain's distance from the others pooled, the most shifted on top."""
    shown = [inspection.domains[i] for i in _by_shift(inspection)]
    shown = [domain for domain in shown if domain.total_variation is not None][:MOST_DOMAINS]
    distances = [domain.total_variation or 0.0 for domain in shown]
    places = np.arange(len(shown))
    figure = _figure(7.0, max(2.4, 0.19 * len(shown) + 1.5))
    ax = figure.subplots()
    ax.barh(places, distances, color=_BLUE, height=0.72, label="total variation")
    ax.scatter(
        [domain.jensen_shannon or 0.0 for domain in shown],
        places,
        color=_ORANGE,
        edgecolors="black",
        linewidths=0.5,
        s=18,
        zorder=3,
        label="Jensen-Shannon (bits)",
    )
    for place, distance in enumerate(distances):
        ax.text(distance + 0.008, place, f"{distance:.2f}", va="center", fontsize=7, color=_GREY)
    names = [short(domain.domain, 28) for domain in shown]
    ax.set_yticks(places, names, parse_math=False)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, min(1.08, max(0.1, *distances) * 1.12))
    _plain(ax)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("distance from the label distribution of the other domains pooled", fontsize=8)
    _headline(ax, f"Label shift of {_some(len(shown), inspection)}", size=11)
    _legend(figure, ax)
    return figure


def _by_shift(inspection: Inspection) -> list[int]:
    """Positions of the domains, most shifted first, those without a shift last."""
    shifts = [domain.total_variation for domain in inspection.domains]
    rank = [1.0 if shift is None else -shift for shift in shifts]
    return sorted(range(len(rank)), key=rank.__getitem__)


def _by_frequency(counts: np.ndarray) -> np.ndarray:
    """[domains, classes] -> positions of the classes, the most frequent over all domains first."""
    return np.argsort(-counts.sum(axis=0), kind="stable")


def _some(shown: int, inspection: Inspection) -> str:
    total = len(inspection.domains)
    if shown < total:
        return f"the {shown} most shifted of {total} domains"
    return "the only domain" if total == 1 else f"{total} domains"


def _classes(shown: int, manifest: Manifest) -> str:
    total = len(manifest.classes)
    return f"{total} classes" if shown == total else f"the {shown} largest of {total} classes"


def _headline(ax: Axes, text: str, *, size: int) -> None:
    # A folder may well be called "$5"; that is no formula.
    ax.set_title(text, fontsize=size, loc="left", parse_math=False)


def _legend(figure: Figure, ax: Axes) -> None:
    # Below the axes: inside, it would cover bars in one data set or another.
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=7, length=2)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    write_atomically(
        path, lambda file: figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, metadata={})
    )
