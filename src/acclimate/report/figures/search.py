"""Which settings were drawn, how they validated, and which of them a rule chose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acclimate.config import RunConfig, Search, flat, settings_of
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, Drawing, Illustration, of_data
from acclimate.results.material import Report
from acclimate.results.protocol import Job, Sweep
from acclimate.results.runs import NAMES, Key
from acclimate.results.selection import Candidate, Choice, candidates_of, select

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 600
MOST_PANELS = 12
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
    if report.sweep is None:
        return []
    jobs = [job for job in report.sweep.jobs if job.dataset == dataset]
    runs = {run.folder.name: run.records for run in report.runs if run.problem is None}
    found = [one for job in jobs if job.id in runs for one in candidates_of(job, runs[job.id])]
    known = [one for one in found if one.method == one.job.methods[0]]
    winners = {(_contest(choice), choice.draw) for choice in report.choices.get(rule, ())}
    configs = resolved_settings(report)
    points = []
    for draw in sorted({one.job.draw for one in known}):
        for choice in _unopposed(known, jobs, rule, draw):
            if choice.run is not None and choice.score is not None:
                chosen = (_contest(choice), draw) in winners
                settings = configs[choice.run]
                points.append(Tried(choice.algorithm, settings, choice.score, chosen))
    return points


def resolved_settings(report: Report) -> dict[str, dict[str, Any]]:
    """Of each job, as its run resolved them: a sweep leaves open what follows from the rest."""
    jobs = () if report.sweep is None else report.sweep.jobs
    found = {job.id: flat(job.config) for job in jobs}
    for run in report.runs:
        if run.problem is None and run.folder.name in found:
            found[run.folder.name] |= flat(run.config)
    return found


def _unopposed(
    known: Sequence[Candidate], jobs: Sequence[Job], rule: str, draw: int
) -> Iterable[Choice]:
    """With one draw in the running, each choice carries that draw's own score."""
    mine = [one for one in known if one.job.draw == draw]
    return select(mine, rule, expected=[job for job in jobs if job.draw == draw])


def _contest(choice: Choice) -> tuple[str, str, str, str, int, tuple[str, ...]]:
    line = choice.dataset, choice.algorithm, choice.variant, choice.method
    return *line, choice.trial, choice.target


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
    panels = {path: found for path, found in panels.items() if _values(path, found) > 1}
    # The search itself is not stored: what took most values was searched most.
    shown = sorted(panels.items(), key=lambda one: -_values(*one))[:MOST_PANELS]
    if not shown:
        return None
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = canvas.figure_of(1.75 * rows + 0.5)
    axes: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for ax, (path, found) in zip(axes, shown, strict=False):
        _panel(ax, path, _thinned(found), colours)
        canvas.headline(ax, path if len(path) <= 25 else "…" + path[-24:])
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    figure.supylabel("validation accuracy, %", fontsize=9, color=INKS["ink"])
    markers = canvas.markers_of(colours)
    drawn = {point.algorithm for _, found in shown for point in found}
    for name in (name for name in colours if name in drawn):
        label = Key.usual(name).label
        axes[0].plot([], [], markers[name], color=colours[name], markersize=4, label=label)
    ring: dict[str, Any] = {"color": INKS["ink"], "markerfacecolor": "none", "markersize": 8}
    axes[0].plot([], [], "o", **ring, label="chosen")
    canvas.legend(figure, axes[0])
    return Drawing(figure)


def _values(path: str, points: Iterable[Tried]) -> int:
    return len({repr(point.settings[path]) for point in points})


def _thinned(points: Sequence[Tried]) -> list[Tried]:
    """All that were chosen and an even share of the others, lest the page weigh megabytes."""
    others = [point for point in points if not point.chosen]
    every = -(-len(others) // MOST_POINTS) or 1
    return [*others[::every], *(point for point in points if point.chosen)]


def _panel(ax: Axes, path: str, points: Sequence[Tried], colours: Mapping[str, str]) -> None:
    values = [point.settings[path] for point in points]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    scaled = numeric and len(set(values)) > _FEW_VALUES
    # Few values: one place each, with the algorithms side by side.
    names = sorted(set(values)) if numeric else sorted({str(value) for value in values})
    algorithms = [name for name in colours if any(p.algorithm == name for p in points)]
    for algorithm, offset in zip(algorithms, canvas.spread(len(algorithms), 0.13), strict=True):
        mine = [point for point in points if point.algorithm == algorithm]
        x = [
            float(p.settings[path])
            if scaled
            else names.index(p.settings[path] if numeric else str(p.settings[path])) + offset
            for p in mine
        ]
        _marks(ax, x, mine, colours[algorithm], canvas.markers_of(colours)[algorithm])
    canvas.plain(ax, "y")
    if not scaled:
        ticks = [f"{name:.3g}" if numeric else canvas.short(name, 8) for name in names]
        ax.set_xticks(range(len(names)), ticks, parse_math=False)
        ax.set_xlim(-0.6, len(names) - 0.4)
    elif min(values) > 0 and (_searched_by_log(path) or canvas.is_logarithmic(values)):
        ax.set_xscale("log")
        canvas.log_axis(ax.xaxis)


def _marks(ax: Axes, x: Sequence[float], points: Sequence[Tried], colour: str, marker: str) -> None:
    for chosen in (False, True):
        places = [i for i, point in enumerate(points) if point.chosen == chosen]
        at = [x[i] for i in places], [100 * points[i].score for i in places]
        alpha = 0.95 if chosen else 0.5
        ax.scatter(*at, s=14, marker=marker, color=colour, alpha=alpha, linewidths=0)
        if chosen:
            ax.scatter(*at, s=38, facecolors="none", edgecolors=INKS["ink"], linewidths=0.7)


def _searched_by_log(path: str) -> bool:
    """Whether the setting's own search range is logarithmic; an algorithm's are not known here."""
    declared = {found.name: found.facts.get("search") for found in settings_of(RunConfig())}
    search = declared.get(path)
    return isinstance(search, Search) and search.scale in ("log10", "log2")
