"""How the runs learned: losses and validation scores, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from acclimate.config import AlgorithmName
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import Drawing, Illustration
from acclimate.results.material import Report
from acclimate.results.runs import Key, RunView

MOST_CURVES = 40
_MANY_LINES = 8  # beyond, learning curves have no marks
_CROWD = 20  # beyond, they are thin and faint
_PANELS = {
    "embedding": "embedding: loss",
    "main": "classifier: loss",
    "validation": "classifier: validation accuracy, %",
}


def illustrate(report: Report) -> Iterable[Illustration]:
    runs = [run for run in report.runs if run.problem is None]
    which = "One line per run"
    if len(runs) > MOST_CURVES:
        runs = [run for run in report.chosen[report.rule] if run.problem is None] or runs
        every = -(-len(runs) // MOST_CURVES)
        which = "One line per chosen run" + (
            f", of which {len(runs[::every])} of {len(runs)} are drawn" if every > 1 else ""
        )
        runs = runs[::every]
    drawing = draw(runs, canvas.colours_of(report))
    if drawing is not None:
        yield Illustration("Learning curves", f"{which}: {_caption(runs)}", drawing)


def _caption(runs: Sequence[RunView]) -> str:
    """Of what is drawn, and nothing else: short runs record no loss."""
    panels = set(_curves(runs))
    parts = []
    if panels - {"validation"}:
        parts.append("a loss should fall and level off")
    if "validation" in panels:
        parts.append(
            "a validation accuracy that falls again late in training is a sign of overfitting"
        )
    partly = any(run.finished is None for run in runs)
    more = " Unfinished runs are drawn as far as they went." if partly else ""
    return f"{'; '.join(parts)}.{more}"


_Curve = tuple[RunView, list[int], list[float]]


def draw(runs: Sequence[RunView], colours: Mapping[str, str]) -> Drawing | None:
    """A panel for the loss of each phase and one for the validation score; a line per run."""
    panels = _curves(runs)
    if not panels:
        return None
    order = sorted(panels, key=lambda name: {"embedding": 0, "validation": 2}.get(name, 1))
    many = len(runs) > _MANY_LINES
    crowd = len(runs) > _CROWD
    style: dict[str, Any] = {"linewidth": 0.8 if crowd else 1.1, "alpha": 0.4 if crowd else 0.8}
    figure = canvas.figure_of(1.65 * len(order) + 0.4)
    for ax, name in zip(figure.subplots(len(order), squeeze=False)[:, 0], order, strict=True):
        for run, steps, values in panels[name]:
            # One point makes no line.
            marks = "o" if len(steps) == 1 else "-" if many else ".-"
            ax.plot(steps, values, marks, color=colours[run.algorithm], markersize=4, **style)
        canvas.headline(ax, _PANELS.get(name, f"{name}: loss"))
        canvas.plain(ax, "y")
    ax.set_xlabel("training step")
    drawn = {run.algorithm for found in panels.values() for run, _, _ in found}
    for algorithm in (name for name in colours if name in drawn):
        ax.plot([], [], color=colours[algorithm], label=Key.usual(algorithm).label)
    canvas.legend(figure, ax)
    return Drawing(figure)


def _adaptive_first(run: RunView) -> tuple[bool, str]:
    return not AlgorithmName.of(run.algorithm).adaptive, run.name


def _curves(runs: Sequence[RunView]) -> dict[str, list[_Curve]]:
    panels: dict[str, list[_Curve]] = defaultdict(list)
    for run in sorted(runs, key=_adaptive_first):
        for phase in dict.fromkeys(loss.phase for loss in run.records.losses):
            losses = [loss for loss in run.records.losses if loss.phase == phase]
            panels[phase].append((run, [x.step for x in losses], [x.risk for x in losses]))
        scores: dict[int, list[float]] = defaultdict(list)
        for score in run.records.scores:
            if score.moment == "validation" and score.top1 is not None:
                scores[score.step].append(100 * score.top1)
        if scores:
            means = [fmean(scores[step]) for step in sorted(scores)]
            panels["validation"].append((run, sorted(scores), means))
    # One point of each run makes no curve.
    return {
        name: found
        for name, found in panels.items()
        if any(len(steps) > 1 for _, steps, _ in found)
    }
