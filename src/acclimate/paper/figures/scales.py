"""Axes of powers of ten."""

from collections.abc import Sequence
from typing import Any


def is_logarithmic(values: Sequence[float]) -> bool:
    """More than a decade, and nothing at or below 0."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > 10


def log_axis(axis: Any) -> None:
    """Powers of ten as plain text: matplotlib's own are formulas, which SVG text draws badly."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    few = low > 0 and high / low < 30
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
