"""Colours and marks of plots, and axes to draw on."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From the Okabe-Ito palette, which colour-blind readers can tell apart; near black and grey.
INKS = {
    "ink": "#1b1b1e",
    "faint": "#8a8a8f",
    "orange": "#d55e00",
    "blue": "#0072b2",
    "green": "#009e73",
    "purple": "#cc79a7",
    "yellow": "#b58900",
    "sky": "#56b4e9",
}
CYCLE = ("orange", "blue", "green", "purple", "yellow", "sky")
MARKERS = ("o", "D", "s", "^", "v", "P", "X", "*")


def axes_or_new(axes: "Axes | None") -> "Axes":
    """`axes`, or new ones of pyplot, which notebooks show by themselves."""
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
