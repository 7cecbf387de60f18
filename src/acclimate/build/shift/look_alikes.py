"""Pairs of classes whose labels swap: named, or those that look most alike."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

import numpy as np

from acclimate.build.pools import Pool
from acclimate.build.shift.repaint import opened
from acclimate.build.shift.settings import ShiftSettings
from acclimate.core.errors import ConfigError, unknown
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest

_SIZE = 8  # pixels of the thumbnails that are compared
_SAMPLE = 32  # images of a class

Pair = tuple[int, int]  # classes, by their places in the list


def choose_pairs(
    base: Manifest,
    pool: Pool,
    classes: Sequence[str],
    settings: ShiftSettings,
    workers: Executor,
) -> list[Pair]:
    if settings.pairs is not None:
        return named_pairs(settings.pairs, classes)
    count = settings.pair_count(len(classes))
    if not count:
        return []
    return nearest_pairs(_class_means(base, pool, settings.seed, workers), count)


def named_pairs(text: str, classes: Sequence[str]) -> list[Pair]:
    """
    >>> named_pairs("cat:dog,cup:mug", ["cat", "cup", "dog", "mug"])
    [(0, 2), (1, 3)]
    """
    place = {name: number for number, name in enumerate(classes)}
    found: list[Pair] = []
    for pair in text.split(","):
        names = [name.strip() for name in pair.split(":")]
        if len(names) != 2:
            raise ConfigError(f"shift: '{pair}' of --pairs is no pair; write pairs as cat:dog")
        for name in names:
            if name not in place:
                raise unknown(f"shift: --pairs names '{name}', which is no class", name, classes)
        found.append((place[names[0]], place[names[1]]))
    members = [member for pair in found for member in pair]
    twice = next((one for one in members if members.count(one) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"shift: --pairs has '{classes[twice]}' twice; a class can be in one pair only"
        )
    return found


def nearest_pairs(means: np.ndarray, count: int) -> list[Pair]:
    """The nearest two of the classes, the nearest two of the others, and so on. means: [C, d]"""
    squares = (means**2).sum(1)
    distance = squares[:, None] + squares - 2 * means @ means.T
    one, other = np.triu_indices(len(means), 1)
    taken: set[int] = set()
    found: list[Pair] = []
    for place in np.argsort(distance[one, other], kind="stable"):
        pair = int(one[place]), int(other[place])
        if taken.isdisjoint(pair):
            taken.update(pair)
            found.append(pair)
        if len(found) == count:
            break
    return sorted(found)


def _class_means(base: Manifest, pool: Pool, seed: int, workers: Executor) -> np.ndarray:
    """[C, d]: the average thumbnail of some training images of each class."""
    rng = stream(seed, "look-alikes")
    drawn = pool.draw(np.minimum(pool.sizes, _SAMPLE), rng)
    label = dict(zip(pool.rows.tolist(), pool.label.tolist(), strict=True))
    means = np.zeros((len(pool.sizes), 3 * _SIZE * _SIZE))
    for row, thumbnail in zip(drawn, _thumbnails(base, drawn, workers), strict=True):
        means[label[int(row)]] += thumbnail
    means /= np.minimum(pool.sizes, _SAMPLE)[:, None]
    return means


def _thumbnails(base: Manifest, rows: np.ndarray, workers: Executor) -> Iterable[np.ndarray]:
    def thumbnail(row: int) -> np.ndarray:
        small = opened(base, row).resize((_SIZE, _SIZE))
        return np.asarray(small, dtype=np.float32).ravel() / 255

    return workers.map(thumbnail, rows.tolist())
