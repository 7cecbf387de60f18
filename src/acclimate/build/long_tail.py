"""Long-tailed domains sampled from any labelled images, as the paper made LT-ImageNet.

Each domain has a few random head classes with many images and all other classes with few. The
domains of the base do not matter; its rows are the pools that are sampled from.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.build.class_lists import ClassList, recorded
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.columns import SPLITS, grouped
from acclimate.data.manifest import Manifest

COLUMN = "long_tail"  # the same JSON in every row: how the data were made; no part of the digest
BASE_DOMAIN = "base_domain"
_KEYS = 1 << 40


@dataclass(frozen=True, kw_only=True)
class LongTailSettings:
    """LT(N, K, A, f). The defaults are the paper's but for the classes, of which it sampled 500."""

    classes: int = 0  # sampled from those of the base; 0: all
    only: tuple[str, ...] = ()  # class names that may be sampled; none: all
    exclude: tuple[str, ...] = ()  # class names that are not sampled
    exclude_ilsvrc12: bool = False  # nor are ILSVRC12's 1,000; classes are synsets
    domains: int = 50  # N, training domains
    heads: int = 100  # K, head classes of a domain
    per_class: int = 350  # A, training images of a head class in a domain
    tail: float = 0.1  # f, a tail class has round(A·f) images, and one at least unless f is 0
    val_per_class: int = 50  # A of validation splits and validation domains
    test_per_class: int = 300  # A of test splits and test domains
    val_domains: int = 10
    test_domains: int = 10
    # random: each class's images are dealt out by the shares below. splits: the base's own.
    pools: Literal["random", "splits"] = "random"
    val_share: float = 0.1
    test_share: float = 0.2
    # Above 0: A is divided so that N domains have together what this many would have with A.
    constant_total: int = 0
    seed: int = 0

    @property
    def list_of_classes(self) -> ClassList:
        return ClassList(
            only=self.only, exclude=self.exclude, exclude_ilsvrc12=self.exclude_ilsvrc12
        )

    def wanted(self, split: str) -> tuple[int, int]:
        """(images of a head class, images of a tail class) in a domain's `split`."""
        head: float = {"val": self.val_per_class, "test": self.test_per_class}.get(
            split, self.per_class
        )
        if split == "train" and self.constant_total:
            head = max(head * self.constant_total / self.domains, 1)
        tail = max(round(head * self.tail), 1) if self.tail else 0
        return round(head), tail


# The paper says nothing of the pools. In proportion to A, 700 images of a class are enough for all.
LT_IMAGENET = LongTailSettings(classes=500, val_share=50 / 700, test_share=300 / 700)


@dataclass(frozen=True, kw_only=True)
class Capped:
    """Where a pool had fewer images of a class than a domain should get, for one split."""

    wanted: int  # of a head class
    fewest: int  # images in the smallest pool that ran out
    times: int  # pairs of domain and class
    missing: int  # images in all


def build_long_tail(base: Manifest, settings: LongTailSettings | None = None) -> Manifest:
    """Domains `train-000`…, `val-000`… and `test-000`… with these roles.

    Train, val and test pools of a class share no image: training domains draw their splits from
    the pools of the same name, validation domains from the val pool, test domains from the test
    pool. Within a domain an image occurs once per class; domains are drawn independently, each
    from its own seed, so that the first M domains do not depend on how many follow. Unseen
    domains hold only classes that some training domain has. The images themselves are not
    copied: paths still start at the base's root; encoded images are carried along in the table.
    How it was made, and what was capped, is in the column `long_tail`: see `facts`.
    """
    settings = settings or LongTailSettings()
    _check(settings)
    pools = _pools(base, settings)
    classes, too_small = _choose_classes(base, pools, settings)
    _check_heads(settings, len(classes), base.source)
    labels = np.full(len(base.classes), -1)
    labels[classes] = np.arange(len(classes))
    arranged = {split: _Pool.of(base, rows, labels) for split, rows in pools.items()}
    drawn = _draw_all(arranged, len(classes), settings)
    return _assemble(base, classes, drawn, settings, too_small)


def facts(manifest: Manifest) -> dict[str, Any]:
    """How a long-tailed manifest was made: its settings, and what was capped for each split."""
    if COLUMN not in manifest.table.column_names or not len(manifest):
        raise ManifestError(
            f"{manifest.source} was not made by `acclimate build long-tail`; it has no column "
            f"'{COLUMN}'"
        )
    stored: dict[str, Any] = json.loads(manifest.table[COLUMN][0].as_py())
    return stored


def raised_total(settings: LongTailSettings, classes: int) -> tuple[int, int] | None:
    """(training images, those that `constant_total` asks for), where rounding up to one image of
    a class makes more of them; else None."""
    if not settings.constant_total:
        return None

    def total(made: LongTailSettings) -> int:
        head, tail = made.wanted("train")
        return made.domains * (made.heads * head + (classes - made.heads) * tail)

    asked = total(replace(settings, domains=settings.constant_total, constant_total=0))
    head = settings.per_class * settings.constant_total / settings.domains
    tails = settings.tail > 0 and classes > settings.heads
    raised = head < 1 or (tails and round(head * settings.tail) < 1)
    found = total(settings)
    return (found, asked) if raised and found > asked else None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check(settings: LongTailSettings) -> None:
    least = {
        "domains": 1,
        "heads": 1,
        "per_class": 1,
        "val_per_class": 1,
        "test_per_class": 1,
        **dict.fromkeys(("classes", "val_domains", "test_domains", "constant_total", "seed"), 0),
    }
    for name, low in least.items():
        value = getattr(settings, name)
        if value < low:
            raise ConfigError(f"long-tail: {_option(name)} must be at least {low}, not {value}")
    if not 0 <= settings.tail <= 1:
        raise ConfigError(f"long-tail: --tail must be from 0 to 1, not {settings.tail:g}")
    val, test = settings.val_share, settings.test_share
    if not (0 < val < 1 and 0 < test < 1 and val + test < 1):
        raise ConfigError(
            f"long-tail: --val-share and --test-share must be above 0 and leave something to train "
            f"on, not {val:g} and {test:g}"
        )


def _check_heads(settings: LongTailSettings, classes: int, source: str) -> None:
    if settings.heads > classes:
        raise ConfigError(
            f"long-tail: a domain cannot have {settings.heads} head classes of the {classes} that "
            f"{source} offers; lower --heads to {classes} or less"
        )


def _pools(base: Manifest, settings: LongTailSettings) -> dict[str, np.ndarray]:
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


def _choose_classes(
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
class _Pool:
    """The rows of a pool, class by class."""

    rows: np.ndarray  # [n]
    label: np.ndarray  # [n], ascending
    starts: np.ndarray  # [C + 1]

    @classmethod
    def of(cls, base: Manifest, rows: np.ndarray, labels: np.ndarray) -> "_Pool":
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
class _Part:
    """What one domain gets from one pool."""

    domain: str
    role: str
    split: str
    rows: np.ndarray
    wanted: np.ndarray  # [C]
    given: np.ndarray  # [C]


def _draw_all(pools: Mapping[str, _Pool], classes: int, settings: LongTailSettings) -> list[_Part]:
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
    pools: Mapping[str, _Pool],
    role: str,
    number: int,
    splits: Iterable[str],
    allowed: np.ndarray,
    classes: int,
    settings: LongTailSettings,
) -> list[_Part]:
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
        parts.append(_Part(name, role, split, drawn, wanted, given))
    return parts


def _assemble(
    base: Manifest,
    classes: np.ndarray,
    parts: Sequence[_Part],
    settings: LongTailSettings,
    too_small: list[str],
) -> Manifest:
    rows = np.concatenate([part.rows for part in parts])
    sizes = [len(part.rows) for part in parts]
    table = base.table.take(pa.array(rows))
    how = {
        "settings": {
            **asdict(settings),
            "only": recorded(settings.only),
            "exclude": recorded(settings.exclude),
        },
        "offered": len(base.classes),
        "capped": {split: asdict(found) for split, found in _capped(parts, settings).items()},
        "too_small": too_small,
        "base": base.digest(),
    }
    columns = {
        BASE_DOMAIN: table["domain"],
        "domain": _repeated([part.domain for part in parts], sizes),
        "split": _repeated([part.split for part in parts], sizes),
        "role": _repeated([part.role for part in parts], sizes),
        COLUMN: _constant(json.dumps(how, sort_keys=True, ensure_ascii=False), len(rows)),
    }
    for name, column in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    chosen = tuple(base.classes[i] for i in classes)
    return replace(base, table=table, classes=chosen, source="long-tail", declared_domains=())


def _repeated(names: Sequence[str], sizes: Sequence[int]) -> pa.Array:
    index = np.repeat(np.arange(len(names)), sizes)
    return pa.array(names, pa.string()).take(pa.array(index))


def _constant(text: str, count: int) -> pa.Array:
    """One text for all rows without a copy for each."""
    index = pa.array(np.zeros(count, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(index, pa.array([text], pa.string()))


def _capped(parts: Sequence[_Part], settings: LongTailSettings) -> dict[str, Capped]:
    found = {}
    for split in SPLITS:
        wanted = np.concatenate([part.wanted for part in parts if part.split == split])
        given = np.concatenate([part.given for part in parts if part.split == split])
        short = given < wanted
        if short.any():
            found[split] = Capped(
                wanted=settings.wanted(split)[0],
                fewest=int(given[short].min()),
                times=int(short.sum()),
                missing=int((wanted - given).sum()),
            )
    return found
