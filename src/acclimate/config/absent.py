"""Settings that are younger than runs and sweeps on disk, and what a configuration without them
means: such a one still opens, and still has the digest that it was stored under."""

from collections.abc import Mapping
from typing import Any

from acclimate.config.settings import SiteConfig
from acclimate.config.values import as_dict, merged, nested

_MEANT: Mapping[str, Any] = {"model.freeze": "none"}  # where that is not the default of today
_DEFAULT: Mapping[str, Any] = {
    "data.pack_gib": 32.0,
    "train.prior_aware": False,
    "adapt.rehearse": False,
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
    for name, meaning in {**_MEANT, **_DEFAULT}.items():
        group, key = name.split(".")
        inside = kept.get(group, {})
        if inside.get(key) == meaning:
            kept[group] = {other: value for other, value in inside.items() if other != key}
    return kept
