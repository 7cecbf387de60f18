"""Confidence: how often it is right, and how the confidences of images are spread."""

from __future__ import annotations

import numpy as np

from acclimate.core.text import percent
from acclimate.records.metrics.classification import BINS, calibration
from acclimate.records.predictions import Predictions
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, Drawing


def draw_calibration(rows: Predictions) -> Drawing:
    """Accuracy over confidence, bin by bin, beside the line on which both agree."""
    sizes, right, sure = calibration(rows)
    figure = canvas.figure_of(3.0)
    ax, titles = figure.subplots(), dict[str, str]()
    ax.plot([0, 100], [0, 100], color=INKS["faint"], linewidth=1, label="as sure as right")
    some = sizes > 0
    share, mean = 100 * right[some] / sizes[some], 100 * sure[some] / sizes[some]
    ax.plot(mean, share, color=INKS["blue"], linewidth=1.1)
    for place, (x, y, size) in enumerate(zip(mean, share, sizes[some], strict=True)):
        area = 3 + 9 * float(np.sqrt(size / sizes.max()))
        gid = f"bin-{place}"
        ax.plot(x, y, "o", color=INKS["blue"], markersize=area, gid=gid)
        titles[gid] = f"{y:.1f} % of {size:.0f} images right at a confidence of {x:.1f} %"
    ax.plot([], [], "o-", color=INKS["blue"], label="images, in bins of confidence")
    ax.set_xlabel("confidence, %")
    ax.set_ylabel("right, %")
    canvas.plain(ax, "both")
    canvas.legend(figure, ax)
    return Drawing(figure, titles)


def draw_confidences(confidences: np.ndarray, threshold: float) -> Drawing:
    """How many images have which confidence; those below the threshold have no label."""
    edges = np.linspace(0, 1, BINS + 1)
    counts, _ = np.histogram(confidences, edges)
    figure = canvas.figure_of(2.2)
    ax, titles = figure.subplots(), dict[str, str]()
    for place, size in enumerate(counts):
        low, high = 100 * edges[place], 100 * edges[place + 1]
        gid = f"bar-{place}"
        ax.bar(low, size, high - low, align="edge", color=INKS["blue"], edgecolor="none", gid=gid)
        titles[gid] = f"{size} images from {low:.0f} to {high:.0f} %"
    if threshold:
        ax.axvline(
            100 * threshold, color=INKS["orange"], label=f"a label from {percent(threshold)} % on"
        )
    ax.set_xlim(0, 100)
    ax.set_xlabel("confidence, %")
    ax.set_ylabel("images")
    canvas.plain(ax, "y")
    canvas.legend(figure, ax)
    return Drawing(figure, titles)
