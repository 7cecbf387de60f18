"""How a setting is declared: its default, limits, purpose and search range in one field."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Search:
    """Where a sweep draws a field: `low`..`high` on a scale, or one of `options`."""

    scale: Literal["log10", "log2", "uniform", "choice"]
    low: float = 0.0
    high: float = 0.0
    options: tuple[Any, ...] = ()


def setting(
    default: T,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    search: Search | None = None,
) -> T:
    """A dataclass field with its limits, purpose and search range beside its default."""
    metadata = {"about": about, "at_least": at_least, "at_most": at_most, "search": search}
    return field(default=default, metadata=metadata)


def log10(low: float, high: float) -> Search:
    return Search("log10", low, high)


def log2(low: float, high: float) -> Search:
    return Search("log2", low, high)


def choice(*options: Any) -> Search:
    return Search("choice", options=options)
