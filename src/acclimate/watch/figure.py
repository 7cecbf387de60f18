"""The evidence over time."""

from typing import TYPE_CHECKING

from acclimate.report.figures.canvas import CYCLE, INKS, Drawing, figure_of, legend, plain
from acclimate.watch.watch import LOOKS, THRESHOLD, Watch

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_watch(watch: Watch) -> Drawing:
    """The evidence of each look after each window, beside the threshold."""
    figure = figure_of(2.6)
    ax: Axes = figure.subplots()
    images = [entry["images"] for entry in watch.history]
    for name, colour in zip(LOOKS, CYCLE, strict=False):
        values = [max(entry[name], 1.0) for entry in watch.history]
        ax.plot(images, values, color=INKS[colour], marker=".", linewidth=1.4, label=name)
    ax.axhline(THRESHOLD, color=INKS["ink"], linewidth=0.9, linestyle="--", label="alarm")
    ax.set_yscale("log")
    ax.set_xlabel("images")
    ax.set_ylabel("evidence of a change")
    plain(ax, "y")
    legend(figure, ax)
    return Drawing(figure)
