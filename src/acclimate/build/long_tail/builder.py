"""Long-tailed domains sampled from any labelled images, as the paper made LT-ImageNet.

Each domain has a few random head classes with many images and all other classes with few. The
domains of the base do not matter; its rows are the pools that are sampled from.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acclimate.build.base import OUT, Builder, Built, argument, in_short, required
from acclimate.build.long_tail.draws import Part, draw_domains
from acclimate.build.long_tail.settings import (
    LT_IMAGENET,
    LongTailSettings,
    raised_total,
    recorded,
)
from acclimate.build.pools import (
    Pool,
    choose_classes,
    not_in_data,
    open_pool,
    pools_of_splits,
    split_into_pools,
)
from acclimate.build.synsets import read_names, short
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ManifestError, unknown
from acclimate.core.progress import Watch
from acclimate.data.columns import SPLITS
from acclimate.data.manifest import Manifest

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
    pools = _pools(base, settings)
    classes, too_small = choose_classes(
        base, pools, settings.allowed, count=settings.classes, seed=settings.seed
    )
    if settings.heads > len(classes):
        raise ConfigError(
            f"long-tail: a domain cannot have {settings.heads} head classes of the {len(classes)} "
            f"that {base.source} offers; lower --heads to {len(classes)} or less"
        )
    labels = np.full(len(base.classes), -1)
    labels[classes] = np.arange(len(classes))
    arranged = {split: Pool.of(base, rows, labels) for split, rows in pools.items()}
    drawn = draw_domains(arranged, len(classes), settings)
    return _assemble(base, classes, drawn, settings, too_small)


def _pools(base: Manifest, settings: LongTailSettings) -> dict[str, np.ndarray]:
    if settings.pools == "splits":
        return pools_of_splits(base)
    return split_into_pools(
        base,
        val_share=settings.val_share,
        test_share=settings.test_share,
        seed=settings.seed,
    )


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
    classes: np.ndarray,
    parts: Sequence[Part],
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
    chosen = tuple(base.classes[i] for i in classes)
    return replace(base, table=table, classes=chosen, source="long-tail", declared_domains=())


def _repeated(names: Sequence[str], sizes: Sequence[int]) -> pa.Array:
    index = np.repeat(np.arange(len(names)), sizes)
    return pa.array(names, pa.string()).take(pa.array(index))


def _constant(text: str, count: int) -> pa.Array:
    """One text for all rows without a copy for each."""
    index = pa.array(np.zeros(count, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(index, pa.array([text], pa.string()))


def _capped(parts: Sequence[Part], settings: LongTailSettings) -> dict[str, dict[str, int]]:
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
        for flag, listed in (("--only", settings.only), ("--exclude", settings.exclude)):
            names = not_in_data(listed, self.data, base)
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                verb = f"name of {flag} is" if len(names) == 1 else f"names of {flag} are"
                some = ", ".join(map(short, names[:3]))
                notes.append(f"{len(names)} {verb} not in the data: {some}{more}")
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
        more = f" and {len(few) - 5} more" if len(few) > 5 else ""
        told.append(f"left out, with too few images: {', '.join(few[:5])}{more}")
    return told
