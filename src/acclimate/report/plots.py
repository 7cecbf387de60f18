"""Figures of a summary: one drawing function each, as SVG for pages and as PNG files.

Inks stand for page colours: `svg` turns them into CSS variables, so that a page in dark mode can
brighten them; in PNG files they are what they say, on white.
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.files import write_atomically
from acclimate.randomness import derive
from acclimate.records import DOMAIN_MAP
from acclimate.report.summary import Difference, Key, RunView, Summary

if TYPE_CHECKING:  # matplotlib takes most of a second, which only drawing should pay
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the Okabe-Ito palette, which colour-blind readers can tell apart; near black and grey.
INKS = {
    "ink": "#1b1b1e",
    "faint": "#8a8a8f",
    "orange": "#d55e00",
    "blue": "#0072b2",
    "green": "#009e73",
    "purple": "#cc79a7",
    "yellow": "#b58900",
    "sky": "#56b4e9",
}
_CYCLE = ("orange", "blue", "green", "purple", "yellow", "sky")
_WIDTH = 5.2  # inches, for all figures: a page scales them alike
MOST_DOMAINS = 60
_NAMED = 30  # up to as many points, training domains carry their names on the map too


@dataclass(frozen=True)
class Drawing:
    """A figure with its tooltips: the id of an artist (its `gid`) -> text."""

    figure: Figure
    titles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DomainMap:
    """μ of a run's domains, in standardised units: mu [M, d], count [M]."""

    names: tuple[str, ...]
    roles: tuple[str, ...]
    mu: np.ndarray
    count: np.ndarray


def read_domain_map(run: RunView) -> DomainMap | None:
    """The run's map; `None` where it has none, or none that can be drawn."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(run.folder / DOMAIN_MAP, "numpy") as file:
            metadata = file.metadata() or {}
            mu, count = file.get_tensor("mu"), file.get_tensor("count")
        names, roles = json.loads(metadata["names"]), json.loads(metadata["roles"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    if not len(mu) == len(names) == len(roles) or not len(mu) or not np.isfinite(mu).all():
        return None
    return DomainMap(tuple(names), tuple(roles), mu.astype(np.float64), count)


def draw_comparison(summary: Summary) -> Drawing | None:
    """Mean accuracy on unseen domains, a bar per line, with standard errors over seeds."""
    lines = [line for line in summary.lines if line.unseen is not None]
    if not lines:
        return None
    figure = _figure(0.42 * len(lines) + 0.75)
    ax, titles = figure.subplots(), {}
    colours = colours_of(summary)
    for place, line in enumerate(lines):
        assert line.unseen is not None
        mean, se = 100 * line.unseen.mean, 100 * (line.unseen.se or 0.0)
        ax.barh(place, mean, height=0.62, **_style(line.key, colours), gid=f"bar-{place}")
        titles[f"bar-{place}"] = f"{line.key.label}: {mean:.1f} % on {line.domains} domains"
        if se:
            ax.errorbar(mean, place, xerr=se, color=INKS["ink"], capsize=3, linewidth=1.2)
        note = f"{mean:.1f}" + (f" ± {se:.1f}" if line.unseen.se is not None else "")
        ax.text(mean + se + 1.2, place, note, va="center", fontsize=9, color=INKS["ink"])
    names = [_wrapped(line.key) for line in lines]
    ax.set_yticks(range(len(lines)), names, parse_math=False)
    ax.set_ylim(len(lines) - 0.45, -0.55)
    ax.set_xlim(0, 118)  # room for the figures right of a full bar
    ax.set_xticks(range(0, 101, 20))
    ax.set_xlabel("accuracy on unseen domains, %", fontsize=9)
    _plain(ax, "x")
    ax.tick_params(axis="y", length=0)
    return Drawing(figure, titles)


def _style(key: Key, colours: Mapping[str, str]) -> dict[str, Any]:
    colour = colours[key.algorithm]
    if key.kind == "method":
        return {"facecolor": colour, "edgecolor": colour}
    hollow = {"facecolor": "none", "edgecolor": colour, "linewidth": 1.2}
    return hollow | ({"hatch": "////"} if key.kind == "control" else {"linestyle": "--"})


def _wrapped(key: Key) -> str:
    label = key.label.replace(", ", ",\n", 1).replace(" + ", "\n+ ", 1)
    return label if key.kind != "control" else f"{label} (control)"


def draw_domains(difference: Difference, colours: Mapping[str, str]) -> Drawing | None:
    """A dumbbell per unseen domain from the baseline to the contender, the largest gain on top."""
    changes = sorted(difference.changes, key=lambda c: (c.before - c.after, c.domain))
    if not changes:
        return None
    if len(changes) > MOST_DOMAINS:  # both ends matter: the losers must not fall off the page
        changes = changes[: MOST_DOMAINS // 2] + changes[-MOST_DOMAINS // 2 :]
    figure = _figure(0.21 * len(changes) + 1.15)
    ax, titles = figure.subplots(), {}
    ends = {difference.against: "o", difference.line: "D"}
    first, last = (colours[key.algorithm] for key in ends)
    for place, change in enumerate(changes):
        before, after = 100 * change.before, 100 * change.after
        style: dict[str, Any] = {} if after >= before else {"linestyle": (0, (2, 1.5))}
        gid = f"domain-{place}"
        ax.plot([before, after], [place] * 2, color=INKS["faint"], linewidth=2, zorder=1, **style)
        ax.plot(before, place, "o", color=first, markersize=5.5, markerfacecolor="none", zorder=2)
        ax.plot(after, place, "D", color=last, markersize=5, gid=gid, zorder=3)
        titles[gid] = f"{change.domain}: {before:.1f} to {after:.1f} %"
    names = [_short(change.domain, 24) for change in changes]
    ax.set_yticks(range(len(changes)), names, fontsize=8, parse_math=False)
    ax.set_ylim(len(changes) - 0.4, -0.6)
    ax.set_xlabel("accuracy, %", fontsize=9)
    _plain(ax, "both")
    ax.tick_params(axis="y", length=0)
    for (key, marker), colour, face in zip(
        ends.items(), (first, last), ("none", last), strict=True
    ):
        ax.plot([], [], marker, color=colour, markerfacecolor=face, label=key.label)
    _legend(figure, ax)
    return Drawing(figure, titles)


def draw_map(found: DomainMap, seed: int = 0) -> Drawing:
    """Domains by their embedding on a plane: near on the map, alike to the model."""
    places = flattened(found.mu, seed)
    figure = _figure(4.6)
    ax, titles = figure.subplots(), {}
    marks = {
        "train": ("training domains", "o", INKS["faint"], 0.75),
        "val": ("validation domains", "s", INKS["green"], 1.0),
        "test": ("unseen test domains", "D", INKS["blue"], 1.0),
    }
    for role, (label, marker, colour, alpha) in marks.items():
        members = [i for i, r in enumerate(found.roles) if r == role]
        for i in members:
            gid = f"point-{i}"
            ax.plot(*places[i], marker, color=colour, alpha=alpha, markersize=5.5, gid=gid)
            titles[gid] = f"{found.names[i]} ({role}), {int(found.count[i])} images"
        if members:
            ax.plot([], [], marker, color=colour, alpha=alpha, label=f"{label} ({len(members)})")
    few = len(places) <= _NAMED
    named = [i for i, role in enumerate(found.roles) if few or role != "train"]
    for i in _apart(places, found.names, named):
        ax.annotate(
            _short(found.names[i], 18),
            places[i],
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=7.5,
            color=INKS["ink"],
            parse_math=False,
        )
    ax.set(xticks=[], yticks=[])
    ax.margins(0.08)
    ax.spines[:].set_visible(False)
    _legend(figure, ax)
    return Drawing(figure, titles)


def _apart(places: np.ndarray, names: Sequence[str], wanted: Sequence[int]) -> list[int]:
    """Those of `wanted` whose names do not run into an earlier one; tooltips name the rest.

    places: [M, 2]. Sizes are shares of the axes: a letter is about 0.014 wide and 0.033 high.
    """
    low, extent = places.min(axis=0), np.ptp(places, axis=0)
    shares = (places - low) / np.where(extent > 0, extent, 1.0)
    kept: list[int] = []
    for i in wanted:
        clear = (
            abs(shares[i, 1] - shares[j, 1]) > 0.033
            or shares[j, 0] > shares[i, 0] + 0.014 * min(len(names[i]), 18)
            or shares[i, 0] > shares[j, 0] + 0.014 * min(len(names[j]), 18)
            for j in kept
        )
        if all(clear):
            kept.append(i)
    return kept


def flattened(mu: np.ndarray, seed: int = 0) -> np.ndarray:
    """[M, d] -> [M, 2] by t-SNE; by principal components for few or equal domains."""
    centred = mu - mu.mean(axis=0)
    count = len(mu)
    if count < 8 or not np.ptp(mu, axis=0).any():
        left, spread, _ = np.linalg.svd(centred, full_matrices=False)
        scores = np.zeros((count, 2))
        kept = (left * spread)[:, :2]
        # The sign of a component is arbitrary; fix it, so that a page is the same each time.
        largest = kept[np.abs(kept).argmax(axis=0), np.arange(kept.shape[1])]
        scores[:, : kept.shape[1]] = kept * np.where(largest < 0, -1.0, 1.0)
        return scores
    from sklearn.manifold import TSNE

    model = TSNE(
        perplexity=min(30.0, (count - 1) / 3),
        init="pca" if mu.shape[1] > 1 else "random",
        random_state=derive(seed, "map") % 2**32,
        # Faster for hundreds of points, and its result does not depend on the threads at hand.
        method="exact" if count <= 400 else "barnes_hut",
    )
    return np.asarray(model.fit_transform(centred), dtype=np.float64)


def draw_learning(runs: Sequence[RunView], colours: Mapping[str, str]) -> Drawing | None:
    """A panel for the loss of each phase and one for the validation score; a line per run."""
    panels: dict[str, list[tuple[RunView, list[int], list[float]]]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (not run.algorithm.startswith("da-"), run.name)):
        for phase in dict.fromkeys(loss.phase for loss in run.records.losses):
            losses = [loss for loss in run.records.losses if loss.phase == phase]
            panels[phase].append((run, [x.step for x in losses], [x.risk for x in losses]))
        scores: dict[int, list[float]] = defaultdict(list)
        for score in run.records.scores:
            if score.moment == "validation" and score.top1 is not None:
                scores[score.step].append(100 * score.top1)
        if scores:
            means = [float(np.mean(scores[step])) for step in sorted(scores)]
            panels["validation"].append((run, sorted(scores), means))
    if not panels:
        return None
    order = sorted(panels, key=lambda name: {"embedding": 0, "validation": 2}.get(name, 1))
    titles = {"embedding": "embedding: loss", "main": "classifier: loss"}
    titles["validation"] = "classifier: validation accuracy, %"
    figure = _figure(1.65 * len(order) + 0.4)
    for ax, name in zip(figure.subplots(len(order), squeeze=False)[:, 0], order, strict=True):
        for run, steps, values in panels[name]:
            colour = colours[run.algorithm]
            ax.plot(steps, values, ".-", color=colour, linewidth=1.1, markersize=4, alpha=0.8)
        ax.set_title(titles.get(name, f"{name}: loss"), fontsize=9, loc="left", color=INKS["ink"])
        _plain(ax, "y")
    ax.set_xlabel("training step", fontsize=9)
    for algorithm in sorted({run.algorithm for found in panels.values() for run, _, _ in found}):
        adaptive = algorithm.startswith("da-")
        label = Key(algorithm, "embedding" if adaptive else "none").label
        ax.plot([], [], color=colours[algorithm], label=label)
    _legend(figure, ax)
    return Drawing(figure)


def colours_of(summary: Summary) -> dict[str, str]:
    """A colour per algorithm, the same in every figure: the baseline's first."""
    found = {run.algorithm for run in summary.runs if run.problem is None}
    base = summary.baseline.algorithm
    order = [base, *sorted(found - {base}, key=lambda name: (name != f"da-{base}", name))]
    return {name: INKS[_CYCLE[i % len(_CYCLE)]] for i, name in enumerate(order)}


def svg(drawing: Drawing, prefix: str) -> str:
    """An `<svg>` element to put into a page: ids start with `prefix`, inks are CSS variables."""
    import matplotlib as mpl

    text = io.StringIO()
    # A fixed salt and no date: the same runs give the same page.
    with mpl.rc_context({"svg.hashsalt": prefix, "svg.fonttype": "none"}):
        drawing.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r' xmlns(:xlink)?="[^"]*"', "", body).replace("xlink:href", "href")
    for name, colour in INKS.items():
        body = body.replace(colour, f"var(--{name})")
    for gid, title in drawing.titles.items():
        opening = f'<g id="{gid}">'
        body = body.replace(opening, f"{opening}\n<title>{escape(title)}</title>", 1)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)


def write_png(drawing: Drawing, path: Path) -> None:
    write_atomically(
        path,
        lambda file: drawing.figure.savefig(file, format="png", dpi=150, metadata={}),
    )


def _plain(ax: Axes, grid: str) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INKS["faint"])
    ax.tick_params(labelsize=8.5, length=2, color=INKS["faint"], labelcolor=INKS["ink"])
    ax.xaxis.label.set_color(INKS["ink"])
    if grid in ("x", "y", "both"):
        ax.grid(axis=grid, color=INKS["faint"], alpha=0.25, linewidth=0.7)  # type: ignore[arg-type]
    ax.set_axisbelow(True)


def _legend(figure: Figure, ax: Axes) -> None:
    # Below the axes: inside, it would cover points in one data set or another.
    handles, labels = ax.get_legend_handles_labels()
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(3, len(labels)),
        fontsize=8.5,
        frameon=False,
        labelcolor=INKS["ink"],
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _figure(height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
