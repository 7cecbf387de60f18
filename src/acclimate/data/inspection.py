"""What a data set looks like before training: sizes, long tails and label shift per domain."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from acclimate.core.errors import ImageError
from acclimate.core.grid import Cell, Grid, number, share
from acclimate.core.progress import Watch, unwatched
from acclimate.core.randomness import stream
from acclimate.core.text import DASH, short
from acclimate.data import columns
from acclimate.data.columns import SPLITS, grouped
from acclimate.data.duplicates import joined, near_copies
from acclimate.data.manifest import Manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL import Image

TAIL = 0.1
"""A tail class holds at most this share of the head class's rows (LT-ImageNet's f)."""

MOST_PAIRED = 2000
LOOKED_AT = 128  # pixels
MOST_NAMED = 60  # along an axis


@dataclass(frozen=True, kw_only=True)
class _Statistics:
    """What rows cannot tell is None: nothing is shown as zero that is missing."""

    rows: int
    splits: dict[str, int]
    imbalance: float | None
    effective_classes: float | None
    tail_share: float | None


@dataclass(frozen=True, kw_only=True)
class DomainInspection(_Statistics):
    domain: str
    role: str | None
    classes: int  # that have rows here
    missing_classes: tuple[str, ...]
    top_class: str | None
    top_share: float | None
    total_variation: float | None  # between its labels and those of the other domains pooled
    jensen_shannon: float | None  # divergence of the same two, in bits


@dataclass(frozen=True)
class PairwiseShift:
    """Total variation distance between the label distributions of two domains, over all pairs."""

    mean: float
    # Of at most MOST_PAIRED domains: every pair has to be looked at.
    largest: float | None = None
    largest_pair: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Inspection(_Statistics):
    """The whole data set, then each domain in order of name."""

    source: str
    digest: str
    images: int
    classes: int
    unused_classes: tuple[str, ...]
    pairwise: PairwiseShift | None
    domains: tuple[DomainInspection, ...]


def inspect(manifest: Manifest) -> Inspection:
    """Sizes and label statistics of a manifest, over all its splits.

    Rows whose label is not in the class list count as rows and in no label statistic.
    """
    counts = label_counts(manifest)
    pooled = counts.sum(axis=0)
    return Inspection(
        **_statistics(manifest.splits, pooled),
        source=manifest.source,
        digest=manifest.digest(),
        images=len(np.unique(manifest.image_ids)),
        classes=len(manifest.classes),
        unused_classes=_without_rows(manifest, pooled),
        pairwise=_pairwise(counts, manifest.all_domains),
        domains=_domains(manifest, counts),
    )


def _domains(manifest: Manifest, counts: np.ndarray) -> tuple[DomainInspection, ...]:
    """By `label_counts`: [all domains, classes]"""
    pooled, roles = counts.sum(axis=0), manifest.roles()
    return tuple(
        _domain(manifest, name, roles.get(name), row, pooled - row)
        for name, row in zip(manifest.all_domains, counts, strict=True)
    )


def domains_grid(manifest: Manifest) -> Grid:
    """A row per domain. Shift is how far its labels are from those of all others, 0 to 1."""
    names = ("rows", "classes", "top class", "share", "imbalance", "effective classes", "shift")
    rows = tuple(
        (
            Cell(one.domain),
            number(one.rows),
            number(one.classes),
            Cell(one.top_class or DASH),
            share(one.top_share),
            number(one.imbalance, ".1f"),
            number(one.effective_classes, ".1f"),
            number(one.total_variation, ".2f"),
        )
        for one in _domains(manifest, label_counts(manifest))
    )
    return Grid(("domain", *names), rows, frozenset({"top class"}))


def draw_labels(manifest: Manifest, axes: "Axes") -> None:
    """Which share of a domain's labels each class has: a square for each, the darker the more."""
    counts = label_counts(manifest)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", aspect="auto", vmin=0)
    for axis, names in ((axes.yaxis, manifest.all_domains), (axes.xaxis, manifest.classes)):
        if len(names) <= MOST_NAMED:  # more of them cannot be read
            axis.set_ticks(range(len(names)), [short(name, 24) for name in names], parse_math=False)
    axes.tick_params(axis="x", rotation=90)
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(image, ax=axes, label="share of the domain's labels, %")


def _statistics(splits: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    return {
        "rows": len(splits),
        "splits": {split: int((splits == split).sum()) for split in SPLITS},
        "imbalance": imbalance(counts),
        "effective_classes": effective_classes(counts),
        "tail_share": tail_share(counts),
    }


@dataclass(frozen=True)
class Copies:
    """Files that hold one picture."""

    images: tuple[str, ...]
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    alike: bool = False  # the files differ, and look the same
    rows: tuple[int, ...] = field(default=(), compare=False)  # the first with each of the images


def find_copies(manifest: Manifest, looked_at: np.ndarray) -> list[Copies]:
    """Pictures that are in several files: equal files among all rows, and files that look the same
    among the rows `looked_at`."""
    if manifest.has_features:
        return []
    codes = manifest.picture_ids
    equal = _copies(manifest, codes, alike=False)
    known = {copies.images for copies in equal}
    alike = _copies(manifest, joined(codes, near_copies(manifest, looked_at)), alike=True)
    return equal + [copies for copies in alike if copies.images not in known]


def several_labels(manifest: Manifest) -> list[str]:
    """Images that a domain shows under more than one label: "a.png: cat and dog in site 1"."""
    if "image" not in manifest.table.column_names:
        return []
    rows = manifest.table.filter(pc.is_valid(manifest.table["image"]))
    labels = rows.group_by(["image", "domain"]).aggregate([("label", "distinct")])
    several = labels.filter(pc.greater(pc.list_value_length(labels["label_distinct"]), 1))
    cells = (
        (row["image"], sorted(filter(None, row["label_distinct"])), row["domain"])
        for row in several.to_pylist()
    )
    return sorted(f"{image}: {' and '.join(names)} in {domain}" for image, names, domain in cells)


def _copies(manifest: Manifest, codes: np.ndarray, *, alike: bool) -> list[Copies]:
    """Files whose rows have one code [n]."""
    pictures, picture = np.unique(codes, return_inverse=True)
    copies = []
    for rows in grouped(picture, pictures.tolist()).values():
        first = {manifest.image_name(row): row for row in reversed(rows.tolist())}
        if len(first) > 1:
            images = sorted(first)
            labels = {manifest.classes[manifest.label_index[row]] for row in rows}
            domains = {manifest.domain_names[row] for row in rows}
            names = tuple(images), tuple(sorted(labels)), tuple(sorted(domains))
            copies.append(Copies(*names, alike, tuple(first[image] for image in images)))
    return copies


def label_counts(manifest: Manifest) -> np.ndarray:
    """int64 [all domains, classes]: rows of each class in each domain."""
    rows = [manifest.rows(domain=name) for name in manifest.all_domains]
    return columns.label_counts(manifest.label_index, rows, len(manifest.classes))


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
    present = counts[counts > 0]
    return float(present.max() / present.min()) if present.size else None


def tail_share(counts: np.ndarray) -> float | None:
    """Share of the classes with rows that hold at most TAIL of the head class's rows  # [k] -> []

    Classes without rows are left out: they are missing, not rare.
    """
    present = counts[counts > 0]
    # Whole numbers: 0.1 * 30 is a little more than 3.
    return float((present * round(1 / TAIL) <= present.max()).mean()) if present.size else None


def _entropy(p: np.ndarray) -> float:
    present = p[p > 0]
    return float(-(present * np.log(present)).sum())


def _domain(
    manifest: Manifest, name: str, role: str | None, counts: np.ndarray, others: np.ndarray
) -> DomainInspection:
    total = int(counts.sum())
    comparable = total > 0 and others.any()
    p, q = counts / max(total, 1), others / max(int(others.sum()), 1)
    top = int(counts.argmax()) if total else None
    return DomainInspection(
        **_statistics(manifest.splits[manifest.rows(domain=name)], counts),
        domain=name,
        role=role,
        classes=int((counts > 0).sum()),
        missing_classes=_without_rows(manifest, counts),
        top_class=None if top is None else manifest.classes[top],
        top_share=None if top is None else float(p[top]),
        total_variation=total_variation(p, q) if comparable else None,
        jensen_shannon=jensen_shannon(p, q) if comparable else None,
    )


def _pairwise(counts: np.ndarray, names: Sequence[str]) -> PairwiseShift | None:
    filled = np.flatnonzero(counts.sum(axis=1))
    if len(filled) < 2:
        return None
    shares = counts[filled] / counts[filled].sum(axis=1, keepdims=True)
    mean = mean_distance(shares)
    if len(filled) > MOST_PAIRED:
        return PairwiseShift(mean)
    from scipy.spatial.distance import pdist

    distances = pdist(shares, "cityblock") / 2
    largest = distances.argmax()
    pairs = np.stack(np.triu_indices(len(filled), 1), axis=1)
    one, two = (names[place] for place in filled[pairs[largest]])
    return PairwiseShift(mean, float(distances[largest]), (one, two))


def mean_distance(shares: np.ndarray) -> float:
    """Mean total variation distance over all pairs of rows  # [n, k] -> []

    Sorted, the value at place i is the larger one of i pairs and the smaller one of n - 1 - i.
    """
    n = len(shares)
    weights = 2.0 * np.arange(n) - (n - 1)
    total = sum(float(weights @ np.sort(column)) for column in shares.T)
    return total / (n * (n - 1))


def _without_rows(manifest: Manifest, counts: np.ndarray) -> tuple[str, ...]:
    return tuple(compress(manifest.classes, (counts == 0).tolist()))


def sampled(manifest: Manifest, limit: int) -> np.ndarray:
    """`limit` rows at random, or all where it is negative; none of a manifest of features."""
    rows = stream(0, "inspect").permutation(0 if manifest.has_features else len(manifest))
    return np.asarray(rows[: None if limit < 0 else limit])


@dataclass(frozen=True)
class Look:
    """How an image looks. Brightness and sharpness are of its grey pixels, 0 to 1, once it is
    shrunk to the side `LOOKED_AT`, so that images of all sizes can be compared."""

    row: int
    width: int
    height: int
    brightness: float  # mean
    sharpness: float  # standard deviation of the Laplacian


def try_images(
    manifest: Manifest, rows: np.ndarray, watch: Watch = unwatched
) -> tuple[list[Look], list[dict[str, str]]]:
    """The images of `rows` that can be read, and the others with their reasons."""
    from acclimate.data.images import decode  # Pillow comes with it, and tables do without

    def try_image(row: int) -> Look | str:
        try:
            return look_of(row, decode(manifest.image_source(row)))
        except ImageError as error:
            return str(error)

    looks, bad = list[Look](), []
    with ThreadPoolExecutor() as pool:
        tried = zip(rows, pool.map(try_image, rows.tolist()), strict=True)
        for done, (row, look) in enumerate(tried, 1):
            if isinstance(look, Look):
                looks.append(look)
            else:
                bad.append({"image": manifest.image_name(int(row)), "reason": look})
            watch("reading images", done, len(rows), f"{len(bad)} unreadable" if bad else "")
    return looks, bad


def look_of(row: int, image: "Image.Image") -> Look:
    from PIL.Image import Resampling

    small = image.convert("L").resize((LOOKED_AT, LOOKED_AT), Resampling.BILINEAR, reducing_gap=2.0)
    grey = np.asarray(small, dtype=np.float32) / 255
    beside = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    edges = float((beside - 4 * grey[1:-1, 1:-1]).std())
    return Look(row, *image.size, float(grey.mean()), edges)
