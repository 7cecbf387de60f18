"""Long-tailed domains sampled from any labelled images, as the paper made LT-ImageNet.

Each domain has a few random head classes with many images and all other classes with few. The
domains of the base do not matter; its rows are the pools that are sampled from.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from acclimate.build.base import OUT, Builder, Built, Limited, argument, flag, in_short, required
from acclimate.build.pools import Pool, choose_classes, open_pool, pools_of_splits, split_into_pools
from acclimate.build.synsets import ilsvrc12_synsets, is_synset, read_names, short
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ManifestError, require_known
from acclimate.core.progress import Watch
from acclimate.core.randomness import stream
from acclimate.core.text import count, listed
from acclimate.data.columns import SPLITS
from acclimate.data.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class LongTailSettings(Limited):
    """LT(N, K, A, f). The defaults are the paper's but for the classes, of which it sampled 500."""

    classes: int = 0  # sampled from those of the base; 0: all
    only: tuple[str, ...] = ()  # class names that may be sampled; none: all
    exclude: tuple[str, ...] = ()  # class names that are not sampled
    exclude_ilsvrc12: bool = flag("Leave out ILSVRC12's classes; DATA's are synsets.")
    domains: int = setting(50, "N, domains to train on.", at_least=1)
    heads: int = setting(100, "K, head classes of a domain.", at_least=1)
    per_class: int = setting(350, "A, training images of a head class.", at_least=1)
    # A tail class has round(A·f) images, and one at least unless f is 0.
    tail: float = setting(0.1, "f, a tail class has this share of A.", at_least=0, at_most=1)
    val_per_class: int = setting(50, "A of validation splits and domains.", at_least=1)
    test_per_class: int = setting(300, "A of test splits and domains.", at_least=1)
    val_domains: int = setting(10, "Unseen domains to choose by.", at_least=0)
    test_domains: int = setting(10, "Unseen domains to score on.", at_least=0)
    pools: Literal["random", "splits"] = setting(
        "random", "random: each class dealt out by the shares; splits: DATA's own."
    )
    val_share: float = 0.1
    test_share: float = 0.2
    constant_total: int = setting(
        0, "Divide A so that the total is that of this many domains; 0: no.", at_least=0
    )
    seed: int = setting(0, "Seed of classes, pools and domains.", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        val, test = self.val_share, self.test_share
        if not (0 < val < 1 and 0 < test < 1 and val + test < 1):
            raise ConfigError(
                f"long-tail: --val-share and --test-share must be above 0 and leave something to "
                f"train on, not {val:g} and {test:g}"
            )

    @cached_property
    def excluded(self) -> set[str]:
        return {*self.exclude, *(ilsvrc12_synsets() if self.exclude_ilsvrc12 else ())}

    def allowed(self, classes: Sequence[str], source: str) -> list[str]:
        """Those of `classes` that may be sampled, in their order."""
        if self.exclude_ilsvrc12 and not any(map(is_synset, classes)):
            raise ManifestError(
                f"no class of {source} is a synset such as n01440764, and ILSVRC12's are to be "
                "left out; name the classes by their synsets, or leave --exclude-ilsvrc12 and "
                "--preset lt-imagenet away"
            )
        wanted = set(self.only or classes)
        if wanted.isdisjoint(classes):
            raise ManifestError(
                f"{source} has none of the {len(wanted)} classes that --only lists; it has "
                f"{', '.join(map(short, classes[:3])) or 'none'}: check the names"
            )
        return [name for name in classes if name in wanted and name not in self.excluded]

    def images_per_class(self, split: str) -> tuple[int, int]:
        """(images of a head class, images of a tail class) in a domain's `split`."""
        head: float = {"val": self.val_per_class, "test": self.test_per_class}.get(
            split, self.per_class
        )
        if split == "train" and self.constant_total:
            head = max(head * self.constant_total / self.domains, 1)
        tail = max(round(head * self.tail), 1) if self.tail else 0
        return round(head), tail


# The network is pretrained on ILSVRC12, so none of its classes is sampled. The paper says nothing
# of the pools: in proportion to A, 700 images of a class are enough for all.
PRESETS: dict[str, dict[str, Any]] = {
    "lt-imagenet": {
        "classes": 500, "exclude_ilsvrc12": True, "val_share": 50 / 700, "test_share": 300 / 700,
    }
}  # fmt: skip
LT_IMAGENET = LongTailSettings(**PRESETS["lt-imagenet"])


@dataclass(frozen=True)
class _Draw:
    """What one domain gets from one pool."""

    domain: str
    role: str
    split: str
    rows: np.ndarray
    wanted: np.ndarray  # [C], images
    counts: np.ndarray  # [C], as many of them as the pool has


def _draw_domains(
    pools: Mapping[str, Pool], classes: int, settings: LongTailSettings
) -> list[_Draw]:
    every = np.arange(classes)
    draws = [
        draw
        for number in range(settings.domains)
        for draw in _draw(pools, "train", number, SPLITS, every, settings)
    ]
    seen = np.flatnonzero(sum(draw.counts for draw in draws if draw.split == "train"))
    for role, domains in (("val", settings.val_domains), ("test", settings.test_domains)):
        for number in range(domains):
            draws += _draw(pools, role, number, (role,), seen, settings)
    return draws


def _draw(
    pools: Mapping[str, Pool],
    role: str,
    number: int,
    splits: Iterable[str],
    allowed: np.ndarray,  # classes, by their numbers
    settings: LongTailSettings,
) -> Iterator[_Draw]:
    name = f"{role}-{number:03d}"
    classes = len(pools[role].sizes)
    shuffled = stream(settings.seed, "domain", name).permutation(classes)
    heads = shuffled[np.isin(shuffled, allowed)][: settings.heads]
    for split in splits:
        head, tail = settings.images_per_class(split)
        wanted = np.zeros(classes, dtype=np.int64)
        wanted[allowed] = tail
        wanted[heads] = head
        counts = np.minimum(wanted, pools[split].sizes)
        rows = pools[split].draw(counts, stream(settings.seed, "rows", name, split))
        yield _Draw(name, role, split, rows, wanted, counts)


COLUMN = "long_tail"  # the same JSON in every row: how the data were made; no part of the digest
BASE_DOMAIN = "base_domain"


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
    seed, shares = settings.seed, (settings.val_share, settings.test_share)
    rows = (
        pools_of_splits(base)
        if settings.pools == "splits"
        else split_into_pools(base, shares, seed)
    )
    classes, pools, too_small = choose_classes(
        base, rows, settings.allowed, count=settings.classes, seed=seed
    )
    if settings.heads > len(classes):
        raise ConfigError(
            f"long-tail: a domain cannot have {settings.heads} head classes of the {len(classes)} "
            f"that {base.source} offers; lower --heads to {len(classes)} or less"
        )
    draws = _draw_domains(pools, len(classes), settings)
    how = {
        "settings": asdict(settings),
        "offered": len(base.classes),
        "capped": _count_caps(draws, settings),
        "too_small": too_small,
        "base": base.digest(),
    }
    return _assemble(base, classes, draws, json.dumps(how, sort_keys=True, ensure_ascii=False))


def facts(manifest: Manifest) -> dict[str, Any]:
    """How a long-tailed manifest was made: its settings, and what was capped for each split."""
    if COLUMN not in manifest.table.column_names or not len(manifest):
        raise ManifestError(
            f"{manifest.source} was not made by `acclimate build long-tail`; it has no column "
            f"'{COLUMN}'"
        )
    stored: dict[str, Any] = json.loads(manifest.table[COLUMN][0].as_py())
    return stored


def _assemble(
    base: Manifest, classes: tuple[str, ...], draws: Sequence[_Draw], how: str
) -> Manifest:
    rows = np.concatenate([draw.rows for draw in draws])
    sizes = [len(draw.rows) for draw in draws]
    table = base.table.take(pa.array(rows))
    columns = {BASE_DOMAIN: table["domain"]}
    for name in ("domain", "split", "role"):
        values = [getattr(draw, name) for draw in draws]
        columns[name] = _repeat(values, sizes).dictionary_decode()
    columns[COLUMN] = _repeat([how], [len(rows)])  # encoded: one text, not a copy in each row
    for name, column in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return replace(base, table=table, classes=classes, source="long-tail", declared_domains=())


def _repeat(texts: Sequence[str], sizes: Sequence[int]) -> pa.DictionaryArray:
    index = np.repeat(np.arange(len(texts), dtype=np.int32), sizes)
    return pa.DictionaryArray.from_arrays(pa.array(index), pa.array(texts, pa.string()))


def _count_caps(draws: Sequence[_Draw], settings: LongTailSettings) -> dict[str, dict[str, int]]:
    """Where pools had fewer images of a class than a domain should get, by split."""
    capped = {}
    for split in SPLITS:
        wanted = np.concatenate([draw.wanted for draw in draws if draw.split == split])
        counts = np.concatenate([draw.counts for draw in draws if draw.split == split])
        short = counts < wanted
        if short.any():
            capped[split] = {
                "wanted": settings.images_per_class(split)[0],  # of a head class
                "fewest": int(counts[short].min()),  # images in the smallest pool that ran out
                "times": int(short.sum()),  # pairs of domain and class
                "missing": int((wanted - counts).sum()),  # images in all
            }
    return capped


@dataclass(frozen=True, kw_only=True)
class LongTail(Builder):
    example = (
        "acclimate build long-tail imagenet21k --preset lt-imagenet "
        "--only in5k_map.json --out lt.parquet"
    )

    data: Path = argument(
        "A manifest, a table, or a folder: domain/class/image, or class/image as ImageNet."
    )
    out: Path = required(OUT)
    preset: str | None = setting(
        None, "lt-imagenet: the paper's; 500 classes, none of ILSVRC12's, pools as 350:50:300."
    )
    classes: int | None = setting(None, "Classes to sample. [default: all]", at_least=0)
    val_share: float | None = setting(None, "Share of a class's validation pool. [default: 0.1]")
    test_share: float | None = setting(None, "Share of a class's test pool. [default: 0.2]")
    only: Path | None = setting(
        None, "A file of classes to sample from: one per line, or in5k_map.json."
    )
    exclude: Path | None = setting(None, "A file of classes to leave out, in the same forms.")
    settings: LongTailSettings = field(default_factory=LongTailSettings)

    def build(self, watch: Watch) -> Built:
        settings = self._settings()
        base = open_pool(self.data, settings.allowed)
        base.check()
        manifest = build_long_tail(base, settings)
        manifest.write(self.out)
        how, notes = facts(manifest), []
        known = {*base.classes, *settings.excluded}
        absent = [short(name) for name in settings.only if name not in known]
        if absent:
            names = count(len(absent), "name of --only is", "names of --only are")
            notes.append(f"{names} not in the data: {listed(absent, 3)}")
        summary = [*_summary(manifest, how), *(f"note: {note}" for note in notes)]
        return Built(
            manifest=manifest,
            out=self.out,
            facts={**how, "notes": notes},
            summary=[*summary, in_short(manifest)],
        )

    def _settings(self) -> LongTailSettings:
        """What was asked for, before the preset, before the defaults."""
        if self.preset:
            message = f"--preset {self.preset}: there is no such choice"
            require_known(self.preset, PRESETS, message)
        options = {name: getattr(self, name) for name in ("classes", "val_share", "test_share")}
        chosen = {name: value for name, value in options.items() if value is not None}
        return replace(
            self.settings,
            **{**PRESETS.get(self.preset or "", {}), **chosen},
            only=() if self.only is None else read_names(self.only),
            exclude=() if self.exclude is None else read_names(self.exclude),
        )


def _summary(manifest: Manifest, how: dict[str, Any]) -> list[str]:
    roles = list(manifest.roles().values())
    domains = [roles.count(role) for role in SPLITS]
    images = [len(manifest.rows(split=split)) for split in SPLITS]
    lines = [
        "{} training, {} validation and {} test domains; ".format(*domains)
        + "{} training images, {} for validation, {} for test".format(*images),
        f"{len(manifest.classes)} classes of the {how['offered']} that were offered",
    ]
    lines += [
        f"capped: {split}: {cap['wanted']} images of a head class wanted, {cap['fewest']} in "
        f"the smallest pool; {cap['missing']} images fewer in all"
        for split, cap in how["capped"].items()
    ]
    if how["too_small"]:
        lines.append(f"left out, with too few images: {listed(how['too_small'])}")
    return lines
