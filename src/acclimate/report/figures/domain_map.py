"""The map of the domains: their embeddings on a plane (the paper's Figure 4A)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.core.errors import AcclimateError
from acclimate.core.files import parse_json, parse_metadata
from acclimate.core.randomness import derive
from acclimate.core.text import count, short
from acclimate.records.folder import DOMAINS, RunFolder
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import CYCLE, INKS, TEXT, Drawing, Illustration, of_data
from acclimate.results.material import Report
from acclimate.results.runs import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED = 30  # up to as many points, training domains carry their names on the map too
_LONGEST = 18
_FEW = 8  # domains up to which half a page is room enough
# How a map was made, and what may be read from it.
_COMPONENTS = (
    "their two principal components",
    "Far marks differ to the model; near ones may still differ in what two axes cannot show.",
)
_NEIGHBOURS = (
    "t-SNE",
    "Neighbours look alike to the model; axes, scale and the distance between far marks have no "
    "meaning.",
)


@dataclass(frozen=True)
class DomainMap:
    """μ of a run's domains, in standardised units: mu [M, d], count [M]."""

    names: tuple[str, ...]
    roles: tuple[str, ...]
    mu: np.ndarray
    count: np.ndarray


def illustrate(report: Report) -> Iterable[Illustration]:
    by_dataset = report.runs_by_dataset
    for dataset, runs in by_dataset.items():
        first = next(((run, m) for run in runs if (m := read_domain_map(run))), None)
        if first is None:
            continue
        run, domains = first
        how, meaning = _COMPONENTS if _by_components(domains.mu) else _NEIGHBOURS
        labels = [one for one in report.labels if one.name == dataset]
        groups = {
            name: domain.group
            for one in labels
            for name, domain in one.domains.items()
            if domain.group
        }
        coloured = "Colours are the data's own groups of domains. " if groups else ""
        yield Illustration(
            "Map of the domains",
            f"{of_data(dataset, len(by_dataset))}Each mark is a domain, placed by its embedding "
            f"with {how} (run {run.name}). {coloured}{meaning} Point at a mark to read its "
            "name.",
            draw(domains, groups=groups),
        )


def read_domain_map(run: RunView) -> DomainMap | None:
    """The run's map; `None` where it has none, or none that can be drawn."""
    from safetensors import SafetensorError, safe_open

    path = RunFolder(run.folder).listed(DOMAINS)
    if path is None:
        return None
    try:
        with safe_open(path, "numpy") as file:
            metadata = parse_metadata(file.metadata())
            mu, count = file.get_tensor("mu"), file.get_tensor("count")
        names, roles = parse_json(metadata["names"]), parse_json(metadata["roles"])
        domains = DomainMap(tuple(names), tuple(roles), mu.astype(np.float64), count)
    except (AcclimateError, OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    whole = mu.ndim == 2 and len(mu) == len(names) == len(roles) > 0 and np.isfinite(mu).all()
    return domains if whole else None


def draw(domains: DomainMap, seed: int = 0, *, groups: Mapping[str, str] | None = None) -> Drawing:
    """Domains by their embedding on a plane: near on the map, alike to the model.

    Colours tell the roles apart, or the `groups` that domains belong to; marks always the roles.
    """
    inks = _inks(groups or {})
    places = flattened(domains.mu, seed)
    figure = canvas.figure_of(2.2 if len(places) <= _FEW else 4.4)
    ax, titles = figure.subplots(), {}
    few = len(places) <= _NAMED
    marks = {
        # In a crowd they stand back, lest names written over them be hard to read.
        "train": ("training", "o", INKS["faint"], 0.75 if few else 0.4),
        "val": ("validation", "s", INKS["green"], 1.0),
        "test": ("unseen test", "D", INKS["blue"], 1.0),
    }
    for role, (label, marker, colour, alpha) in marks.items():
        members = [i for i, r in enumerate(domains.roles) if r == role]
        for i in members:
            gid, group = f"point-{i}", (groups or {}).get(domains.names[i], "")
            ink = inks.get(group, colour)
            ax.plot(*places[i], marker, color=ink, alpha=alpha, markersize=5.5, gid=gid)
            where = ", ".join(filter(None, (role, group)))
            titles[gid] = f"{domains.names[i]} ({where}), {count(int(domains.count[i]), 'image')}"
        if members:
            shade = INKS["faint"] if inks else colour
            ax.plot([], [], marker, color=shade, alpha=alpha, label=f"{label} ({len(members)})")
    for group, ink in inks.items():
        ax.plot([], [], "o", color=ink, label=short(group, _LONGEST))
    ax.set(xticks=[], yticks=[])
    ax.margins(0.08)
    ax.set_aspect("equal", adjustable="datalim")  # else a map would stretch one direction
    ax.spines[:].set_visible(False)
    canvas.legend(figure, ax)
    # Test domains first: where names collide, theirs are the ones to keep.
    order = sorted(range(len(places)), key=lambda i: (domains.roles[i] == "train", i))
    _name_marks(ax, places, domains, [i for i in order if few or domains.roles[i] != "train"])
    return Drawing(figure, titles)


def _inks(groups: Mapping[str, str]) -> dict[str, str]:
    """A colour per group, from the most to the least frequent; the last ones share theirs."""
    sizes = Counter(groups.values())
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return {name: INKS[CYCLE[min(i, len(CYCLE) - 1)]] for i, name in enumerate(names)}


def _name_marks(ax: Axes, places: np.ndarray, domains: DomainMap, wanted: Sequence[int]) -> None:
    """Write the names that find a free spot beside their mark; tooltips name the rest.

    A name covers no other name, and no mark but those of training domains.
    places: [M, 2]
    """
    from matplotlib.transforms import Bbox, BboxBase

    figure: Any = ax.figure
    figure.draw_without_rendering()  # lays the axes out, so that sizes in pixels are final
    frame, radius = ax.get_window_extent(), 3.5 * figure.dpi / 72
    taken: list[BboxBase] = [
        Bbox.from_bounds(x, y, 0, 0).padded(radius)
        for (x, y), role in zip(ax.transData.transform(places), domains.roles, strict=True)
        if role != "train"
    ]
    for i in wanted:
        for dx, align in ((5, "left"), (-5, "right")):
            text = ax.annotate(
                short(domains.names[i], _LONGEST), tuple(places[i]), xytext=(dx, 0),
                textcoords="offset points", ha=align, va="center", fontsize=TEXT,
                color=INKS["ink"], parse_math=False,
            )  # fmt: skip
            box = text.get_window_extent()
            within = frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)
            if within and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def flattened(mu: np.ndarray, seed: int = 0) -> np.ndarray:
    """[M, d] -> [M, 2] by t-SNE; by principal components for few or equal domains."""
    centred = mu - mu.mean(axis=0)
    count = len(mu)
    if _by_components(mu):
        left, extent, _ = np.linalg.svd(centred, full_matrices=False)
        scores = np.pad(left * extent, ((0, 0), (0, 2)))[:, :2]
        # The sign of a component is arbitrary; fix it, so that a page is the same each time.
        largest = scores[np.abs(scores).argmax(axis=0), [0, 1]]
        return np.asarray(scores * np.where(largest < 0, -1.0, 1.0))
    from sklearn.manifold import TSNE

    model = TSNE(
        perplexity=min(30.0, (count - 1) / 3),
        init="pca" if mu.shape[1] > 1 else "random",
        random_state=derive(seed, "map") % 2**32,
        # Faster for hundreds of points, and its result does not depend on the threads at hand.
        method="exact" if count <= 400 else "barnes_hut",
    )
    return np.asarray(model.fit_transform(centred), dtype=np.float64)


def _by_components(mu: np.ndarray) -> bool:
    """Whether `flattened` takes principal components: too few or equal domains for t-SNE."""
    return len(mu) < 8 or not bool(np.ptp(mu, axis=0).any())
