"""What rehearsal measured: the gain of each chain over the plain model, by the number of images."""

from __future__ import annotations

from collections.abc import Iterable

from acclimate.core.text import count
from acclimate.records.rehearsal import Rehearsal
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import CYCLE, INKS, MARKERS, Drawing, Illustration, of_data
from acclimate.results.material import Report
from acclimate.results.statistics import Estimate, in_points


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
    chains = [chain for chain in rehearsal.chains if chain != "none"]
    figure = canvas.figure_of(2.3 * len(kinds) + 0.6)
    axes = figure.subplots(len(kinds), squeeze=False, sharex=True)[:, 0]
    titles: dict[str, str] = {}
    sizes = sorted(rehearsal.chosen)
    for panel, (ax, kind) in enumerate(zip(axes, kinds, strict=True)):
        ax.axhline(0, color=INKS["faint"], linewidth=1.2)
        for place, chain in enumerate(chains):
            colour, marker = INKS[CYCLE[place % len(CYCLE)]], MARKERS[place % len(MARKERS)]
            for promise in rehearsal.promises:
                if (promise.chain, promise.frequencies) != (chain, kind):
                    continue
                x, y = promise.n * 1.05**place, 100 * promise.gain  # beside those of other chains
                chosen = rehearsal.chosen[promise.n] == chain
                look = {"color": colour, "fillstyle": "full" if chosen else "none"}
                gid = f"promise-{panel}-{place}-{promise.n}"
                error = 100 * (promise.error or 0.0)
                ax.errorbar(x, y, error, color=colour, linewidth=1.1, capsize=2)
                ax.plot(x, y, marker, **look, markersize=6, gid=gid)
                gain = Estimate(promise.gain, promise.error, promise.domains)
                text = f"{chain}, {promise.n} images: {in_points(gain)} points"
                titles[gid] = text + ", used by auto" * chosen
            ax.plot([], [], marker, color=colour, fillstyle="none", label=chain)
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
