"""How a setting is declared: its default, limits, purpose and search range in one field."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

T = TypeVar("T")
# Marks the field of a dataclass that holds tables of settings by component, such as `tent` in
# `adapt.tent.steps`. In files they stand beside the other fields; `component_settings` checks them.
COMPONENTS = "components"


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


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Of a component that has none of its own."""


class Setting(NamedTuple):
    name: str  # dotted
    kind: Any  # its annotation
    default: Any
    facts: Mapping[str, Any]  # what `setting` was told


def settings_of(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Every setting of a dataclass of settings, with the values of `config` as defaults."""
    hints = get_type_hints(type(config))
    for entry in dataclasses.fields(config):
        name, value = f"{prefix}{entry.name}", getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{name}.")
        elif not entry.metadata.get(COMPONENTS):
            yield Setting(name, hints[entry.name], value, entry.metadata)


def log10(low: float, high: float) -> Search:
    return Search("log10", low, high)


def log2(low: float, high: float) -> Search:
    return Search("log2", low, high)


def choice(*options: Any) -> Search:
    return Search("choice", options=options)
