"""Presets, files, flags and assignments become one configuration."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from acclimate.config.presets import preset as preset_settings
from acclimate.config.settings import RunConfig
from acclimate.config.values import flat, from_dict, merged, nested
from acclimate.core.errors import ConfigError


def gather(
    preset: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    recipe: str | None = None,
    where: str = "settings",
) -> RunConfig:
    """Defaults < preset < file < flags < changes.

    `flags` are by dotted name, and one that is None or empty was not given; `changes` are nested.
    `recipe` is the preset where neither a preset nor an algorithm is named anywhere.
    `where` is what errors call the whole; those of a file name the file.
    """
    written = {} if file is None else read_toml(file)
    from_dict(RunConfig, written, where=str(file))
    given = {key: value for key, value in (flags or {}).items() if value not in (None, ())}
    asked = layered(written, nested(given), changes or {})
    if preset is None and "algorithm" not in asked:
        preset = recipe
    named = preset_settings(preset) if preset else {}
    return from_dict(RunConfig, layered(named, written, nested(given), changes or {}), where=where)


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
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"{path}: cannot be read as a settings file ({reason})") from None
    except ValueError as error:  # of the TOML, of its numbers, or of its encoding
        raise ConfigError(f"{path}: not valid TOML ({error}); mend it") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML (nested too deeply); mend it") from None


def _literal(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return (
            text  # bare words are strings, so that `--set model.backbone=resnet50` needs no quotes
        )
