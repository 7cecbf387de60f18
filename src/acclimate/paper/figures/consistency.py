"""How well a domain's embedding is known: the measured error of μ beside Theorem 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.core.text import count
from acclimate.paper.consistency import as_adapt_says, unit_of_adapt
from acclimate.paper.figures.scales import log_axis
from acclimate.records.folder import RunFolder
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, Drawing, Illustration, of_data
from acclimate.results.material import Report


@dataclass(frozen=True)
class Point:
    """`n` images: the mean error of μ over domains, its 95 % quantile in the worst domain, and the
    radius that Theorem 1 gives where it holds."""

    n: int
    error: float
    error95: float | None
    radius: float | None


@dataclass(frozen=True)
class Consistency:
    points: tuple[Point, ...]
    between: float | None  # distance of two domains' μ
    within: float | None  # distance of the μ of two halves of a domain


def illustrate(report: Report) -> Iterable[Illustration]:
    groups = report.runs_by_dataset
    for dataset, runs in groups.items():
        measured = next(((run, c) for run in runs if (c := _measured(run.folder))), None)
        if measured is None:
            continue
        run, curve = measured
        bounded = any(point.radius is not None for point in curve.points)
        bound = (
            "In each domain, Theorem 1 bounds the error of at least 95 % of draws; it must hold "
            "for any distribution, so the dashed line should lie well below it."
            if bounded
            else "Theorem 1 says nothing about so few images."
        )
        yield Illustration(
            "How many images an embedding needs",
            f"{of_data(dataset, len(groups))}How far the embedding from n images of a training "
            "domain, drawn at random with replacement, lies from μ, that of all the images they "
            "are drawn from: the mean over domains and draws, and what 95 % of draws stay below "
            f"in the worst domain (run {run.name}). {bound} "
            f"{expressivity(curve)}".strip(),
            draw(curve),
        )


def _measured(run: Path) -> Consistency | None:
    return parsed(as_adapt_says(RunFolder(run).consistency(), unit_of_adapt(run)))


def parsed(stored: Mapping[str, Any] | None) -> Consistency | None:
    """What a run's consistency.json holds; `None` where nothing of it can be drawn."""
    if not stored:
        return None
    try:
        points = sorted(
            (
                Point(int(p["n"]), float(p["error"]), _number(p["error95"]), _number(p["radius"]))
                for p in stored["points"]
            ),
            key=lambda point: point.n,
        )
        between, within = _number(stored.get("between")), _number(stored.get("within"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    drawn = tuple(p for p in points if p.n > 0 and math.isfinite(p.error) and p.error > 0)
    return Consistency(drawn, between, within) if drawn else None


def _number(value: object) -> float | None:
    if value is None:
        return None
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else None


def expressivity(curve: Consistency) -> str:
    """Whether domains differ by more than the choice of their images, in a sentence."""
    if curve.between is None or not curve.within:
        return ""
    ratio = curve.between / curve.within
    verdict = (
        "domains differ by more than the choice of images does"
        if ratio > 1
        else "domains differ by no more than the choice of images makes them differ"
    )
    return (
        f"Expressivity: two domains lie {curve.between:.2g} apart and two halves of one domain "
        f"{curve.within:.2g}, a ratio of {ratio:.2g}: {verdict}."
    )


def draw(curve: Consistency) -> Drawing:
    """Error of μ against the number of images, log-log; grey where the theorem says nothing."""
    figure = canvas.figure_of(3.3)
    ax, titles = figure.subplots(), {}
    points = curve.points
    n = [point.n for point in points]
    for number, point in enumerate(points):
        gid = f"n-{number}"
        ax.plot(point.n, point.error, "o", color=INKS["blue"], markersize=4.5, gid=gid, zorder=3)
        known = "says nothing" if point.radius is None else f"promises {point.radius:.3g}"
        titles[gid] = f"{count(point.n, 'image')}: error {point.error:.3g}, Theorem 1 {known}"
    ax.plot(n, [p.error for p in points], color=INKS["blue"], label="measured, mean")
    _line(ax, [(p.n, p.error95) for p in points], "worst domain, 95 %", "blue", "--")
    _line(ax, [(p.n, p.radius) for p in points], "Theorem 1 (95 %)", "orange", "-")
    ax.set(xscale="log", yscale="log")
    silent = [p.n for p in points if p.radius is None]
    if silent:
        ends = [p.n for p in points if p.radius is not None and p.n > max(silent)]
        end = math.sqrt(max(silent) * min(ends)) if ends else max(silent) * 1.3
        ax.axvspan(
            min(n) / 1.3, end, color=INKS["faint"], alpha=0.18, linewidth=0,
            label="Theorem 1 says nothing",
        )  # fmt: skip
    ax.set_xlim(min(n) / 1.3, max(n) * 1.3)
    ax.set_xlabel("unlabelled images n")
    ax.set_ylabel("distance from μ")
    canvas.plain(ax, "both")
    log_axis(ax.xaxis)
    log_axis(ax.yaxis)
    canvas.legend(figure, ax, columns=2)
    return Drawing(figure, titles)


def _line(
    ax: Any, pairs: Sequence[tuple[int, float | None]], label: str, ink: str, style: str
) -> None:
    known = [(n, value) for n, value in pairs if value is not None and value > 0]
    if known:
        x, y = zip(*known, strict=True)
        marker = "D" if ink == "orange" else ""
        ax.plot(x, y, style, marker=marker, markersize=4, color=INKS[ink], label=label)
