"""Domains whose differences are known, made from any labelled images.

Three kinds of shift, alone or together. *Label*: each domain has frequent classes of its own.
*Covariate*: each has a gain, a tint and a noise of its own. *Conditional*: look-alike classes swap
their labels in half of the domains, which no single image shows and all together do. What is true
of a domain is in columns of the manifest, so that one can tell what knowing it would be worth.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from acclimate.build.base import OUT, Builder, Built, argument, in_short, required
from acclimate.build.pools import choose_classes, open_pool, split_into_pools
from acclimate.build.shift.draws import Domain, ShiftSettings, draw_domains
from acclimate.build.shift.images import Pair, class_means, nearest_pairs, repainted
from acclimate.core.errors import ManifestError
from acclimate.core.progress import Watch, unwatched
from acclimate.core.text import count, listed
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import BASE_IMAGE
from acclimate.data.readers import require_name, write_parts


@dataclass(frozen=True, eq=False)
class Family:
    """All that is decided before the first image is touched."""

    base: Manifest
    settings: ShiftSettings
    classes: tuple[str, ...]
    pairs: Sequence[Pair]
    domains: Sequence[Domain]
    too_small: Sequence[str]  # classes without images for all three pools

    def true_labels(self, rows: np.ndarray) -> np.ndarray:
        """The classes of rows of the base, by their places in the family's list. [n] -> [n]"""
        chosen = np.flatnonzero(np.isin(self.base.classes, self.classes))
        return np.asarray(np.searchsorted(chosen, self.base.label_index[rows]))

    def labels(self, rows: np.ndarray, latent: int) -> np.ndarray:
        """What the same rows are called in a domain. [n] -> [n]"""
        called: np.ndarray = np.arange(len(self.classes))
        for one, other in self.pairs if latent else ():
            called[[one, other]] = other, one
        return np.take(called, self.true_labels(rows))


def build_shift(
    base: Manifest, settings: ShiftSettings, out: Path, watch: Watch = unwatched
) -> tuple[Family, Manifest]:
    """What was decided, and the manifest that was written to `out`.

    Images are changed and written domain by domain: memory holds one of them at a time, and at the
    end the manifest.
    """
    require_name(out)
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        family = _plan_family(base, settings, workers)
        tables = _tables(family, workers, watch)
        write_parts(out, tables, classes=family.classes, root=base.root)
    return family, Manifest.read(out)


def _plan_family(base: Manifest, settings: ShiftSettings, workers: Executor) -> Family:
    """Pools, classes, pairs and domains.

    Training, validation and test pools share no image. Training domains draw their splits from the
    first two, validation domains from the second, test domains from the third.
    """
    if base.has_features:
        raise ManifestError(f"{base.source} holds features; shifts are made from images")
    shares, seed = (settings.val_share, settings.test_share), settings.seed
    rows = split_into_pools(base, shares, seed)
    classes, pools, too_small = choose_classes(base, rows, count=settings.classes, seed=seed)
    pairs: list[Pair] = []
    if number := settings.pair_count(len(classes)):
        pairs = nearest_pairs(class_means(base, pools["train"], seed, workers), number)
    family = Family(base, settings, classes, pairs, draw_domains(pools, settings), too_small)
    _require_every_class(family)
    return family


def _require_every_class(family: Family) -> None:
    """A class that no domain trains on could not be learned."""
    trained = [
        family.labels(domain.rows["train"], domain.latent)
        for domain in family.domains
        if domain.role == "train"
    ]
    absent = np.setdiff1d(np.arange(len(family.classes)), np.concatenate(trained))
    missing = [family.classes[place] for place in absent]
    if missing:
        raise ManifestError(
            f"shift: no training domain has an image of '{missing[0]}' "
            f"({len(missing)} of {count(len(family.classes), 'class', 'classes')} are missing); "
            "raise --per-domain or --domains, or sample fewer --classes"
        )


def _tables(family: Family, workers: Executor, watch: Watch) -> Iterator[pa.Table]:
    for done, domain in enumerate(family.domains, start=1):
        table = _domain_table(family, domain, workers)
        watch("images of domains", done, len(family.domains), "")
        yield table


def _domain_table(family: Family, domain: Domain, workers: Executor) -> pa.Table:
    base, settings = family.base, family.settings
    rows = np.concatenate(list(domain.rows.values()))
    splits = np.repeat(list(domain.rows), [len(chosen) for chosen in domain.rows.values()])
    names = np.asarray(family.classes, dtype=object)
    columns = _content(family, domain, rows, workers)
    columns |= {
        "label": pa.array(names[family.labels(rows, domain.latent)], pa.string()),
        "split": pa.array(splits.tolist(), pa.string()),
        "true_label": pa.array(names[family.true_labels(rows)], pa.string()),
        BASE_IMAGE: pa.array([base.image_name(row) for row in rows], pa.string()),
    }
    # What is true of the whole domain; what plays no part in a family is missing, not zero.
    latent = domain.latent if settings.swaps else None
    constants = {
        "domain": pa.scalar(domain.name),
        "role": pa.scalar(domain.role),
        "latent": pa.scalar(latent, pa.int8()),
    }
    for name in ("gain", "tint", "noise"):
        value = getattr(domain, name) if settings.covariate > 0 else None
        constants[name] = pa.scalar(value, pa.float64())
    return pa.table(columns | {name: pa.repeat(v, len(rows)) for name, v in constants.items()})


def _content(
    family: Family, domain: Domain, rows: np.ndarray, workers: Executor
) -> dict[str, pa.Array]:
    """Changed images in the table; unchanged ones as the base has them."""
    if family.settings.repaints:
        images = repainted(family.base, domain, rows, family.settings, workers)
        return {"bytes": pa.array(list(images), pa.large_binary())}
    names = [name for name in ("image", "bytes") if name in family.base.table.column_names]
    table = family.base.table.select(names).take(pa.array(rows))
    return {name: table[name].combine_chunks() for name in names}


@dataclass(frozen=True, kw_only=True)
class ShiftBuilder(Builder):
    example = (
        "acclimate build shift photos.parquet --label 10 --covariate 1 --conditional 25 "
        "--out shifted.parquet"
    )

    data: Path = argument("A manifest, a table, or a folder: domain/class/image, or class/image.")
    out: Path = required(OUT)
    settings: ShiftSettings = field(default_factory=ShiftSettings)

    def build(self, watch: Watch) -> Built:
        base = open_pool(self.data)
        base.check()
        family, manifest = build_shift(base, self.settings, self.out, watch)
        notes = list(_notes(family))
        pairs = [[family.classes[one], family.classes[other]] for one, other in family.pairs]
        facts = {"settings": asdict(self.settings), "pairs": pairs, "notes": notes}
        summary = [*_summary(family), *(f"note: {note}" for note in notes), in_short(manifest)]
        return Built(manifest=manifest, out=self.out, facts=facts, summary=summary)


def _summary(family: Family) -> Iterator[str]:
    settings = family.settings
    yield (
        f"{settings.domains} training, {settings.val} validation and {settings.test} test domains "
        f"of {count(len(family.classes), 'class', 'classes')}"
    )
    heads = settings.head_count(len(family.classes))
    if heads:
        classes = count(heads, "class of each is", "classes of each are")
        yield f"label shift: {classes} {settings.label:g} times as frequent as the others"
    if settings.covariate:
        yield f"covariate shift: gain, tint and noise of each, strength {settings.covariate:g}"
    if settings.swaps:
        pairs = [f"{family.classes[one]}:{family.classes[two]}" for one, two in family.pairs]
        yield f"conditional shift: in half of them labels swap: {listed(pairs)}"
    if not heads and not settings.repaints:
        yield "no shift: the domains differ by chance alone"


def _notes(family: Family) -> Iterator[str]:
    """What a user may not have meant."""
    wanted = family.settings.per_domain
    for role in ("train", "val", "test"):
        sizes = [sum(map(len, d.rows.values())) for d in family.domains if d.role == role]
        if sizes and sizes[0] < wanted:
            yield (
                f"{role} domains have {sizes[0]} images, not {wanted}: the smallest class has no "
                "more to give; add images, or lower --per-domain or --label"
            )
    if family.too_small:
        yield f"left out, with too few images: {listed(family.too_small)}"
