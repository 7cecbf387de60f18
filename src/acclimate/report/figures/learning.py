"""How the runs learned: losses and validation scores, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from acclimate.config import AlgorithmName
from acclimate.records.metrics import METRICS, TOP_1, measured
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import Drawing, Illustration
from acclimate.results.material import Report
from acclimate.results.runs import Key, RunView

MOST_CURVES = 40
_CROWD = 20  # beyond, lines are thin and faint
_PANELS = {
    "embedding": "embedding: loss",
    "main": "classifier: loss",
}


def illustrate(report: Report) -> Iterable[Illustration]:
    runs = [run for run in report.runs if run.problem is None]
    which = "One line per run"
    if len(runs) > MOST_CURVES:
        chosen = [run for run in report.chosen[report.rule] if run.problem is None] or runs
        runs = chosen[:: -(-len(chosen) // MOST_CURVES)]
        which = f"One line per chosen run ({len(runs)} of {len(chosen)})"
    drawing = draw(runs, canvas.colours_of(report), report.metric)
    if drawing is not None:
        yield Illustration(
            "Learning curves",
            f"{which}, as far as it went: a loss should fall and level off; a validation score "
            "that turns worse late in training is a sign of overfitting.",
            drawing,
        )


def draw(
    runs: Sequence[RunView], colours: Mapping[str, str], metric: str = TOP_1
) -> Drawing | None:
    """A panel for the loss of each phase and one for the validation score; a line per run."""
    panels = _curves(runs, metric)
    headings = _PANELS | {"validation": f"classifier: validation {measured(metric)}"}
    if not panels:
        return None
    order = sorted(panels, key=lambda name: {"embedding": 0, "validation": 2}.get(name, 1))
    crowd = len(runs) > _CROWD
    style: dict[str, Any] = {"linewidth": 0.8 if crowd else 1.1, "alpha": 0.4 if crowd else 0.8}
    figure = canvas.figure_of(1.65 * len(order) + 0.4)
    for ax, name in zip(figure.subplots(len(order), squeeze=False)[:, 0], order, strict=True):
        for run, curve in panels[name]:
            marks = "o" if len(curve) == 1 else "-"  # one point makes no line
            colour = colours[run.algorithm]
            ax.plot(*zip(*curve, strict=True), marks, color=colour, markersize=4, **style)
        canvas.headline(ax, headings.get(name, f"{name}: loss"))
        canvas.plain(ax, "y")
    ax.set_xlabel("training step")
    drawn = {run.algorithm for curves in panels.values() for run, _ in curves}
    for algorithm in (name for name in colours if name in drawn):
        ax.plot([], [], color=colours[algorithm], label=Key.usual(algorithm).label)
    canvas.legend(figure, ax)
    return Drawing(figure)


_Curve = list[tuple[int, float]]  # step, value


def _curves(runs: Sequence[RunView], metric: str) -> dict[str, list[tuple[RunView, _Curve]]]:
    """By panel; a panel where no run has two points shows nothing."""
    panels: dict[str, list[tuple[RunView, _Curve]]] = defaultdict(list)
    # Adaptive runs are drawn below the others, which have fewer phases to show.
    for run in sorted(runs, key=lambda r: (not AlgorithmName.of(r.algorithm).adaptive, r.name)):
        curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for loss in run.records.losses:
            curves[loss.phase][loss.step].append(loss.risk)
        for score in run.records.scores:
            value = score.value(metric)
            if score.moment == "validation" and value is not None:
                curves["validation"][score.step].append(METRICS[metric].scale * value)
        for name, steps in curves.items():
            panels[name].append((run, [(step, fmean(steps[step])) for step in sorted(steps)]))
    return {name: own for name, own in panels.items() if any(len(curve) > 1 for _, curve in own)}
