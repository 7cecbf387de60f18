"""How labels are spread over domains: of a report's data sets (the paper's Figure 2A), and as the
PNG files that `inspect` and `build` write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.core.text import count, short
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, MOST_DOMAINS, TEXT, Drawing, Illustration, of_data
from acclimate.results.material import Report
from acclimate.results.sweep_folder import LabelCounts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from acclimate.data.manifest import Manifest

MOST_PANELS = 12
MOST_CLASSES = 100  # of a heat map
_NAMED = 12  # as many classes as can be named below a panel
_BINS = 50  # more classes than that are drawn in as many groups
_ROLES = {
    "train": ("training domain", "faint"),
    "val": ("validation domain", "green"),
    "test": ("test domain", "blue"),
}
HEADING = "Label distributions"


def illustrate(report: Report) -> Iterable[Illustration]:
    return illustrate_labels(
        [one for one in report.labels if one.name in (report.datasets or [one.name])]
    )


def illustrate_labels(datasets: Sequence[LabelCounts]) -> Iterable[Illustration]:
    for labels in datasets:
        drawing = draw(labels)
        if drawing is None:
            continue
        domains, size = len(shifts(labels)), groups_of(len(labels.classes))
        some = f"the {MOST_PANELS} most shifted of {domains} domains"
        steps = (
            f"; each step is a group of {size} of the {len(labels.classes)} classes, and heights "
            "are on a square-root scale"
        )
        yield Illustration(
            HEADING,
            f"{of_data(labels.name, len(datasets))}Share of each class in "
            f"{some if domains > MOST_PANELS else 'each domain'}, from the most to the least "
            f"frequent class overall{steps if size > 1 else ''}. In parentheses: the domain's own "
            "most frequent class. Shift is the total variation distance from the other domains "
            "pooled: 0 is alike, 1 has no class in common.",
            drawing,
        )


@dataclass(frozen=True)
class Shift:
    """A domain with labels: how many, and how far from those of the other domains pooled."""

    domain: str
    role: str
    rows: int
    distance: float | None  # total variation; `None` where there is no other domain
    largest: str  # class
    share: float  # of the largest class


def shifts(labels: LabelCounts) -> list[Shift]:
    """The domains that have labels, most shifted first."""
    total = np.sum([domain.counts for domain in labels.domains.values()], axis=0, dtype=np.int64)
    shifted = []
    for name, domain in labels.domains.items():
        counts = np.asarray(domain.counts, dtype=np.int64)
        rows, others = int(counts.sum()), total - counts
        if not rows:
            continue
        distance = None
        if others.any():
            distance = float(np.abs(counts / rows - others / others.sum()).sum() / 2)
        largest, share = labels.classes[counts.argmax()], float(counts.max() / rows)
        shifted.append(Shift(name, domain.role or "", rows, distance, largest, share))
    return sorted(shifted, key=lambda shift: (-(shift.distance or 0.0), shift.domain))


def groups_of(classes: int) -> int:
    """How many classes share a step of the drawing: 1, unless there are too many to tell apart."""
    return 1 if classes <= 2 * _BINS else -(-classes // _BINS)


def draw(labels: LabelCounts, over: str = "") -> Drawing | None:
    """A panel per domain, most shifted first: its class shares over those of all domains, or of the
    domain `over`, which then has no panel."""
    panels = [shift for shift in shifts(labels) if shift.domain != over][:MOST_PANELS]
    if not panels:
        return None
    counts = {name: np.asarray(d.counts, dtype=np.int64) for name, d in labels.domains.items()}
    total = counts[over] if over else np.sum(list(counts.values()), axis=0)
    order = np.argsort(-total, kind="stable")
    pooled = _shares(total, order)
    shares = {shift.domain: _shares(counts[shift.domain], order) for shift in panels}
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    named = len(order) <= _NAMED
    names = [short(labels.classes[c], 12) for c in order] if named else []
    figure = canvas.figure_of(1.2 * rows + (0.075 * max(map(len, names), default=0)) + 0.8)
    axes: list[Axes] = list(
        figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    )
    edges = np.arange(len(pooled) + 1) - 0.5
    line: dict[str, Any] = {"color": INKS["orange"], "linewidth": 1.4}
    for position, ax in enumerate(axes):
        ax.set_visible(position < len(panels))
        # A panel above an empty place is the lowest of its column, and carries the labels.
        ax.tick_params(labelbottom=named and position + columns >= len(panels))
        ax.set_xticks(range(len(names)), names, rotation=90, parse_math=False, fontsize=TEXT)
    for ax, shift in zip(axes, panels, strict=False):
        colour = INKS[_ROLES.get(shift.role, ("", "faint"))[1]]
        ax.stairs(100 * shares[shift.domain], edges, fill=True, color=colour, alpha=0.75)
        ax.stairs(100 * pooled, edges, **line)
        ax.set_xlim(edges[0], edges[-1])
        canvas.plain(ax, "y")
        note = "" if shift.distance is None else f", shift {shift.distance:.2f}"
        largest = short(shift.largest, 10)
        name = short(shift.domain, min(16, 20 - len(largest)))  # a panel has room for both
        canvas.headline(ax, f"{name} ({largest}){note}")
    if groups_of(len(order)) > 1:
        axes[0].set_yscale("function", functions=(_root, np.square))
    highest = max(float(values.max()) for values in (pooled, *shares.values()))
    axes[0].set_ylim(0, 106 * highest)
    figure.supylabel("share of the domain's rows, %", fontsize=TEXT, color=INKS["ink"])
    for role in dict.fromkeys(shift.role for shift in panels):
        word, ink = _ROLES.get(role, ("domain", "faint"))
        axes[0].fill_between([], [], color=INKS[ink], alpha=0.75, label=word)
    axes[0].plot([], [], **line, label=over or "all domains")
    canvas.legend(figure, axes[0])
    return Drawing(figure)


def _shares(counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """[classes] -> [classes or groups], of 1, in the order to draw."""
    shares = counts[order] / max(int(counts.sum()), 1)
    size = groups_of(len(order))
    padded = np.pad(shares, (0, -len(shares) % size))
    return np.asarray(padded.reshape(-1, size).sum(axis=1))


def _root(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.maximum(values, 0.0)))


def write_label_plots(manifest: Manifest, folder: Path) -> list[Path]:
    """PNGs of label shares, where there are labels, and of label counts; their paths."""
    labels = LabelCounts.of(manifest.source, manifest)
    paths = []
    for name, drawing in {
        "label_distributions": draw(labels),
        "label_counts": draw_counts(labels),
    }.items():
        if drawing is not None:
            paths.append(folder / f"{name}.png")
            canvas.write_figure(drawing, paths[-1], "png", dpi=130)
    return paths


def draw_counts(labels: LabelCounts) -> Drawing:
    """Heat map of rows per domain and class on a log scale; cells without rows stay empty."""
    from matplotlib.colors import LogNorm

    shifted = [shift.domain for shift in shifts(labels)]
    names = sorted([*shifted, *(name for name in labels.domains if name not in shifted)])
    if len(names) > MOST_DOMAINS:
        names = sorted(shifted[:MOST_DOMAINS])
    counts = np.array([labels.domains[name].counts for name in names], dtype=np.int64)
    columns = np.argsort(-counts.sum(axis=0), kind="stable")[:MOST_CLASSES]
    cells = np.ma.masked_equal(counts[:, columns], 0)
    figure = canvas.figure_of(0.19 * len(names) + 2.2, max(canvas.WIDTH, 0.18 * len(columns) + 3.2))
    ax = figure.subplots()
    ax.set_facecolor("#EDEDED")
    norm = LogNorm(vmin=1, vmax=max(2, int(counts.max(initial=0))))
    image = ax.imshow(cells, cmap="viridis", aspect="auto", interpolation="nearest", norm=norm)
    canvas.name_rows(ax, names)
    classes = [short(labels.classes[column], 20) for column in columns]
    ax.set_xticks(range(len(columns)), classes, rotation=90, parse_math=False)
    canvas.plain(ax, "")
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=ax, fraction=0.04, pad=0.02, format="{x:,.0f}")
    bar.minorticks_off()
    bar.set_label("rows (grey: none)", fontsize=TEXT)
    domains = _of(len(names), len(labels.domains), "domain", "most shifted")
    total = _of(len(columns), len(labels.classes), "class", "largest", plural="classes")
    canvas.headline(ax, f"Rows of {domains} in {total}")
    return Drawing(figure)


def _of(part: int, total: int, noun: str, which: str, *, plural: str = "") -> str:
    """`4 domains`, `the 60 most shifted of 70 domains`"""
    return ("" if part == total else f"the {part} {which} of ") + count(total, noun, plural)
