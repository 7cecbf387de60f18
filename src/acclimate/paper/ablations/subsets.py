"""Fewer training domains, or fewer images of each, with everything unseen left as it is."""

from collections.abc import Collection

import numpy as np

from acclimate.core.errors import ConfigError
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest

LEAST = 2  # training images of a domain


def domain_order(domains: Collection[str], seed: int) -> list[str]:
    """The domains in a random order, of which subsets are the beginning: they are nested."""
    names = sorted(domains)
    return [names[place] for place in stream(seed, "domain order").permutation(len(names))]


def first_domains(manifest: Manifest, training: Collection[str], count: int, seed: int) -> Manifest:
    """All rows but those of training domains after the first `count` in the random order."""
    if not 1 <= count <= len(training):
        raise ConfigError(
            f"{manifest.source} has {len(training)} training domains, not {count}; "
            f"choose from 1 to {len(training)}"
        )
    return manifest.without_domains(*domain_order(training, seed)[count:])


def thinned(manifest: Manifest, training: Collection[str], total: int, seed: int) -> Manifest:
    """Training domains cut at random to `total` training images together, the same from each.

    Their validation rows are cut in the same proportion; test rows and other domains stay. A
    domain's smaller subset is part of its larger ones.
    """
    names = sorted(training)
    keep = np.ones(len(manifest), dtype=bool)
    for place, name in enumerate(names):
        size = total // len(names) + (place < total % len(names))
        rows = manifest.rows(domain=name, split="train")
        if not LEAST <= size <= len(rows):
            raise ConfigError(
                f"domain '{name}' of {manifest.source} has {len(rows)} training images and cannot "
                f"be cut to {size}; choose other numbers of domains"
            )
        keep[_shuffled(rows, seed, name, "train")[size:]] = False
        validation = manifest.rows(domain=name, split="val")
        share = min(len(validation), max(round(len(validation) * size / len(rows)), 1))
        keep[_shuffled(validation, seed, name, "val")[share:]] = False
    return manifest.select(np.flatnonzero(keep))


def _shuffled(rows: np.ndarray, seed: int, domain: str, split: str) -> np.ndarray:
    return stream(seed, "thinned", domain, split).permutation(rows)
