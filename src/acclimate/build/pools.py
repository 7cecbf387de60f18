"""Pools that share no image, the classes that have images in each, and draws from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from acclimate.core.errors import ManifestError
from acclimate.core.randomness import stream
from acclimate.data import readers
from acclimate.data.columns import SPLITS, first_rows, grouped
from acclimate.data.manifest import Manifest

_KEYS = 1 << 40
_DOMAIN = "all"  # of images that come without one
Allowed = Callable[[Sequence[str], str], list[str]]  # of classes (and their source): may be sampled


def every(classes: Sequence[str], source: str) -> list[str]:
    return list(classes)


def open_pool(path: str | Path, allowed: Allowed = every) -> Manifest:
    """Images to sample from: whatever a manifest can be made of, or a folder class/image.

    Of such a folder, which may hold all of ImageNet, only allowed classes are looked into.
    """
    root = Path(path).expanduser()
    folders = readers.class_folders(root) if root.is_dir() else None
    if folders is None:
        return Manifest.open(root)
    source = f"{root.resolve().name}/"
    table = readers.read_class_folders(root, source, allowed(folders, source))
    for name, value in (("domain", _DOMAIN), ("split", "train")):
        table = table.append_column(name, pa.repeat(value, table.num_rows))
    classes = tuple(sorted(table["label"].unique().to_pylist()))
    return Manifest(table, classes, root.resolve(), source)


def split_into_pools(
    base: Manifest, shares: tuple[float, float], seed: int
) -> dict[str, np.ndarray]:
    """Rows of each pool; an image is in one pool only, under whatever labels it has.

    `shares` are those of a class's images for validation and for test.
    """
    val_share, test_share = shares
    rows, first, image = _images(base)
    homes, order = base.label_index[rows[first]], rows[first]  # the first label of an image
    pool = np.full(len(homes), "train", dtype=object)
    for label, places in grouped(homes, range(len(base.classes))).items():
        members = places[np.argsort(order[places])]
        shuffled = stream(seed, "pool", base.classes[label]).permutation(members)
        # A class of three images or more has one in each pool.
        spare = len(shuffled) - 1
        test = min(max(round(len(shuffled) * test_share), 1), spare)
        val = min(max(round(len(shuffled) * val_share), 1), spare - test)
        pool[shuffled[:test]] = "test"
        pool[shuffled[test : test + val]] = "val"
    return {split: rows[pool[image] == split] for split in SPLITS}


def pools_of_splits(base: Manifest) -> dict[str, np.ndarray]:
    """Rows of each pool, by the data's own splits; an image's first row decides."""
    rows, first, image = _images(base)
    pool = base.splits[rows[first]]
    for split in SPLITS:
        if split not in pool:
            raise ManifestError(f"{base.source} has no split '{split}'; use --pools random")
    return {split: rows[pool[image] == split] for split in SPLITS}


def _images(base: Manifest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labelled rows, each (image, label) once; where each image is first, and each row's image."""
    usable = np.flatnonzero(base.label_index >= 0)
    rows = first_rows(usable, base.image_ids * len(base.classes) + base.label_index)
    _, first, image = np.unique(base.image_ids[rows], return_index=True, return_inverse=True)
    return rows, first, image


def choose_classes(
    base: Manifest,
    pools: Mapping[str, np.ndarray],
    allowed: Allowed = every,
    *,
    count: int,  # 0: all
    seed: int,
) -> tuple[tuple[str, ...], dict[str, "Pool"], list[str]]:
    """Returns the chosen classes, the pools with their images, and classes with too few images."""
    names = frozenset(allowed(base.classes, base.source))
    listed = [i for i, name in enumerate(base.classes) if name in names]
    present = [
        np.bincount(base.label_index[rows], minlength=len(base.classes)) > 0
        for rows in pools.values()
    ]
    complete = np.logical_and.reduce(present)
    fit = np.asarray([i for i in listed if complete[i]], dtype=np.int64)
    too_small = [base.classes[i] for i in listed if not complete[i]]
    number = count or len(fit)
    if number > len(fit) or not len(fit):
        raise ManifestError(
            f"{base.source} has {len(fit)} classes with images for training, validation and test "
            f"({len(base.classes) - len(listed)} excluded, {len(too_small)} too small), "
            f"not {max(number, 1)}; lower --classes, or add images"
        )
    chosen = np.sort(stream(seed, "classes").permutation(fit)[:number])
    labels = np.full(len(base.classes), -1)
    labels[chosen] = np.arange(len(chosen))
    arranged = {split: Pool.of(base, rows, labels) for split, rows in pools.items()}
    return tuple(base.classes[i] for i in chosen), arranged, too_small


@dataclass(frozen=True)
class Pool:
    """The rows of a pool, class by class."""

    rows: np.ndarray  # [n]
    label: np.ndarray  # [n], ascending
    starts: np.ndarray  # [C + 1]

    @classmethod
    def of(cls, base: Manifest, rows: np.ndarray, labels: np.ndarray) -> "Pool":
        """`labels` are the classes' new numbers, or -1 for those that are left out."""
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
