"""How labels are spread over the domains of a manifest, as PNG files: what `inspect` draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from acclimate.core.text import count
from acclimate.data.inspection import Inspection, label_counts
from acclimate.data.manifest import Manifest
from acclimate.report.figures import canvas, label_shares
from acclimate.report.figures.canvas import INKS, MOST_DOMAINS, TEXT, Drawing
from acclimate.results.material import Labels

MOST_CLASSES = 100
_FEW_CLASSES = 12  # as many as can be counted in a cell
_DOTS_PER_INCH = 130


def write_label_plots(inspection: Inspection, manifest: Manifest, folder: Path) -> list[Path]:
    """PNGs of label distributions, label counts and label shift; their paths.

    Without labels there are no distributions, and one domain alone has no shift.
    """
    drawings = {
        "label_distributions": label_shares.draw(Labels.of(manifest.source, manifest)),
        "label_counts": draw_counts(inspection, manifest),
        "label_shift": draw_shift(inspection),
    }
    paths = []
    for name, drawing in drawings.items():
        if drawing is not None:
            paths.append(folder / f"{name}.png")
            canvas.write_figure(drawing, paths[-1], "png", dpi=_DOTS_PER_INCH)
    return paths


def draw_counts(inspection: Inspection, manifest: Manifest) -> Drawing:
    """Heat map of rows per domain and class on a log scale; cells without rows stay empty."""
    from matplotlib.colors import LogNorm

    counts = label_counts(manifest)
    rows = np.sort(_by_shift(inspection)[:MOST_DOMAINS])
    columns = np.argsort(-counts.sum(axis=0), kind="stable")[:MOST_CLASSES]
    cells = counts[np.ix_(rows, columns)]
    most = max(2, int(cells.max(initial=0)))
    figure = canvas.figure_of(0.19 * len(rows) + 2.2, max(canvas.WIDTH, 0.18 * len(columns) + 3.2))
    ax = figure.subplots()
    ax.set_facecolor("#EDEDED")
    style: dict[str, Any] = {"cmap": "viridis", "aspect": "auto", "interpolation": "nearest"}
    image = ax.imshow(np.ma.masked_equal(cells, 0), norm=LogNorm(vmin=1, vmax=most), **style)
    classes = [canvas.short(manifest.classes[c], 20) for c in columns]
    canvas.name_rows(ax, [inspection.domains[i].domain for i in rows])
    ax.set_xticks(range(len(columns)), classes, rotation=90, parse_math=False)
    canvas.plain(ax, "")
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=ax, fraction=0.04, pad=0.02, format="{x:,.0f}")
    bar.minorticks_off()
    bar.set_label("rows (grey: none)", fontsize=TEXT)
    if len(columns) <= _FEW_CLASSES and len(rows) <= 20:
        for (row, column), number in np.ndenumerate(cells):
            if number:
                dark = number <= np.sqrt(most)  # the middle of the log scale from 1
                colour = "white" if dark else "black"
                ax.text(column, row, f"{number}", ha="center", va="center", size=7, color=colour)
    total, shown = len(manifest.classes), len(columns)
    named = f"{total} classes" if shown == total else f"the {shown} largest of {total} classes"
    canvas.headline(ax, f"Rows of {_some(len(rows), inspection)} in {named}")
    return Drawing(figure)


def draw_shift(inspection: Inspection) -> Drawing | None:
    """Each domain's distance from the others pooled, the most shifted on top."""
    shown = [inspection.domains[i] for i in _by_shift(inspection)]
    shown = [domain for domain in shown if domain.total_variation is not None][:MOST_DOMAINS]
    if not shown:
        return None
    distances = [domain.total_variation or 0.0 for domain in shown]
    divergences = [domain.jensen_shannon or 0.0 for domain in shown]
    places = range(len(shown))
    figure = canvas.figure_of(0.19 * len(shown) + 1.5)
    ax = figure.subplots()
    bars = ax.barh(places, distances, color=INKS["blue"], label="total variation")
    ax.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    marks: dict[str, Any] = {"edgecolors": INKS["ink"], "linewidths": 0.5, "zorder": 3}
    label = "Jensen-Shannon (bits)"
    ax.scatter(divergences, places, s=18, color=INKS["orange"], label=label, **marks)
    canvas.name_rows(ax, [domain.domain for domain in shown], 28)
    ax.set_xlim(0, min(1.08, max(0.1, *distances) * 1.12))
    ax.set_xlabel("distance from the labels of the other domains pooled")
    canvas.plain(ax, "")
    canvas.headline(ax, f"Label shift of {_some(len(shown), inspection)}")
    canvas.legend(figure, ax)
    return Drawing(figure)


def _by_shift(inspection: Inspection) -> list[int]:
    """Positions of the domains, most shifted first, those without a shift last."""
    shifts = [domain.total_variation for domain in inspection.domains]
    rank = [1.0 if shift is None else -shift for shift in shifts]
    return sorted(range(len(rank)), key=rank.__getitem__)


def _some(shown: int, inspection: Inspection) -> str:
    total = len(inspection.domains)
    return (
        count(total, "domain") if shown == total else f"the {shown} most shifted of {total} domains"
    )
