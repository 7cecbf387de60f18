"""What a data set looks like before training: sizes, long tails and label shift per domain."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from acclimate.core.errors import ImageError
from acclimate.core.progress import Watch, unwatched
from acclimate.core.randomness import stream
from acclimate.core.text import count
from acclimate.data.columns import SPLITS
from acclimate.data.manifest import Manifest
from acclimate.data.readers import FORMATS, is_of

TAIL = 0.1
"""A tail class holds at most this share of the head class's rows (LT-ImageNet's f)."""


@dataclass(frozen=True)
class DomainInspection:
    """One domain. What its rows cannot tell is None: nothing is shown as zero that is missing."""

    domain: str
    role: str | None
    rows: int
    splits: dict[str, int]
    classes: int
    """How many classes have rows here."""
    missing_classes: tuple[str, ...]
    top_class: str | None
    top_share: float | None
    imbalance: float | None
    effective_classes: float | None
    tail_share: float | None
    total_variation: float | None
    """Distance of its label distribution from that of the other domains pooled, 0 to 1."""
    jensen_shannon: float | None
    """Divergence of the same two, in bits, 0 to 1."""


@dataclass(frozen=True)
class PairwiseShift:
    """Total variation distance between the label distributions of two domains, over all pairs."""

    mean: float
    largest: float
    largest_pair: tuple[str, str]


@dataclass(frozen=True)
class Inspection:
    """The whole data set, then each domain in order of name."""

    source: str
    digest: str
    rows: int
    images: int
    splits: dict[str, int]
    classes: int
    unused_classes: tuple[str, ...]
    imbalance: float | None
    effective_classes: float | None
    tail_share: float | None
    pairwise: PairwiseShift | None
    domains: tuple[DomainInspection, ...]


def inspect(manifest: Manifest) -> Inspection:
    """Sizes and label statistics of a manifest, over all its splits.

    Rows whose label is not in the class list count as rows and in no label statistic.
    """
    counts = label_counts(manifest)
    pooled = counts.sum(axis=0)
    roles = manifest.roles()
    return Inspection(
        source=manifest.source,
        digest=manifest.digest(),
        rows=len(manifest),
        images=_images(manifest),
        splits=_split_counts(manifest.splits),
        classes=len(manifest.classes),
        unused_classes=_without_rows(manifest, pooled),
        imbalance=imbalance(pooled),
        effective_classes=effective_classes(pooled),
        tail_share=tail_share(pooled),
        pairwise=_pairwise(counts, all_domains(manifest)),
        domains=tuple(
            _domain(manifest, name, roles.get(name), counts[i], pooled - counts[i])
            for i, name in enumerate(all_domains(manifest))
        ),
    )


def rare_formats(manifest: Manifest) -> list[str]:
    """Of images in a format that takes an extra: how many there are, and whether they are read."""
    if "image" not in manifest.table.column_names:
        return []
    names = pc.unique(pc.drop_null(manifest.table["image"])).to_pylist()
    lines = []
    for kind in FORMATS:
        mine = [name for name in names if is_of(kind, str(manifest.root / name))]
        if mine:
            how = f"read by {kind.package}" if kind.readable else f"to read them: {kind.remedy}"
            lines.append(f"{count(len(mine), 'image')} in {kind.name}, such as {mine[0]}; {how}")
    return lines


def all_domains(manifest: Manifest) -> tuple[str, ...]:
    """Domains with rows and domains that were declared and have none, sorted."""
    return tuple(sorted({*manifest.domains, *manifest.declared_domains}))


def label_counts(manifest: Manifest) -> np.ndarray:
    """int64 [domains of all_domains, classes]: rows of each class in each domain."""
    names = all_domains(manifest)
    position = {name: i for i, name in enumerate(names)}
    place = np.array([position[name] for name in manifest.domains], dtype=np.int64)
    known = manifest.label_index >= 0
    width = len(manifest.classes)
    cell = place[manifest.domain_index[known]] * width + manifest.label_index[known]
    return np.bincount(cell, minlength=len(names) * width).reshape(len(names), width)


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """½ Σ|p − q| of two distributions  # [k],[k] -> 0 to 1"""
    return float(0.5 * np.abs(p - q).sum())


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    """Jensen-Shannon divergence in bits  # [k],[k] -> 0 to 1"""
    middle = (p + q) / 2
    return max(0.0, _entropy(middle) - (_entropy(p) + _entropy(q)) / 2) / float(np.log(2))


def effective_classes(counts: np.ndarray) -> float | None:
    """exp(entropy): the number of equally frequent classes that would be as varied  # [k] -> []"""
    return float(np.exp(_entropy(counts / counts.sum()))) if counts.any() else None


def imbalance(counts: np.ndarray) -> float | None:
    """Rows of the largest class over those of the smallest that has any  # [k] -> []"""
    held = counts[counts > 0]
    return float(held.max() / held.min()) if held.size else None


def tail_share(counts: np.ndarray) -> float | None:
    """Share of the classes with rows that hold at most TAIL of the head class's rows  # [k] -> []

    Classes without rows are left out: they are missing, not rare.
    """
    held = counts[counts > 0]
    # Whole numbers: 0.1 * 30 is a little more than 3.
    return float((held * round(1 / TAIL) <= held.max()).mean()) if held.size else None


def _entropy(p: np.ndarray) -> float:
    held = p[p > 0]
    return float(-(held * np.log(held)).sum())


def _domain(
    manifest: Manifest, name: str, role: str | None, counts: np.ndarray, others: np.ndarray
) -> DomainInspection:
    total = int(counts.sum())
    comparable = total > 0 and others.any()
    p, q = counts / max(total, 1), others / max(int(others.sum()), 1)
    top = int(counts.argmax()) if total else None
    rows = manifest.rows(domain=name)
    return DomainInspection(
        domain=name,
        role=role,
        rows=len(rows),
        splits=_split_counts(manifest.splits[rows]),
        classes=int((counts > 0).sum()),
        missing_classes=_without_rows(manifest, counts),
        top_class=None if top is None else manifest.classes[top],
        top_share=None if top is None else float(p[top]),
        imbalance=imbalance(counts),
        effective_classes=effective_classes(counts),
        tail_share=tail_share(counts),
        total_variation=total_variation(p, q) if comparable else None,
        jensen_shannon=jensen_shannon(p, q) if comparable else None,
    )


def _pairwise(counts: np.ndarray, names: tuple[str, ...]) -> PairwiseShift | None:
    filled = np.flatnonzero(counts.sum(axis=1))
    if len(filled) < 2:
        return None
    shares = counts[filled] / counts[filled].sum(axis=1, keepdims=True)
    total, largest, pair = 0.0, -1.0, (0, 0)
    for i in range(len(filled) - 1):
        distances = 0.5 * np.abs(shares[i + 1 :] - shares[i]).sum(axis=1)
        total += float(distances.sum())
        if distances.max() > largest:
            largest, pair = float(distances.max()), (i, i + 1 + int(distances.argmax()))
    pairs = len(filled) * (len(filled) - 1) // 2
    first, second = (names[filled[i]] for i in pair)
    return PairwiseShift(mean=total / pairs, largest=largest, largest_pair=(first, second))


def _split_counts(splits: np.ndarray) -> dict[str, int]:
    return {split: int((splits == split).sum()) for split in SPLITS}


def _without_rows(manifest: Manifest, counts: np.ndarray) -> tuple[str, ...]:
    return tuple(manifest.classes[i] for i in np.flatnonzero(counts == 0))


def _images(manifest: Manifest) -> int:
    if "image" not in manifest.table.column_names:
        return len(manifest)
    column = manifest.table["image"]
    return int(pc.count_distinct(column, mode="only_valid").as_py()) + int(column.null_count)


def sampled(manifest: Manifest, limit: int) -> np.ndarray:
    """`limit` rows at random, or all where it is negative."""
    rows = stream(0, "inspect").permutation(len(manifest))
    return np.asarray(rows if limit < 0 else rows[:limit])


def try_images(
    manifest: Manifest, limit: int, watch: Watch = unwatched
) -> tuple[int, list[dict[str, str]]]:
    """How many images were read, `limit` of them at random or all where it is negative, and those
    that cannot be, each with its reason."""
    from acclimate.data.images import decode  # Pillow comes with it, and tables do without

    if manifest.has_features or limit == 0:
        return 0, []
    rows = sampled(manifest, limit)

    def problem(row: int) -> str | None:
        try:
            decode(manifest.image_source(int(row)))
        except ImageError as error:
            return str(error)
        return None

    bad = []
    with ThreadPoolExecutor() as pool:
        for done, (row, reason) in enumerate(zip(rows, pool.map(problem, rows), strict=True), 1):
            if reason is not None:
                bad.append({"image": manifest.image_name(int(row)), "reason": reason})
            watch("reading images", done, len(rows), f"{len(bad)} unreadable" if bad else "")
    return len(rows), bad
