"""Pools that share no image, the classes that have enough in each, and draws from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from acclimate.build.long_tail.settings import LongTailSettings
from acclimate.core.errors import ManifestError
from acclimate.core.randomness import stream
from acclimate.data.columns import SPLITS, grouped
from acclimate.data.manifest import Manifest

_KEYS = 1 << 40


def split_into_pools(base: Manifest, settings: LongTailSettings) -> dict[str, np.ndarray]:
    """Rows of each pool; an image is in one pool only, under whatever labels it has."""
    usable = np.flatnonzero(base.label_index >= 0)
    images = _image_codes(base)
    pairs = images[usable] * len(base.classes) + base.label_index[usable]
    rows = usable[np.sort(np.unique(pairs, return_index=True)[1])]  # each (image, label) once
    _, first, image = np.unique(images[rows], return_index=True, return_inverse=True)
    if settings.pools == "splits":
        pool_of_image = base.splits[rows[first]]
        for split in SPLITS:
            if split not in pool_of_image:
                raise ManifestError(f"{base.source} has no split '{split}'; use --pools random")
    else:
        pool_of_image = _dealt(base, base.label_index[rows[first]], rows[first], settings)
    pool = pool_of_image[image]
    return {split: rows[pool == split] for split in SPLITS}


def _dealt(
    base: Manifest, home: np.ndarray, order: np.ndarray, settings: LongTailSettings
) -> np.ndarray:
    """Each class's images shuffled and dealt out; an image with several labels counts with its
    first. A class of three images or more has one in each pool."""
    pool = np.full(len(home), "train", dtype=object)
    for label, found in grouped(home, range(len(base.classes))).items():
        members = found[np.argsort(order[found])]
        shuffled = stream(settings.seed, "pool", base.classes[label]).permutation(members)
        spare = len(shuffled) - 1
        test = min(max(round(len(shuffled) * settings.test_share), 1), spare)
        val = min(max(round(len(shuffled) * settings.val_share), 1), spare - test)
        pool[shuffled[:test]] = "test"
        pool[shuffled[test : test + val]] = "val"
    return pool


def _image_codes(base: Manifest) -> np.ndarray:
    """int64 [n], equal where two rows hold the same image; feature vectors are all their own."""
    codes = np.arange(len(base))
    for name in ("bytes", "image"):
        if name not in base.table.column_names:
            continue
        column = base.table[name].combine_chunks()
        named = pc.is_valid(column).to_numpy(zero_copy_only=False)
        found = pc.index_in(column, value_set=pc.unique(column)).to_numpy(zero_copy_only=False)
        # After all codes so far, so that a path and a row without one cannot be the same.
        codes = np.where(named, codes.max(initial=0) + 1 + found.astype(np.int64), codes)
    return codes


def choose_classes(
    base: Manifest, pools: Mapping[str, np.ndarray], settings: LongTailSettings
) -> tuple[np.ndarray, list[str]]:
    """(chosen classes, as sorted indices into the base's; those with too few images)"""
    names = frozenset(settings.list_of_classes.allowed(base.classes, base.source))
    allowed = [i for i, name in enumerate(base.classes) if name in names]
    present = [
        np.bincount(base.label_index[rows], minlength=len(base.classes)) > 0
        for rows in pools.values()
    ]
    complete = np.logical_and.reduce(present)
    fit = np.asarray([i for i in allowed if complete[i]], dtype=np.int64)
    too_small = [base.classes[i] for i in allowed if not complete[i]]
    wanted = settings.classes or len(fit)
    if wanted > len(fit) or not len(fit):
        raise ManifestError(
            f"{base.source} has {len(fit)} classes with images for training, validation and test "
            f"({len(base.classes) - len(allowed)} excluded, {len(too_small)} too small), "
            f"not {max(wanted, 1)}; lower --classes, or add images"
        )
    chosen = stream(settings.seed, "classes").permutation(fit)[:wanted]
    return np.sort(chosen), too_small


@dataclass(frozen=True)
class Pool:
    """The rows of a pool, class by class."""

    rows: np.ndarray  # [n]
    label: np.ndarray  # [n], ascending
    starts: np.ndarray  # [C + 1]

    @classmethod
    def of(cls, base: Manifest, rows: np.ndarray, labels: np.ndarray) -> "Pool":
        label = labels[base.label_index[rows]]
        rows, label = rows[label >= 0], label[label >= 0]
        order = np.argsort(label, kind="stable")
        rows, label = rows[order], label[order]
        return cls(rows, label, np.searchsorted(label, np.arange(labels.max() + 2)))

    def draw(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """counts[c] rows of each class c, without replacement, in the order of the base."""
        keys = self.label * _KEYS + rng.integers(_KEYS, size=len(self.rows))
        shuffled = np.argsort(keys, kind="stable")
        rank = np.arange(len(keys)) - self.starts[self.label]  # the same before and after
        return np.sort(self.rows[shuffled[rank < counts[self.label]]])

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.starts)


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
