"""Which settings were drawn, how they validated, and which of them a rule chose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acclimate.config import RunConfig, flat, settings_of
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, TEXT, Drawing, Illustration, of_data
from acclimate.results.material import Report
from acclimate.results.protocol import Sweep
from acclimate.results.runs import NAMES, Key
from acclimate.results.selection import candidates_of, select

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 12
MOST_POINTS = 600
_FEW_VALUES = 4


def illustrate(report: Report) -> Iterable[Illustration]:
    sweep = report.sweep
    for dataset in () if sweep is None else sweep.datasets:
        assert sweep is not None
        points = tried(report, report.rule, dataset.name)
        drawing = draw(points, drawn_settings(sweep, dataset.name), canvas.colours_of(report))
        if drawing is not None:
            yield Illustration(
                "Hyperparameters",
                f"{of_data(dataset.name, len(sweep.datasets))}Each mark is a draw of the settings "
                "that competed for a target: the setting’s value against the accuracy that the "
                "selection rule compared by; the chosen ones are ringed.",
                drawing,
            )


@dataclass(frozen=True)
class Tried:
    """A draw that competed for a target: its settings, what the rule compared, whether it won."""

    algorithm: str
    settings: Mapping[str, Any]
    score: float
    chosen: bool


def tried(report: Report, rule: str, dataset: str) -> list[Tried]:
    """Every draw with a validation score under `rule`, in the order of the sweep's jobs."""
    jobs = [job for job in report.sweep.jobs if job.dataset == dataset] if report.sweep else []
    runs = {run.folder.name: run.records for run in report.runs if run.problem is None}
    found = [one for job in jobs if job.id in runs for one in candidates_of(job, runs[job.id])]
    usual = [one for one in found if one.method == one.job.methods[0]]
    winners = {(choice.contest, choice.draw) for choice in report.choices.get(rule, ())}
    configs = resolved_settings(report)
    points = []
    for draw in sorted({one.job.draw for one in usual}):
        # With one draw in the running, each choice carries that draw's own score.
        mine = [one for one in usual if one.job.draw == draw]
        for choice in select(mine, rule, expected=[job for job in jobs if job.draw == draw]):
            if choice.run is not None and choice.score is not None:
                chosen = (choice.contest, draw) in winners
                points.append(Tried(choice.algorithm, configs[choice.run], choice.score, chosen))
    return points


def resolved_settings(report: Report) -> dict[str, dict[str, Any]]:
    """Of each job, as its run resolved them: a sweep leaves open what follows from the rest."""
    jobs = () if report.sweep is None else report.sweep.jobs
    runs = {run.folder.name: run.config for run in report.runs if run.problem is None}
    return {job.id: flat(job.config) | flat(runs.get(job.id, {})) for job in jobs}


def drawn_settings(sweep: Sweep, dataset: str) -> list[str]:
    """The settings that differ between the draws of one algorithm, variant and trial."""
    values: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for job in sweep.jobs:
        if job.dataset == dataset:
            for path, value in flat(job.config).items():
                values[path, job.algorithm, job.variant, job.trial].add(repr(value))
    varied = {str(path) for (path, *_), found in values.items() if len(found) > 1}
    return sorted(varied - NAMES)


def draw(
    points: Sequence[Tried], settings: Sequence[str], colours: Mapping[str, str]
) -> Drawing | None:
    """A panel per drawn setting: its value against the score that was compared, chosen ringed."""
    panels = {path: [p for p in points if p.settings.get(path) is not None] for path in settings}
    values = {path: len({repr(p.settings[path]) for p in own}) for path, own in panels.items()}
    # The search itself is not stored: what took most values was searched most.
    shown = sorted((path for path in panels if values[path] > 1), key=lambda path: -values[path])
    shown = shown[:MOST_PANELS]
    if not shown:
        return None
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = canvas.figure_of(1.75 * rows + 0.5)
    axes: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    for ax, path in zip(axes, shown, strict=False):
        _panel(ax, path, _thinned(panels[path]), colours)
        canvas.headline(ax, path if len(path) <= 25 else "…" + path[-24:])
    figure.supylabel("validation accuracy, %", fontsize=TEXT, color=INKS["ink"])
    drawn = {point.algorithm for path in shown for point in panels[path]}
    for name, marker in canvas.markers_of(colours).items():
        if name in drawn:
            label = Key.usual(name).label
            axes[0].plot([], [], marker, markersize=4, color=colours[name], label=label)
    ring: dict[str, Any] = {"color": INKS["ink"], "fillstyle": "none", "markersize": 8}
    axes[0].plot([], [], "o", **ring, label="chosen")
    canvas.legend(figure, axes[0])
    return Drawing(figure)


def _thinned(points: Sequence[Tried]) -> list[Tried]:
    """All that were chosen and an even share of the others, lest the page weigh megabytes."""
    others = [point for point in points if not point.chosen]
    every = len(others) // MOST_POINTS + 1
    return [*others[::every], *(point for point in points if point.chosen)]


def _panel(ax: Axes, path: str, points: Sequence[Tried], colours: Mapping[str, str]) -> None:
    values = [point.settings[path] for point in points]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    # Few values: one place each, with the algorithms side by side.
    names: list[Any] = sorted(set(values)) if numeric else sorted({str(value) for value in values})
    scaled = numeric and len(names) > _FEW_VALUES
    markers = canvas.markers_of(colours)
    algorithms = [name for name in colours if any(p.algorithm == name for p in points)]
    for algorithm, offset in zip(algorithms, canvas.spread(len(algorithms), 0.13), strict=True):
        for chosen in (False, True):
            mine = [p for p in points if (p.algorithm, p.chosen) == (algorithm, chosen)]
            own = [p.settings[path] if numeric else str(p.settings[path]) for p in mine]
            x = own if scaled else [names.index(value) + offset for value in own]
            y = [100 * p.score for p in mine]
            look: dict[str, Any] = {"color": colours[algorithm], "marker": markers[algorithm]}
            ax.scatter(x, y, s=14, alpha=0.95 if chosen else 0.5, linewidths=0, **look)
            if chosen:
                ax.scatter(x, y, s=38, facecolors="none", edgecolors=INKS["ink"], linewidths=0.7)
    canvas.plain(ax, "y")
    if not scaled:
        ticks = [f"{name:.3g}" if numeric else canvas.short(name, 8) for name in names]
        ax.set_xticks(range(len(names)), ticks, parse_math=False)
        ax.set_xlim(-0.6, len(names) - 0.4)
    elif min(names) > 0 and (_searched_by_log(path) or canvas.is_logarithmic(names)):
        ax.set_xscale("log")
        canvas.log_axis(ax.xaxis)


def _searched_by_log(path: str) -> bool:
    """Whether the setting's own search range is logarithmic; an algorithm's are not known here."""
    declared = {one.name: one.facts.get("search") for one in settings_of(RunConfig())}
    return str(getattr(declared.get(path), "scale", "")).startswith("log")
