"""Mean accuracy on unseen domains: the methods compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from acclimate.core.text import count
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, TEXT, Drawing, Illustration
from acclimate.results.comparison import Comparison
from acclimate.results.material import Report
from acclimate.results.runs import Key
from acclimate.results.statistics import in_percent

HIGH, NEAR = 60.0, 15.0  # percent


def illustrate(report: Report) -> Iterable[Illustration]:
    if report.axis is not None:
        return  # a bar for each variant would say less than the curve does
    drawing = draw(report.overall, canvas.colours_of(report))
    if drawing is not None:
        kinds = {line.key.kind for line in report.overall.lines}
        whisker = "the whisker is one standard error over seeds."
        if close(report.overall):
            caption = (
                "Each mark is the mean accuracy over the unseen domains, farther right is better; "
                f"the axis does not start at 0; {whisker}"
            )
            caption += " Hollow: controls and ceilings." if kinds > {"method"} else ""
        else:
            caption = (
                "Each bar is the mean accuracy over the unseen domains, longer is better; "
                f"{whisker}"
            )
            caption += " Hatched: a control, meant to fail." * ("control" in kinds)
            ceiling = " Dashed: a ceiling, which uses what no method may know."
            caption += ceiling * ("ceiling" in kinds)
        yield Illustration("Unseen domains", caption, drawing)


def close(found: Comparison) -> bool:
    """Whether accuracies are so high and so near each other that bars from 0 would look alike."""
    means = [100 * line.average.mean for line in found.lines if line.average is not None]
    return len(means) > 1 and min(means) >= HIGH and max(means) - min(means) <= NEAR


def draw(found: Comparison, colours: Mapping[str, str]) -> Drawing | None:
    """Mean accuracy on unseen domains, a bar per line, with standard errors over seeds."""
    lines = [line for line in found.lines if line.average is not None]
    if not lines:
        return None
    names = [_wrapped(line.key) for line in lines]
    figure = canvas.figure_of(sum(0.19 + 0.16 * name.count("\n") for name in names) + 0.9)
    ax, titles = figure.subplots(), {}
    place = 0.0
    ticks: list[float] = []
    for line, name in zip(lines, names, strict=True):
        assert line.average is not None
        room = 0.5 + 0.42 * name.count("\n")
        place += room
        mean, se = 100 * line.average.mean, 100 * (line.average.se or 0.0)
        gid = f"bar-{len(ticks)}"
        if close(found):
            colour = colours[line.key.algorithm]
            inside = colour if line.key.kind == "method" else "none"
            ax.plot(mean, place, "o", color=colour, markerfacecolor=inside, gid=gid)
        else:
            ax.barh(place, mean, height=0.7, **_style(line.key, colours), gid=gid)
        if se:
            ax.errorbar(mean, place, xerr=se, color=INKS["ink"], capsize=3, linewidth=1.2)
        note = in_percent(line.average)
        titles[gid] = f"{line.key.label}: {note} % on {count(line.domains, 'domain')}"
        gap = 0.03 * _width(found)
        ax.text(mean + se + gap, place, note, va="center", fontsize=TEXT, color=INKS["ink"])
        ticks.append(place)
        place += room
    ax.set_yticks(ticks, names, parse_math=False)
    ax.set_ylim(place, 0)
    if close(found):
        low, high = _reach(found)
        ax.set_xlim(low, low + 1.38 * (high - low))
    else:
        ax.set_xlim(0, 138)  # room for the figures right of a full bar
        ax.set_xticks(range(0, 101, 20))
    ax.set_xlabel("accuracy on unseen domains, %")
    canvas.plain(ax, "x")
    ax.tick_params(axis="y", length=0)
    return Drawing(figure, titles)


def _reach(found: Comparison) -> tuple[float, float]:
    """From the lowest whisker to the highest, with some room."""
    known = [line.average for line in found.lines if line.average is not None]
    low = min(100 * (one.mean - (one.se or 0.0)) for one in known)
    high = max(100 * (one.mean + (one.se or 0.0)) for one in known)
    room = max(0.1 * (high - low), 0.2)
    return low - room, high + room


def _width(found: Comparison) -> float:
    """Of the axis, in points of accuracy."""
    low, high = _reach(found) if close(found) else (0.0, 100.0)
    return high - low


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
    return "\n".join(canvas.short(line, 26) for line in lines)
