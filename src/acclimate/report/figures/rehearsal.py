"""What rehearsal found: the gain of each chain over the plain model, by the number of images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from acclimate.core.text import count, percent, signed
from acclimate.records.rehearsal import Promise, Rehearsal
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import CYCLE, INKS, MARKERS, Drawing, Illustration, of_data
from acclimate.results.material import Report
from acclimate.results.rehearsals import speaker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADING = "Rehearsal"


def illustrate(report: Report) -> Iterable[Illustration]:
    groups = report.runs_by_dataset
    for dataset, runs in groups.items():
        run = speaker(runs)
        if run is None or run.rehearsal is None:
            continue
        found = run.rehearsal
        yield Illustration(
            HEADING,
            f"{of_data(dataset, len(groups))}{count(found.domains, 'training domain')} played new "
            f"site in turn: the gain of each chain over the plain model (the line at 0) in points, "
            f"by the number of unlabelled images, with standard errors over domains. "
            f"{_used(found)} (run {run.name}).",
            draw(found),
        )


def _used(found: Rehearsal) -> str:
    if {*found.chosen.values()} == {"none"}:
        return "None is filled: auto leaves the model as it is"
    used = ", ".join(f"{chain} with {n}" for n, chain in found.chosen.items())
    return f"Filled: what auto uses, {used}"


def draw(found: Rehearsal) -> Drawing:
    """A panel for each way of drawing label frequencies; a line for each chain."""
    kinds = tuple(dict.fromkeys(promise.frequencies for promise in found.promises))
    chains = [chain for chain in found.chains if chain != "none"]
    figure = canvas.figure_of(2.3 * len(kinds) + 0.6)
    axes = figure.subplots(len(kinds), squeeze=False, sharex=True)[:, 0]
    titles: dict[str, str] = {}
    sizes = sorted(found.chosen)
    for panel, (ax, kind) in enumerate(zip(axes, kinds, strict=True)):
        ax.axhline(0, color=INKS["faint"], linewidth=1.2)
        for place, chain in enumerate(chains):
            own = [p for p in found.promises if (p.chain, p.frequencies) == (chain, kind)]
            titles |= _line(ax, found, sorted(own, key=lambda p: p.n), place, panel)
        if len(kinds) > 1:
            canvas.headline(ax, f"label frequencies {kind}")
        ax.set_ylabel("gain, points")
        ax.set_xscale("log")
        ax.set_xlim(sizes[0] / 1.4, sizes[-1] * 1.6)
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.minorticks_off()
        canvas.plain(ax, "y")
    axes[-1].set_xlabel("unlabelled images of the new site")
    canvas.legend(figure, axes[0])
    return Drawing(figure, titles)


def _line(
    ax: Axes, found: Rehearsal, promises: Sequence[Promise], place: int, panel: int
) -> dict[str, str]:
    """A chain's promises, beside and not on top of those of others; tooltips by id."""
    if not promises:
        return {}
    colour, marker = INKS[CYCLE[place % len(CYCLE)]], MARKERS[place % len(MARKERS)]
    x = [promise.n * 1.05**place for promise in promises]
    y = [100 * promise.gain for promise in promises]
    errors = [100 * (promise.error or 0.0) for promise in promises]
    ax.errorbar(x, y, errors, color=colour, linewidth=1.1, elinewidth=1.1, capsize=2)
    titles = {}
    for promise, across, up in zip(promises, x, y, strict=True):
        chosen = found.chosen[promise.n] == promise.chain
        gid = f"promise-{panel}-{place}-{promise.n}"
        face = colour if chosen else "none"
        ax.plot(
            across, up, marker, color=colour, markerfacecolor=face, markersize=6 + chosen, gid=gid
        )
        error = "" if promise.error is None else f" ± {percent(promise.error)}"
        titles[gid] = (
            f"{promise.chain}, {promise.n} images: {signed(promise.gain)}{error} points"
            + ", used by auto" * chosen
        )
    name = promises[0].chain
    ax.plot([], [], marker, color=colour, markerfacecolor="none", linestyle="-", label=name)
    return titles
