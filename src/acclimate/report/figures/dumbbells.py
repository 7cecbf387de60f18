"""Domain by domain, from the baseline to the contender that gained most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from acclimate.core.text import percent
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, MOST_DOMAINS, Drawing, Illustration
from acclimate.results.comparison import Difference
from acclimate.results.material import Report
from acclimate.results.runs import Key


def illustrate(report: Report) -> Iterable[Illustration]:
    if report.axis is not None:
        return  # one variant of many would be picked by its name
    found = [row.difference for row in report.overall.contenders]
    differences = [one for one in found if one is not None and one.gain is not None]
    difference = max(differences, key=_gain, default=None)
    drawing = difference and draw(difference, canvas.colours_of(report))
    if not difference or not drawing:
        return
    line, base = difference.line.label, difference.against.label
    hidden = len(difference.changes) - MOST_DOMAINS
    picked = ""
    if len(differences) > 1:
        picked = (
            f" Of {len(differences)} methods {line} did best, on these very domains, and so "
            "looks better here than it is."
        )
    some = f" The {hidden} domains in the middle are left out." if hidden > 0 else ""
    yield Illustration(
        "Domain by domain",
        f"Each row is an unseen domain, from {base} (ring) to {line} (diamond), averaged over "
        f"seeds; the largest gain is on top, and a diamond left of its ring has lost."
        f"{some}{picked}",
        drawing,
    )


def _gain(difference: Difference) -> float:
    assert difference.gain is not None
    return difference.gain.mean


def draw(difference: Difference, colours: Mapping[str, str]) -> Drawing | None:
    """A dumbbell per unseen domain from the baseline to the contender, the largest gain on top."""
    changes = sorted(difference.changes, key=lambda c: (c.before - c.after, c.domain))
    if not changes:
        return None
    if len(changes) > MOST_DOMAINS:  # both ends matter: the losers must not fall off the page
        changes = changes[: MOST_DOMAINS // 2] + changes[-MOST_DOMAINS // 2 :]
    figure = canvas.figure_of(0.21 * len(changes) + 1.15)
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
        titles[gid] = f"{change.domain}: {percent(change.before)} to {percent(change.after)} %"
    names = [canvas.short(change.domain, 20) for change in changes]
    ax.set_yticks(range(len(changes)), names, parse_math=False)
    ax.set_ylim(len(changes) - 0.4, -0.6)
    ax.set_xlabel("accuracy, %")
    canvas.plain(ax, "both")
    ax.tick_params(axis="y", length=0)
    for key, mark in marks.items():
        ax.plot([], [], label=key.label, **mark)
    canvas.legend(figure, ax)
    return Drawing(figure, titles)
