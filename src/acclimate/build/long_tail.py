"""Long-tailed domains sampled from any labelled images, as the paper made LT-ImageNet.

Each domain has a few random head classes with many images and all other classes with few. The
domains of the base do not matter; its rows are the pools that are sampled from.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from acclimate.build.base import (
    OUT,
    Builder,
    Built,
    argument,
    flag,
    in_short,
    listed,
    require_limits,
    required,
)
from acclimate.build.pools import (
    Pool,
    choose_classes,
    not_in_data,
    open_pool,
    pools_of_splits,
    split_into_pools,
)
from acclimate.build.synsets import ilsvrc12_synsets, is_synset, read_names, short
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ManifestError, unknown
from acclimate.core.progress import Watch
from acclimate.core.randomness import stream
from acclimate.core.text import count
from acclimate.data.columns import SPLITS
from acclimate.data.manifest import Manifest

_RECORDED = 1000  # names; of longer lists a digest is enough to tell them apart


@dataclass(frozen=True, kw_only=True)
class LongTailSettings:
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

    def allowed(self, classes: Sequence[str], source: str) -> list[str]:
        """Those of `classes` that may be sampled, in their order."""
        excluded = set(self.exclude)
        if self.exclude_ilsvrc12:
            if not any(map(is_synset, classes)):
                raise ManifestError(
                    f"no class of {source} is a synset such as n01440764; leave "
                    "--exclude-ilsvrc12 away, or name the classes by their synsets"
                )
            excluded |= ilsvrc12_synsets()
        wanted = set(self.only or classes)
        if wanted.isdisjoint(classes):
            raise ManifestError(
                f"{source} has none of the {len(wanted)} classes that --only lists; it has "
                f"{', '.join(map(short, classes[:3])) or 'none'}: check the names"
            )
        return [name for name in classes if name in wanted and name not in excluded]

    def wanted(self, split: str) -> tuple[int, int]:
        """(images of a head class, images of a tail class) in a domain's `split`."""
        head: float = {"val": self.val_per_class, "test": self.test_per_class}.get(
            split, self.per_class
        )
        if split == "train" and self.constant_total:
            head = max(head * self.constant_total / self.domains, 1)
        tail = max(round(head * self.tail), 1) if self.tail else 0
        return round(head), tail

    def require_sense(self) -> None:
        if self.classes < 0:
            raise ConfigError(f"long-tail: --classes must be at least 0, not {self.classes}")
        require_limits(self, "long-tail")
        val, test = self.val_share, self.test_share
        if not (0 < val < 1 and 0 < test < 1 and val + test < 1):
            raise ConfigError(
                f"long-tail: --val-share and --test-share must be above 0 and leave something to "
                f"train on, not {val:g} and {test:g}"
            )


# The paper says nothing of the pools. In proportion to A, 700 images of a class are enough for all.
LT_IMAGENET = LongTailSettings(classes=500, val_share=50 / 700, test_share=300 / 700)


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


def recorded(names: Sequence[str]) -> list[str] | str:
    """What a manifest says of a list: the names, or of a long one their number and a digest."""
    if len(names) <= _RECORDED:
        return list(names)
    digest = hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()
    return f"{len(names)} names, SHA-256 {digest}"


@dataclass(frozen=True)
class _Part:
    """What one domain gets from one pool."""

    domain: str
    role: str
    split: str
    rows: np.ndarray
    wanted: np.ndarray  # [C]
    given: np.ndarray  # [C]


def _draw_domains(
    pools: Mapping[str, Pool], classes: int, settings: LongTailSettings
) -> list[_Part]:
    every = np.arange(classes)
    parts = [
        part
        for number in range(settings.domains)
        for part in _draw(pools, "train", number, SPLITS, every, classes, settings)
    ]
    seen = np.flatnonzero(sum(part.given for part in parts if part.split == "train"))
    for role, domains in (("val", settings.val_domains), ("test", settings.test_domains)):
        for number in range(domains):
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


COLUMN = "long_tail"  # the same JSON in every row: how the data were made; no part of the digest
BASE_DOMAIN = "base_domain"
PRESETS = {"lt-imagenet": LT_IMAGENET}


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
    settings.require_sense()
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
    parts = _draw_domains(pools, len(classes), settings)
    return _assemble(base, classes, parts, settings, too_small)


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
    base: Manifest,
    classes: tuple[str, ...],
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
        "capped": _capped(parts, settings),
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
    return replace(base, table=table, classes=classes, source="long-tail", declared_domains=())


def _repeated(names: Sequence[str], sizes: Sequence[int]) -> pa.Array:
    index = np.repeat(np.arange(len(names)), sizes)
    return pa.array(names, pa.string()).take(pa.array(index))


def _constant(text: str, count: int) -> pa.Array:
    """One text for all rows without a copy for each."""
    index = pa.array(np.zeros(count, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(index, pa.array([text], pa.string()))


def _capped(parts: Sequence[_Part], settings: LongTailSettings) -> dict[str, dict[str, int]]:
    """Where pools had fewer images of a class than a domain should get, by split."""
    found = {}
    for split in SPLITS:
        wanted = np.concatenate([part.wanted for part in parts if part.split == split])
        given = np.concatenate([part.given for part in parts if part.split == split])
        short = given < wanted
        if short.any():
            found[split] = {
                "wanted": settings.wanted(split)[0],  # of a head class
                "fewest": int(given[short].min()),  # images in the smallest pool that ran out
                "times": int(short.sum()),  # pairs of domain and class
                "missing": int((wanted - given).sum()),  # images in all
            }
    return found


@dataclass(frozen=True, kw_only=True)
class LongTail(Builder):
    example = (
        "acclimate build long-tail imagenet21k --preset lt-imagenet "
        "--only in5k_map.json --exclude-ilsvrc12 --out lt.parquet"
    )

    data: Path = argument(
        "A manifest, a table, or a folder: domain/class/image, or class/image as ImageNet."
    )
    out: Path = required(OUT)
    preset: str | None = setting(
        None, "lt-imagenet: the paper's numbers, 500 classes, pools as 350:50:300."
    )
    classes: int | None = setting(None, "Classes to sample. [default: all]")
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
        made = build_long_tail(base, settings)
        made.write(self.out)
        how, notes = facts(made), self._notes(settings, base, made)
        told = [*_summary(made, how), *(f"note: {note}" for note in notes), in_short(made)]
        return Built(manifest=made, out=self.out, facts={**how, "notes": notes}, told=told)

    def _settings(self) -> LongTailSettings:
        """What was asked for, before the preset, before the defaults."""
        if self.preset and self.preset not in PRESETS:
            raise unknown(f"--preset {self.preset}: there is no such choice", self.preset, PRESETS)
        default = PRESETS[self.preset] if self.preset else LongTailSettings()
        return replace(
            self.settings,
            classes=default.classes if self.classes is None else self.classes,
            val_share=default.val_share if self.val_share is None else self.val_share,
            test_share=default.test_share if self.test_share is None else self.test_share,
            only=() if self.only is None else read_names(self.only),
            exclude=() if self.exclude is None else read_names(self.exclude),
        )

    def _notes(self, settings: LongTailSettings, base: Manifest, made: Manifest) -> list[str]:
        """What a user may not have meant."""
        notes = []
        for option, given in (("--only", settings.only), ("--exclude", settings.exclude)):
            names = [short(name) for name in not_in_data(given, self.data, base)]
            if names:
                said = count(len(names), f"name of {option} is", f"names of {option} are")
                notes.append(f"{said} not in the data: {listed(names, 3)}")
        raised = raised_total(settings, len(made.classes))
        if raised is not None:
            notes.append(
                f"{raised[0]:,} training images instead of {raised[1]:,}: every class of a domain "
                "has one at least; lower --domains, or raise --constant-total or --per-class"
            )
        return notes


def _summary(made: Manifest, how: dict[str, Any]) -> list[str]:
    roles = list(made.roles().values())
    told = [
        f"{roles.count('train')} training, {roles.count('val')} validation and "
        f"{roles.count('test')} test domains; "
        f"{len(made.rows(split='train'))} training images, "
        f"{len(made.rows(split='val'))} for validation, "
        f"{len(made.rows(split='test'))} for test",
        f"{len(made.classes)} classes of the {how['offered']} that were offered",
    ]
    told += [
        f"capped: {split}: {cap['wanted']} images of a head class wanted, {cap['fewest']} in "
        f"the smallest pool; {cap['missing']} images fewer in all"
        for split, cap in how["capped"].items()
    ]
    few = how["too_small"]
    if few:
        told.append(f"left out, with too few images: {listed(few)}")
    return told
