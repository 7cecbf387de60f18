"""Settings as nested values, as JSON, TOML and --set hold them, and as checked dataclasses.

Unknown keys are refused with the nearest valid one.
"""

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from acclimate.core.errors import ConfigError, unknown
from acclimate.core.files import read_bytes

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


_hints = lru_cache(get_type_hints)  # a file of records asks for them line by line


def settings_of(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Every setting of a dataclass of settings, with the values of `config` as defaults."""
    hints = _hints(config.__class__)
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


def uniform(low: float, high: float) -> Search:
    return Search("uniform", low, high)


def choice(*options: Any) -> Search:
    return Search("choice", options=options)


_RANGE = re.compile(r"\s*(log10|log2|uniform|choice)\s*\((.*)\)\s*", re.DOTALL)


def parse_range(text: object, key: str) -> Search:
    """ "log10(-5, -3.5)", "log2(3, 5.5)", "uniform(0, 5)" or "choice(0.0, 0.1, 0.5)" """
    matched = _RANGE.fullmatch(text) if isinstance(text, str) else None
    try:
        values = tuple(tomllib.loads(f"values = [{matched[2]}]")["values"]) if matched else ()
    except (ValueError, RecursionError):
        values = ()
    if matched and values and matched[1] == "choice":
        return Search("choice", options=values)
    numbers = [value for value in values if type(value) in (int, float)]
    if matched and len(values) == len(numbers) == 2 and numbers[0] <= numbers[1]:
        scale = cast(Any, matched[1])
        return Search(scale, float(numbers[0]), float(numbers[1]))
    raise ConfigError(
        f"search: '{key}' cannot be drawn from {text!r}; write a range in quotes: "
        f"log10(low, high), log2(low, high), uniform(low, high) or choice(one, another)"
    )


LARGEST = 1e10  # of what has no limit of its own: no step, size or weight means more


def as_dict(config: Any) -> dict[str, Any]:
    """Plain nested values, as JSON and TOML hold them."""
    return cast(dict[str, Any], json.loads(json.dumps(_plain(config))))


def from_dict(cls: type[T], values: Any, *, where: str, prefix: str = "") -> T:
    """Build `cls` from nested values; every unknown key, wrong type or limit is an error."""
    if not isinstance(values, Mapping):
        name = prefix.removesuffix(".")
        raise ConfigError(f"{where}: '{name}' holds settings of its own, not {values!r}")
    kind = cast(Any, cls)
    hints, fields = _hints(kind), {f.name: f for f in dataclasses.fields(kind)}
    tables = next((key for key, f in fields.items() if f.metadata.get(COMPONENTS)), None)
    fields.pop(tables or "", None)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if tables and key not in fields and isinstance(value, Mapping):
            checked.setdefault(tables, {})[key] = dict(value)
            continue
        if not fields:
            raise ConfigError(f"{where}: there is no setting '{name}', or any other of its kind")
        if key not in fields:
            raise unknown(f"{where}: there is no setting '{name}'", key, fields, prefix=prefix)
        checked[key] = _check(value, hints[key], fields[key].metadata, name, where)
    return cls(**checked)


def component_settings(
    config: Any, kinds: Mapping[str, type[Any]], *, prefix: str
) -> dict[str, Any]:
    """The settings of every component, by name, from the tables in `config.components`.

    `kinds` are the dataclasses that check them; a table of no component is an error.
    """
    groups = [f.name for f in dataclasses.fields(config) if f.default is dataclasses.MISSING]
    for name in config.components:
        if name not in kinds:
            known = {*kinds, *groups} - {COMPONENTS}
            raise unknown(f"there is no setting '{prefix}{name}'", name, known, prefix=prefix)
    return {
        name: from_dict(
            kind, config.components.get(name, {}), where=name, prefix=f"{prefix}{name}."
        )
        for name, kind in kinds.items()
    }


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with nested `changes` laid over it."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return result


def with_settings(config: T, changes: Mapping[str, Any]) -> T:
    """`config` with other values of some settings, by dotted name."""
    values = merged(as_dict(config), nested(changes))
    return from_dict(type(config), values, where="settings")


def nested(assignments: Mapping[str, Any]) -> dict[str, Any]:
    """{"train.steps": 5} -> {"train": {"steps": 5}}"""
    result: dict[str, Any] = {}
    for key, value in assignments.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        result = merged(result, value)
    return result


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The inverse of `nested`: {"train": {"steps": 5}} -> {"train.steps": 5}"""
    result: dict[str, Any] = {}
    for key, value in values.items():
        below = isinstance(value, Mapping)
        result |= flat(value, f"{prefix}{key}.") if below else {f"{prefix}{key}": value}
    return result


def layered(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Nested `sources`, later ones over earlier ones.

    Steps that a source names end the epochs of those before it, which would replace them.
    """
    values: dict[str, Any] = {}
    for source in sources:
        earlier, values = flat(values), merged(values, source)
        named = flat(source)
        if "train.epochs" in earlier and "train.steps" in named and "train.epochs" not in named:
            values = merged(values, {"train": {"epochs": 0.0}})
    return values


def parse_assignments(
    assignments: Iterable[str], *, only: str = "", flag: str = "--set"
) -> dict[str, Any]:
    """`["train.steps=5", "model.backbone=small-cnn"]` -> nested values, of one group if asked."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            example = ", e.g. --set train.steps=500" if flag == "--set" else ""
            raise ConfigError(f"{flag} {assignment}: write it as key=value{example}")
        if not key.strip().startswith(only and f"{only}."):
            raise ConfigError(f"{flag} {assignment}: only settings of '{only}' play a part here")
        values[key.strip()] = _literal(text.strip())
    return nested(values)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bytes(path).decode())
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"{path}: cannot be read as a settings file ({reason})") from None
    except (ValueError, RecursionError) as error:  # of the TOML, its numbers, or its encoding
        raise ConfigError(f"{path}: not valid TOML ({error}); mend it") from None


def _literal(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text  # bare words are strings: `--set model.backbone=resnet50` needs no quotes


def _plain(config: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if entry.metadata.get(COMPONENTS):
            plain |= value
        else:
            plain[entry.name] = _plain(value) if dataclasses.is_dataclass(value) else value
    return plain


def _check(value: Any, hint: Any, limits: Mapping[str, Any], name: str, where: str) -> Any:
    value = _convert(value, hint, name, where)
    low, high = limits.get("at_least"), limits.get("at_most")
    allowed = ""
    if limits and isinstance(value, float) and not math.isfinite(value):
        allowed = "a finite number"
    elif isinstance(value, int | float) and low is not None:
        if high is None and value > LARGEST:
            allowed = f"at most {LARGEST:g}"
        else:
            allowed = range_missed(value, low, high)
    if allowed:
        raise ConfigError(f"{where}: '{name}' must be {allowed}, not {value!r}")
    return value


def range_missed(value: float, low: float, high: float | None) -> str:
    """What a number that is beyond its limits must be, in words; "" for one within them."""
    if low <= value <= (math.inf if high is None else high):
        return ""
    return f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _convert(value: Any, hint: Any, name: str, where: str) -> Any:
    """`value` as the annotated type; integers pass as floats, nothing else is converted."""
    origin, options = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_dict(cast(Any, hint), value, where=where, prefix=f"{name}.")
    if origin in (Union, UnionType):
        inner = next(option for option in options if option is not type(None))
        return None if value is None else _convert(value, inner, name, where)
    if origin is Literal:
        fits, kind = value in options, f"one of {', '.join(map(str, options))}"
    elif origin is tuple:
        several, of = [value] if isinstance(value, str) else value, options[0]
        kind = "a list of names" if of is str else "a list"
        fits = isinstance(several, list | tuple)
        if fits and of is str:
            fits = all(isinstance(one, str) for one in several)
        if fits:
            value = tuple(_convert(one, of, name, where) for one in several)
    elif origin in (dict, Mapping):
        fits, kind = isinstance(value, Mapping), "a table"
        if fits and options[1] is not Any:
            value = {key: _convert(one, options[1], name, where) for key, one in value.items()}
    else:
        if hint is float and type(value) is int:
            with suppress(OverflowError):  # an integer of hundreds of digits stays one
                value = float(value)
        fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
        kind = _KINDS[hint]
    if not fits:
        raise ConfigError(f"{where}: '{name}' must be {kind}, not {value!r}")
    return value
