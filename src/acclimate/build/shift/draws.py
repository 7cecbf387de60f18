"""How strongly the domains of a family differ, which images each gets, and what is true of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from acclimate.build.base import Limited
from acclimate.build.pools import Pool
from acclimate.config import setting
from acclimate.core.errors import ConfigError
from acclimate.core.randomness import stream


@dataclass(frozen=True, kw_only=True)
class ShiftSettings(Limited):
    label: float = setting(
        1.0, "Label shift: how many times as frequent head classes are; 1: none.", at_least=1
    )
    heads: float = setting(
        0.2, "Share of the classes that are heads, drawn per domain.", at_least=0, at_most=1
    )
    covariate: float = setting(
        0.0, "Covariate shift: strength of gain, tint and noise, about 1; 0: none.", at_least=0
    )
    conditional: float = setting(
        0.0,
        "Conditional shift: pairs of look-alike classes that swap labels, or, below 1, the share "
        "of the classes in pairs; 0: none.",
        at_least=0,
    )
    domains: int = setting(60, "Domains to train on.", at_least=2)
    val: int = setting(10, "Unseen domains to choose by.", at_least=0)
    test: int = setting(20, "Unseen domains to score on.", at_least=0)
    per_domain: int = setting(1000, "Images of a domain.", at_least=2)
    classes: int = setting(0, "Classes to sample from DATA's; 0: all.", at_least=0)
    encoding: Literal["jpeg", "png"] = setting(
        "jpeg", "How changed images are stored: jpeg (quality 95), or png, which loses nothing."
    )
    seed: int = setting(0, "Seed of classes, pools, domains and images.")
    val_share: float = 0.2  # of the images, for validation splits and validation domains
    test_share: float = 0.3  # of the images, for test domains

    @property
    def swaps(self) -> bool:
        """Whether some labels depend on the latent."""
        return self.conditional > 0

    @property
    def repaints(self) -> bool:
        """Whether pixels change, so that images must be stored anew."""
        return self.covariate > 0 or self.swaps

    def head_count(self, classes: int) -> int:
        return max(round(self.heads * classes), 1) if self.label > 1 and self.heads > 0 else 0

    def pair_count(self, classes: int) -> int:
        """How many pairs of look-alikes, at most half as many as there are classes."""
        if self.conditional >= 1 and self.conditional != round(self.conditional):
            raise ConfigError(
                f"shift: --conditional {self.conditional:g} is no number of pairs; give a whole "
                "number, or a share of the classes below 1"
            )
        share = self.conditional < 1
        pairs = round(self.conditional * classes / 2) if share else round(self.conditional)
        if 2 * pairs > classes:
            raise ConfigError(
                f"shift: {classes} classes make at most {classes // 2} pairs, not {pairs}; "
                "lower --conditional"
            )
        return max(pairs, 1) if self.conditional else 0


# The splits of a domain by its role. Each is drawn from the pool of its name, and pools share no
# image: what a domain is validated or tested on was trained on nowhere.
SPLITS_OF = {"train": ("train", "val"), "val": ("val",), "test": ("test",)}


@dataclass(frozen=True)
class Domain:
    """What no model is told, and the rows of the base that were drawn for each split."""

    name: str
    role: str
    latent: int  # 1: the labels of every pair are swapped
    gain: float
    tint: float  # towards green, or if negative towards magenta
    noise: float
    rows: Mapping[str, np.ndarray]  # by split


def draw_domains(pools: Mapping[str, Pool], settings: ShiftSettings) -> list[Domain]:
    """`train-000`…, `val-000`… and `test-000`…, each from a random stream of its own."""
    counts = {"train": settings.domains, "val": settings.val, "test": settings.test}
    domains = []
    for role, count in counts.items():
        # Half of each role's domains, not each by a coin: few would lie all on one side.
        latents = stream(settings.seed, "latent", role).permutation(np.arange(count) % 2)
        for number, latent in enumerate(latents):
            domains.append(_domain(f"{role}-{number:03d}", role, int(latent), pools, settings))
    return domains


def _domain(
    name: str, role: str, latent: int, pools: Mapping[str, Pool], settings: ShiftSettings
) -> Domain:
    rng, strength = stream(settings.seed, "domain", name), settings.covariate
    frequencies = _frequencies(len(pools["train"].sizes), settings, rng)
    sizes = domain_sizes(role, pools, settings)
    rows = {}
    for split, size in sizes.items():
        draw = stream(settings.seed, "rows", name, split)
        rows[split] = pools[split].draw(apportioned(frequencies, size, draw), draw)
    return Domain(
        name=name,
        role=role,
        latent=latent if settings.swaps else 0,
        gain=float(np.exp(0.35 * strength * rng.standard_normal())),
        tint=float(0.15 * strength * rng.standard_normal()),
        noise=float(0.2 * strength * rng.random()),
        rows=rows,
    )


def _frequencies(classes: int, settings: ShiftSettings, rng: np.random.Generator) -> np.ndarray:
    """[C], sums to 1: the heads, drawn anew, `label` times as frequent as the others."""
    weights = np.ones(classes)
    weights[rng.permutation(classes)[: settings.head_count(classes)]] = settings.label
    return np.asarray(weights / weights.sum())


def apportioned(frequencies: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """int [C], sums to `size`: each share rounded down or up, the largest remainders up.

    Equal remainders are decided by lot.
    """
    shares = frequencies * size
    counts = np.floor(shares + 1e-9).astype(np.int64)
    remainders = np.round(shares - counts, 9)
    order = np.lexsort([rng.random(len(shares)), -remainders])
    counts[order[: size - counts.sum()]] += 1
    return counts


def domain_sizes(role: str, pools: Mapping[str, Pool], settings: ShiftSettings) -> dict[str, int]:
    """Images of each split of a domain: as many as asked for, or as the pool allows.

    No image comes twice and frequencies are kept, so that the smallest class, which may be a head,
    decides how large a domain can be.
    """
    held_out = round(settings.per_domain * settings.val_share)
    sizes = {"train": settings.per_domain - held_out, "val": held_out}
    if role != "train":
        sizes = {role: settings.per_domain}
    return {split: min(sizes[split], _largest(pools[split], settings)) for split in SPLITS_OF[role]}


def _largest(pool: Pool, settings: ShiftSettings) -> int:
    classes = len(pool.sizes)
    heads = settings.head_count(classes)
    most = (settings.label if heads else 1) / (heads * settings.label + classes - heads)
    return int(pool.sizes.min() / most + 1e-9)
