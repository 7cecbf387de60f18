"""Settings that are younger than runs and sweeps on disk, and what a configuration without them
means: such a one still opens, and still has the digest that it was stored under."""

from collections.abc import Mapping, Sequence
from typing import Any

from acclimate.config.settings import AverageConfig, ProbeConfig, SiteConfig
from acclimate.config.values import as_dict, merged, nested

# Where that is not the default of today.
_MEANT: Mapping[str, Any] = {"model.freeze": "none", "adapt.depth": "heads"}
_DEFAULT: Mapping[str, Any] = {
    "data.min_images": 0,
    "data.pack_gib": 32.0,
    "train.compile": "auto",
    "train.parts": 0,
    "train.prior_aware": False,
    "train.last_fit": False,
    "train.probe": as_dict(ProbeConfig()),
    "train.average.patience": AverageConfig().patience,
    "train.average.tolerance": AverageConfig().tolerance,
    "train.average.ratio": AverageConfig().ratio,
    "adapt.rehearse": False,
    "adapt.methods": [],
    "adapt.site": as_dict(SiteConfig()),
}


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values as they were stored, with what they mean by what they do not have."""
    return merged(nested(_MEANT), stored)


def spelled_out(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The same with every younger setting."""
    return merged(nested({**_MEANT, **_DEFAULT}), stored)


def digestible(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values without the younger settings that say what their absence says."""
    kept = dict(values)
    adapt = kept.get("adapt", {})
    if not adapt.get("rehearse", False):  # nothing has a depth then
        kept = _without(kept, ["adapt", "depth"], adapt.get("depth"))
    for name, meaning in {**_MEANT, **_DEFAULT}.items():
        kept = _without(kept, name.split("."), meaning)
    return kept


def _without(values: Mapping[str, Any], path: Sequence[str], meaning: Any) -> dict[str, Any]:
    """`values` less the one at `path`, if it is there and is `meaning`."""
    key, *further = path
    if key not in values:
        return dict(values)
    if further:
        return {**values, key: _without(values[key], further, meaning)}
    return {other: v for other, v in values.items() if other != key or v != meaning}
