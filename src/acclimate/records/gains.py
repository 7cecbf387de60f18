"""What a rehearsal promises, as a table and as marks on axes."""

from typing import TYPE_CHECKING

from acclimate.core.grid import Cell, Grid, number, share
from acclimate.core.plots import CYCLE, INKS, MARKERS
from acclimate.records.rehearsal import Frequencies, Rehearsal, gain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def gains_grid(rehearsal: Rehearsal) -> Grid:
    """A row per promise: by chain, number of images and how label frequencies were drawn."""
    header = ("Adapted by", "Images", "Label frequencies", "Accuracy", "Gain over plain, points")
    chosen = {*rehearsal.chosen.items()}
    rows = (
        (
            Cell(promise.chain + ", used by auto" * ((promise.n, promise.chain) in chosen)),
            number(promise.n),
            Cell(promise.frequencies),
            share(promise.accuracy),
            Cell(gain_text(promise), promise.gain),
        )
        for promise in rehearsal.promises
    )
    return Grid(header, tuple(rows), frozenset({"Label frequencies"}))


def draw_gains(
    rehearsal: Rehearsal,
    axes: "Axes",
    frequencies: Frequencies = "as they are",
    name: str = "promise",
) -> dict[str, str]:
    """Gains of each chain over the plain model in points, by the number of images, with standard
    errors; filled where `adapt` uses the chain. What each mark says, by its `gid`, which begins
    with `name`."""
    titles, sizes = dict[str, str](), sorted(rehearsal.chosen)
    axes.axhline(0, color=INKS["faint"], linewidth=1.2)
    for place, chain in enumerate(chain for chain in rehearsal.chains if chain != "none"):
        colour, marker = INKS[CYCLE[place % len(CYCLE)]], MARKERS[place % len(MARKERS)]
        for promise in rehearsal.promises:
            if (promise.chain, promise.frequencies) != (chain, frequencies):
                continue
            x, y = promise.n * 1.05**place, 100 * promise.gain  # beside those of other chains
            chosen = rehearsal.chosen[promise.n] == chain
            gid, error = f"{name}-{place}-{promise.n}", 100 * (promise.error or 0.0)
            axes.errorbar(x, y, error, color=colour, linewidth=1.1, capsize=2)
            filled = "full" if chosen else "none"
            axes.plot(x, y, marker, color=colour, fillstyle=filled, markersize=6, gid=gid)
            text = f"{chain}, {promise.n} images: {gain_text(promise)} points"
            titles[gid] = text + ", used by auto" * chosen
        axes.plot([], [], marker, color=colour, fillstyle="none", label=chain)
    axes.set_ylabel("gain, points")
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] / 1.4, sizes[-1] * 1.6)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    return titles
