"""What a run measured of its embedding, in the unit of distance that `adapt` speaks in."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from acclimate.records.folder import DOMAINS, RunFolder

_DISTANCES = ("error", "error95", "radius", "bound", "between", "within")


def unit_of_adapt(run: Path) -> float | None:
    """What `adapt` divides distances by: the root of μ's dimensions. None where the run has no map
    of its domains."""
    path = RunFolder(run).listed(DOMAINS)
    if path is None:
        return None
    try:
        with safe_open(path, "numpy") as file:
            return math.sqrt(file.get_slice("mu").get_shape()[1])
    except (OSError, SafetensorError, IndexError):
        return None


def as_adapt_says(stored: dict[str, Any] | None, unit: float | None) -> dict[str, Any] | None:
    """What a run measured of its embedding, in `unit`s of distance. What is damaged stays so."""
    if stored is None or unit is None:
        return stored
    divisors = {**dict.fromkeys(_DISTANCES, unit), "variance": unit**2}

    def divided(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value / divisors[key] if key in divisors and value is not None else value
            for key, value in values.items()
        }

    try:
        lists = {name: [divided(row) for row in stored[name]] for name in ("points", "domains")}
        return {**divided(stored), **lists}
    except (KeyError, TypeError, AttributeError, ArithmeticError):
        return stored
