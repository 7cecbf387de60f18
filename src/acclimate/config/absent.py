"""Settings that are younger than runs and sweeps on disk, and what a configuration without them
means: such a one still opens, and still has the digest that it was stored under."""

from collections.abc import Mapping
from typing import Any

from acclimate.config.settings import SiteConfig
from acclimate.config.values import as_dict, merged, nested

ABSENT: Mapping[str, Any] = {
    "model.freeze": "none",
    "train.prior_aware": False,
    "adapt.rehearse": False,
    "adapt.site": as_dict(SiteConfig()),
}


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values as they were stored, with the settings that they do not know yet."""
    return merged(nested(ABSENT), stored)


def digestible(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values without the younger settings that say what their absence says."""
    kept = dict(values)
    for name, meaning in ABSENT.items():
        group, key = name.split(".")
        inside = kept.get(group, {})
        if inside.get(key) == meaning:
            kept[group] = {other: value for other, value in inside.items() if other != key}
    return kept
