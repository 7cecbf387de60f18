"""Every figure of a report with its heading and caption; a page shows them, a folder holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from acclimate.core.errors import ConfigError
from acclimate.report import canvas, plots
from acclimate.report.canvas import Drawing, Format
from acclimate.report.maps import by_components, draw_map, read_domain_map
from acclimate.report.result_plots import draw_ablation, draw_by_domain, methods_shown
from acclimate.report.search_plots import draw_search, drawn_settings, tried
from acclimate.report.share_plots import MOST_PANELS, draw_shares, groups_of, shifts
from acclimate.report.theory_plots import draw_consistency, expressivity, parsed
from acclimate.results.material import Report
from acclimate.results.protocol import Axis
from acclimate.results.runs import RunView
from acclimate.results.summary import Summary
from acclimate.results.tabulate import ALL

MOST_CURVES = 40
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
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Illustration:
    """A figure as it is shown. `name` is its file's name and the start of its ids; figures with
    one heading belong together."""

    name: str
    heading: str
    caption: str
    drawing: Drawing


def write_figures(report: Report, folder: Path, formats: Sequence[Format] = FORMATS) -> list[Path]:
    """The report's figures as files for papers, on white; their paths."""
    for kind in formats:
        if kind not in FORMATS:
            raise ConfigError(f"figures: there is no format '{kind}'; choose {', '.join(FORMATS)}")
    paths = []
    for figure in illustrations(report):
        for kind in formats:
            path = folder / f"{figure.name}.{kind}"
            canvas.write_figure(figure.drawing, path, kind)
            paths.append(path)
    return paths


def illustrations(report: Report) -> list[Illustration]:
    """In the order of a page. A figure without anything to show is left out."""
    rule = report.rules[0] if report.rules else ""
    summary = report.summaries[rule]
    colours = colours_for(report, summary)
    return [
        *_ablation(report, rule, colours),
        *_comparison(report, summary, colours),
        *_by_domain(report, rule, colours),
        *_dumbbells(report, summary, colours),
        *_maps(report, summary),
        *_shares(report),
        *_consistency(report, summary),
        *_search(report, rule, colours),
        *_learning(report, summary, colours),
    ]


Colours = dict[str, str]


def colours_for(report: Report, summary: Summary) -> Colours:
    """A colour per algorithm, the same in every figure."""
    runs = {run.algorithm for run in report.runs if run.problem is None}
    lines = {line.key.algorithm for line in summary.lines}
    rows = {
        row.key.algorithm
        for found in report.results.values()
        for results in found
        for row in results.rows
    }
    return canvas.palette(runs | lines | rows, summary.baseline.algorithm)


def _numbered(name: str, number: int) -> str:
    return name if number == 0 else f"{name}-{number + 1}"


def _of(dataset: str, several: bool) -> str:
    return f"Data set {dataset}. " if several and dataset else ""


def _varies(report: Report) -> bool:
    return report.sweep is not None and report.sweep.axis is not None


def _ablation(report: Report, rule: str, colours: Colours) -> Iterable[Illustration]:
    sweep = report.sweep
    if sweep is None or sweep.axis is None:
        return
    axis = _in_order(sweep.axis, (job.variant for job in sweep.jobs))
    results = [found for found in report.results.get(rule, ()) if found.dataset != ALL]
    drawing = draw_ablation(results, axis, colours)
    if drawing is not None:
        yield Illustration(
            "ablation",
            "Ablation",
            f"Accuracy on unseen domains by {axis.label}. Whiskers are one standard error over "
            "trials. Hollow, pointing down: controls, which are meant to fail. Hollow, pointing "
            "up: ceilings, which use what no method may know.",
            drawing,
        )


def _in_order(axis: Axis, variants: Iterable[str]) -> Axis:
    """The variants as the jobs have them: a sweep file does not keep the order of places."""
    order = [name for name in dict.fromkeys(variants) if name in axis.places]
    return replace(axis, places={name: axis.places[name] for name in order})


def _comparison(report: Report, summary: Summary, colours: Colours) -> Iterable[Illustration]:
    if _varies(report):
        return  # a bar for each variant would say less than the curve does
    drawing = plots.draw_comparison(summary, colours)
    if drawing is not None:
        kinds = {line.key.kind for line in summary.lines}
        caption = (
            "Each bar is the mean accuracy over the unseen domains, longer is better; the whisker "
            "is one standard error over seeds."
        )
        caption += " Hatched: a control, meant to fail." * ("control" in kinds)
        caption += " Dashed: a ceiling, which uses what no method may know." * ("ceiling" in kinds)
        yield Illustration("bars", "Unseen domains", caption, drawing)


def _by_domain(report: Report, rule: str, colours: Colours) -> Iterable[Illustration]:
    if not rule or _varies(report):
        return  # a folder of runs has the dumbbells, an ablation its curve
    found = [results for results in report.results.get(rule, ()) if results.dataset != ALL]
    for number, results in enumerate(found):
        drawing = draw_by_domain(results, colours)
        if drawing is None:
            continue
        hidden = len(results.columns) - canvas.MOST_DOMAINS
        some = f" {hidden} further domains are left out." if hidden > 0 else ""
        methods = [row for row in results.rows if row.key.kind == "method" and not row.published]
        fewer = len(methods) - len(methods_shown(results))
        some += f" {fewer} further methods are in the table only." if fewer > 0 else ""
        yield Illustration(
            _numbered("by-domain", number),
            "Accuracy by domain",
            f"{_of(results.dataset, len(found) > 1)}Mean accuracy on each domain while it is "
            f"unseen; whiskers are one standard error over trials.{some}",
            drawing,
        )


def _dumbbells(report: Report, summary: Summary, colours: Colours) -> Iterable[Illustration]:
    if _varies(report):
        return  # one variant of many would be picked by its name
    contender = next(iter(summary.contenders), None)
    difference = contender and summary.versus(contender)
    if not difference or not difference.changes:
        return
    drawing = plots.draw_domains(difference, colours)
    assert drawing is not None
    line, base = difference.line.label, difference.against.label
    hidden = len(difference.changes) - canvas.MOST_DOMAINS
    some = f" The {hidden} domains in the middle are left out." if hidden > 0 else ""
    yield Illustration(
        "domains",
        "Domain by domain",
        f"Each row is an unseen domain, from {base} (ring) to {line} (diamond), averaged over "
        f"seeds; the largest gain is on top, and a diamond left of its ring has lost.{some}",
        drawing,
    )


def _by_dataset(report: Report, summary: Summary) -> dict[str, list[RunView]]:
    """Finished runs of each data set of a sweep, in a fixed order: the first that has what is
    wanted speaks for its data set. Runs on their own are taken together."""
    runs = sorted(summary.finished, key=lambda run: (run.algorithm, run.seed, run.name))
    names = _shown_sets(report) or [""]
    found: dict[str, list[RunView]] = {name: [] for name in names}
    for run in runs:
        if (name := run.dataset if report.sweep is not None else "") in found:
            found[name].append(run)
    return found


def _shown_sets(report: Report) -> list[str]:
    """The data sets of a sweep in its order; of an ablation with data for each value, those of
    the first and the last value: what lies between looks like something in between."""
    names = [] if report.sweep is None else [found.name for found in report.sweep.datasets]
    return [names[0], names[-1]] if _varies(report) and len(names) > 2 else names


def _maps(report: Report, summary: Summary) -> Iterable[Illustration]:
    groups = _by_dataset(report, summary)
    drawn = 0
    for dataset, runs in groups.items():
        for run in runs:
            found = read_domain_map(run)
            if found is None:
                continue
            how, meaning = _COMPONENTS if by_components(found.mu) else _NEIGHBOURS
            yield Illustration(
                _numbered("map", drawn),
                "Map of the domains",
                f"{_of(dataset, len(groups) > 1)}Each mark is a domain, placed by its embedding "
                f"with {how} (run {run.name}). {meaning} Point at a mark, or go through the marks "
                "with the arrow keys, to read its name.",
                draw_map(found),
            )
            drawn += 1
            break


def _shares(report: Report) -> Iterable[Illustration]:
    names = _shown_sets(report)
    found = [labels for labels in report.labels if not names or labels.name in names]
    found.sort(key=lambda labels: names.index(labels.name) if names else 0)
    for number, labels in enumerate(found):
        drawing = draw_shares(labels)
        if drawing is None:
            continue
        count, size = len(shifts(labels)), groups_of(len(labels.classes))
        some = f"the {MOST_PANELS} most shifted of {count} domains" if count > MOST_PANELS else ""
        steps = (
            f"; each step is a group of {size} of the {len(labels.classes)} classes, and heights "
            "are on a square-root scale"
        )
        yield Illustration(
            _numbered("labels", number),
            "Label distributions",
            f"{_of(labels.name, len(found) > 1)}Share of each class in "
            f"{some or 'each domain'}, from the most to the least "
            f"frequent class overall{steps if size > 1 else ''}. Shift is the total variation "
            "distance from the other domains pooled: 0 is alike, 1 has no class in common.",
            drawing,
        )


def _consistency(report: Report, summary: Summary) -> Iterable[Illustration]:
    groups = _by_dataset(report, summary)
    drawn = 0
    for dataset, runs in groups.items():
        found = next(((run, c) for run in runs if (c := parsed(run.consistency))), None)
        if found is None:
            continue
        run, curve = found
        said = any(point.radius is not None for point in curve.points)
        bound = (
            "In each domain, Theorem 1 bounds the error of at least 95 % of draws; it must hold "
            "for any distribution, so the dashed line should lie well below it."
            if said
            else "Theorem 1 says nothing about so few images."
        )
        yield Illustration(
            _numbered("consistency", drawn),
            "How many images an embedding needs",
            f"{_of(dataset, len(groups) > 1)}How far the embedding from n images of a training "
            "domain, drawn at random with replacement, lies from μ, that of all the images they "
            "are drawn from: the mean over domains and draws, and what 95 % of draws stay below "
            f"in the worst domain (run {run.name}). {bound} "
            f"{expressivity(curve)}".strip(),
            draw_consistency(curve),
        )
        drawn += 1


def _search(report: Report, rule: str, colours: Colours) -> Iterable[Illustration]:
    if report.sweep is None:
        return
    drawn = 0
    for dataset in report.sweep.datasets:
        settings = drawn_settings(report.sweep, dataset.name)
        drawing = draw_search(tried(report, rule, dataset.name), settings, colours)
        if drawing is None:
            continue
        yield Illustration(
            _numbered("search", drawn),
            "Hyperparameters",
            f"{_of(dataset.name, len(report.sweep.datasets) > 1)}Each mark is a draw of the "
            "settings that competed for a target: the setting’s value against the accuracy that "
            "the selection rule compared by; the chosen ones are ringed.",
            drawing,
        )
        drawn += 1


def _learning(report: Report, summary: Summary, colours: Colours) -> Iterable[Illustration]:
    runs = [run for run in report.runs if run.problem is None]
    which = "One line per run"
    if len(runs) > MOST_CURVES:
        runs = [run for run in summary.runs if run.problem is None] or runs
        every = -(-len(runs) // MOST_CURVES)
        which = "One line per chosen run" + (
            f", of which {len(runs[::every])} of {len(runs)} are drawn" if every > 1 else ""
        )
        runs = runs[::every]
    drawing = plots.draw_learning(runs, colours)
    if drawing is not None:
        yield Illustration(
            "learning",
            "Learning curves",
            f"{which}: a loss should fall and level off; a validation accuracy that falls again "
            "late in training is a sign of overfitting. Unfinished runs are drawn as far as they "
            "went.",
            drawing,
        )
