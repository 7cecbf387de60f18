"""What rehearsal measured: the gain of each chain over the plain model, by the number of images."""

from __future__ import annotations

from collections.abc import Iterable

from acclimate.core.text import count
from acclimate.records.gains import draw_gains
from acclimate.records.rehearsal import Rehearsal
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import Drawing, Illustration, of_data
from acclimate.results.material import Report


def illustrate(report: Report) -> Iterable[Illustration]:
    for dataset, run, rehearsal in report.rehearsals:
        used = ", ".join(f"{chain} with {n}" for n, chain in rehearsal.chosen.items())
        yield Illustration(
            "Rehearsal",
            f"{of_data(dataset, len(report.runs_by_dataset))}"
            f"{count(rehearsal.domains, 'training domain')} held out in turn: the gain of each "
            "chain over the plain model (the line at 0) in points, by the number of unlabelled "
            "images, with standard errors over domains. Filled: what auto uses, "
            f"{used} (run {run.name}).",
            draw(rehearsal),
        )


def draw(rehearsal: Rehearsal) -> Drawing:
    """A panel for each way of drawing label frequencies; a line for each chain."""
    kinds = tuple(dict.fromkeys(promise.frequencies for promise in rehearsal.promises))
    figure = canvas.figure_of(2.3 * len(kinds) + 0.6)
    axes = figure.subplots(len(kinds), squeeze=False, sharex=True)[:, 0]
    titles = dict[str, str]()
    for panel, (ax, kind) in enumerate(zip(axes, kinds, strict=True)):
        titles |= draw_gains(rehearsal, ax, kind, f"promise-{panel}")
        if len(kinds) > 1:
            canvas.headline(ax, f"label frequencies {kind}")
        canvas.plain(ax, "y")
    axes[-1].set_xlabel("unlabelled images of the new site")
    canvas.legend(figure, axes[0])
    return Drawing(figure, titles)
