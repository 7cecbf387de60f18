"""Figures of a summary: methods compared, domain by domain, and how the runs learned.

canvas.py        what all figures share; maps.py, the map of the domains
result_plots.py  accuracy by domain, ablations; search_plots.py, the drawn settings
share_plots.py   label distributions; theory_plots.py, the consistency curve
figures.py       all of them with captions, for a page and for files
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.config import AlgorithmName
from acclimate.report.canvas import (
    INKS,
    MOST_DOMAINS,
    TEXT,
    Drawing,
    colours_of,
    figure_of,
    headline,
    legend,
    plain,
    short,
    svg,
    write_png,
)
from acclimate.report.maps import DomainMap, draw_map, flattened, read_domain_map
from acclimate.results.runs import Key, RunView
from acclimate.results.summary import Difference, Summary

__all__ = [
    "MOST_DOMAINS",
    "DomainMap",
    "Drawing",
    "colours_of",
    "draw_comparison",
    "draw_domains",
    "draw_learning",
    "draw_map",
    "flattened",
    "read_domain_map",
    "svg",
    "write_png",
]

_MANY_LINES = 8  # from here on, learning curves are drawn thin and faint
_PANELS = {
    "embedding": "embedding: loss",
    "main": "classifier: loss",
    "validation": "classifier: validation accuracy, %",
}


def draw_comparison(summary: Summary, colours: Mapping[str, str] | None = None) -> Drawing | None:
    """Mean accuracy on unseen domains, a bar per line, with standard errors over seeds."""
    lines = [line for line in summary.lines if line.unseen is not None]
    if not lines:
        return None
    names = [_wrapped(line.key) for line in lines]
    figure = figure_of(sum(0.19 + 0.16 * name.count("\n") for name in names) + 0.9)
    ax, titles = figure.subplots(), {}
    colours = colours or colours_of(summary)
    place = 0.0
    ticks: list[float] = []
    for line, name in zip(lines, names, strict=True):
        assert line.unseen is not None
        room = 0.5 + 0.42 * name.count("\n")
        place += room
        mean, se = 100 * line.unseen.mean, 100 * (line.unseen.se or 0.0)
        gid = f"bar-{len(ticks)}"
        ax.barh(place, mean, height=0.7, **_style(line.key, colours), gid=gid)
        if se:
            ax.errorbar(mean, place, xerr=se, color=INKS["ink"], capsize=3, linewidth=1.2)
        note = f"{mean:.1f}" + (f" ± {se:.1f}" if line.unseen.se is not None else "")
        domains = "1 domain" if line.domains == 1 else f"{line.domains} domains"
        titles[gid] = f"{line.key.label}: {note} % on {domains}"
        ax.text(mean + se + 3, place, note, va="center", fontsize=TEXT, color=INKS["ink"])
        ticks.append(place)
        place += room
    ax.set_yticks(ticks, names, parse_math=False)
    ax.set_ylim(place, 0)
    ax.set_xlim(0, 138)  # room for the figures right of a full bar
    ax.set_xticks(range(0, 101, 20))
    ax.set_xlabel("accuracy on unseen domains, %")
    plain(ax, "x")
    ax.tick_params(axis="y", length=0)
    return Drawing(figure, titles)


def _style(key: Key, colours: Mapping[str, str]) -> dict[str, Any]:
    colour = colours[key.algorithm]
    if key.kind == "method":
        return {"facecolor": colour, "edgecolor": colour}
    hollow = {"facecolor": "none", "edgecolor": colour, "linewidth": 1.2}
    return hollow | ({"hatch": "////"} if key.kind == "control" else {"linestyle": "--"})


def _wrapped(key: Key) -> str:
    """A label in lines of at most about 20 letters."""
    label = key.label if key.kind != "control" else f"{key.label} (control)"
    lines = [""]
    for word in label.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) > 20:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(short(line, 26) for line in lines)


def draw_domains(difference: Difference, colours: Mapping[str, str]) -> Drawing | None:
    """A dumbbell per unseen domain from the baseline to the contender, the largest gain on top."""
    changes = sorted(difference.changes, key=lambda c: (c.before - c.after, c.domain))
    if not changes:
        return None
    if len(changes) > MOST_DOMAINS:  # both ends matter: the losers must not fall off the page
        changes = changes[: MOST_DOMAINS // 2] + changes[-MOST_DOMAINS // 2 :]
    figure = figure_of(0.21 * len(changes) + 1.15)
    ax, titles = figure.subplots(), {}
    first, last = (colours[key.algorithm] for key in (difference.against, difference.line))
    ring = {"marker": "o", "color": first, "markersize": 8, "markerfacecolor": "none"}
    diamond = {"marker": "D", "color": last, "markersize": 4.5}
    marks: dict[Key, dict[str, Any]] = {
        difference.against: {"linestyle": "", **ring},
        difference.line: {"linestyle": "", **diamond},
    }
    for place, change in enumerate(changes):
        before, after = 100 * change.before, 100 * change.after
        style: dict[str, Any] = {} if after >= before else {"linestyle": (0, (2, 1.5))}
        gid = f"domain-{place}"
        ax.plot([before, after], [place] * 2, color=INKS["faint"], linewidth=2, zorder=1, **style)
        ax.plot(after, place, **marks[difference.line], gid=gid, zorder=2)
        # On top and wider, so that it shows where both are the same.
        ax.plot(before, place, **marks[difference.against], zorder=3)
        titles[gid] = f"{change.domain}: {before:.1f} to {after:.1f} %"
    names = [short(change.domain, 20) for change in changes]
    ax.set_yticks(range(len(changes)), names, parse_math=False)
    ax.set_ylim(len(changes) - 0.4, -0.6)
    ax.set_xlabel("accuracy, %")
    plain(ax, "both")
    ax.tick_params(axis="y", length=0)
    for key, mark in marks.items():
        ax.plot([], [], label=key.label, **mark)
    legend(figure, ax)
    return Drawing(figure, titles)


_Curve = tuple[RunView, list[int], list[float]]


def draw_learning(runs: Sequence[RunView], colours: Mapping[str, str]) -> Drawing | None:
    """A panel for the loss of each phase and one for the validation score; a line per run."""
    panels = _curves(runs)
    if not panels:
        return None
    order = sorted(panels, key=lambda name: {"embedding": 0, "validation": 2}.get(name, 1))
    many = len(runs) > _MANY_LINES
    style: dict[str, Any] = (
        {"linewidth": 0.8, "alpha": 0.4} if many else {"linewidth": 1.1, "alpha": 0.8}
    )
    figure = figure_of(1.65 * len(order) + 0.4)
    for ax, name in zip(figure.subplots(len(order), squeeze=False)[:, 0], order, strict=True):
        for run, steps, values in panels[name]:
            # One point makes no line.
            marks = "o" if len(steps) == 1 else "-" if many else ".-"
            ax.plot(steps, values, marks, color=colours[run.algorithm], markersize=4, **style)
        headline(ax, _PANELS.get(name, f"{name}: loss"))
        plain(ax, "y")
    ax.set_xlabel("training step")
    drawn = {run.algorithm for found in panels.values() for run, _, _ in found}
    for algorithm in (name for name in colours if name in drawn):
        ax.plot([], [], color=colours[algorithm], label=Key.usual(algorithm).label)
    legend(figure, ax)
    return Drawing(figure)


def _curves(runs: Sequence[RunView]) -> dict[str, list[_Curve]]:
    panels: dict[str, list[_Curve]] = defaultdict(list)
    adaptive_first = sorted(
        runs, key=lambda run: (not AlgorithmName.of(run.algorithm).adaptive, run.name)
    )
    for run in adaptive_first:
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
    return panels
