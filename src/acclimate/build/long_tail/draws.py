"""What each long-tailed domain draws from the pools."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from acclimate.build.long_tail.settings import LongTailSettings
from acclimate.build.pools import Pool
from acclimate.core.randomness import stream
from acclimate.data.columns import SPLITS


@dataclass(frozen=True)
class Part:
    """What one domain gets from one pool."""

    domain: str
    role: str
    split: str
    rows: np.ndarray
    wanted: np.ndarray  # [C]
    given: np.ndarray  # [C]


def draw_domains(pools: Mapping[str, Pool], classes: int, settings: LongTailSettings) -> list[Part]:
    every = np.arange(classes)
    parts = [
        part
        for number in range(settings.domains)
        for part in _draw(pools, "train", number, SPLITS, every, classes, settings)
    ]
    seen = np.flatnonzero(sum(part.given for part in parts if part.split == "train"))
    for role, count in (("val", settings.val_domains), ("test", settings.test_domains)):
        for number in range(count):
            parts += _draw(pools, role, number, (role,), seen, classes, settings)
    return parts


def _draw(
    pools: Mapping[str, Pool],
    role: str,
    number: int,
    splits: Iterable[str],
    allowed: np.ndarray,
    classes: int,
    settings: LongTailSettings,
) -> list[Part]:
    name = f"{role}-{number:03d}"
    rng = stream(settings.seed, "domain", name)
    shuffled = rng.permutation(classes)
    heads = shuffled[np.isin(shuffled, allowed)][: settings.heads]
    parts = []
    for split in splits:
        head, tail = settings.wanted(split)
        wanted = np.zeros(classes, dtype=np.int64)
        wanted[allowed] = tail
        wanted[heads] = head
        given = np.minimum(wanted, pools[split].sizes)
        drawn = pools[split].draw(given, stream(settings.seed, "rows", name, split))
        parts.append(Part(name, role, split, drawn, wanted, given))
    return parts
