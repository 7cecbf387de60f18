"""What auto gains over the plain model with each number of images, from results of `unseen`."""

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from acclimate.paper.figures.scales import log_axis
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import Drawing
from acclimate.results.statistics import Estimate
from unseen import Row, as_rehearsed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def report(asked: argparse.Namespace, results: Sequence[Row]) -> Row:
    """Whatever is finished, for a file."""
    return {
        "asked": {k: v for k, v in vars(asked).items() if k not in ("out", "data", "device")},
        "curves": by_data(results) if asked.points else {},
        "results": sorted(results, key=lambda result: (result["data"], result["seed"])),
    }


def by_data(results: Sequence[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(result["data"] for result in results)
    return {name: curve([r for r in results if r["data"] == name]) for name in names}


def curve(results: Sequence[Row]) -> list[Row]:
    """What auto gains over plain with each number of images: a mean over domains, then over seeds.

    The domains of one seed, which may be spread over several results, count together.
    """
    sizes = sorted({row["n"] for result in results for row in result["rows"]})
    return [_point(results, n) for n in sizes if any(_gains(results, n).values())]


def _point(results: Sequence[Row], n: int) -> Row:
    pairs = _gains(results, n)
    gain = Estimate.of(fmean(auto - none for none, auto in found) for found in pairs.values())
    assert gain is not None
    return {
        "n": n,
        "images": _given(results, n),
        "plain": fmean(fmean(none for none, _ in found) for found in pairs.values()),
        "auto": fmean(fmean(auto for _, auto in found) for found in pairs.values()),
        "gain": gain.mean,
        "error": gain.se,
        "seeds": gain.n,
    }


def gain_of(point: Row) -> Estimate:
    return Estimate(point["gain"], point["error"], point["seeds"])


def _given(results: Sequence[Row], n: int) -> float:
    """How many images domains gave when so many were asked for: half of theirs at most."""
    rows = (row for result in results for row in result["rows"])
    prior = (n, as_rehearsed("prior"))
    return fmean(row["images"] for row in rows if (row["n"], row["method"]) == prior)


def _gains(results: Sequence[Row], n: int) -> dict[int, list[tuple[float, float]]]:
    """By seed: accuracy of plain and of auto at each domain."""
    found: dict[int, list[tuple[float, float]]] = {}
    for result in results:
        scores = {(r["method"], r["domain"]): r["top1"] for r in result["rows"] if r["n"] == n}
        for (method, domain), auto in scores.items():
            plain = scores.get(("none", domain))
            if method == "auto" and auto is not None and plain is not None:
                found.setdefault(result["seed"], []).append((plain, auto))
    return found


def draw(found: Mapping[str, Sequence[Row]]) -> Drawing:
    """Gain of auto over plain against the number of images, a line for each data set."""
    figure = canvas.figure_of(3.4)
    ax = figure.subplots()
    _lines(ax, found)
    ax.set_xlabel("unlabelled images of the unseen domain")
    ax.set_ylabel("auto less plain, points")
    canvas.legend(figure, ax)
    return Drawing(figure)


def draw_panels(found: Mapping[str, Sequence[Row]]) -> Drawing:
    """The same of many data sets: those that are called alike before a colon share a panel."""
    groups: dict[str, dict[str, Sequence[Row]]] = {}
    for name, points in found.items():
        group, _, own = name.partition(": ")
        groups.setdefault(group, {})[own or group] = points
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    figure = canvas.figure_of(2.4 * rows + 0.3)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax in grid.flat[len(groups) :]:
        ax.set_visible(False)
    for ax, (group, lines) in zip(grid.flat, groups.items(), strict=False):
        _lines(ax, lines)
        ax.set_title(group, fontsize="medium")
        ax.legend(loc="upper left", frameon=False, fontsize="x-small")
        ax.tick_params(labelbottom=True, labelleft=True)
    low, high = grid[0, 0].get_ylim()
    grid[0, 0].set_ylim(low, high + 0.5 * (high - low))  # room for the legends
    figure.supxlabel("unlabelled images of the unseen domain", fontsize="medium")
    figure.supylabel("auto less plain, points", fontsize="medium")
    return Drawing(figure)


def _lines(ax: "Axes", found: Mapping[str, Sequence[Row]]) -> None:
    ax.axhline(0, color=canvas.INKS["faint"], linewidth=1)
    for place, (name, points) in enumerate(found.items()):
        ax.errorbar(
            [point["images"] * 1.03**place for point in points],  # beside each other, not on top
            [100 * point["gain"] for point in points],
            [100 * (point["error"] or 0.0) for point in points],
            color=canvas.INKS[canvas.CYCLE[place % len(canvas.CYCLE)]],
            marker=canvas.MARKERS[place % len(canvas.MARKERS)],
            markersize=4,
            linewidth=1.2,
            label=name,
        )
    ax.set_xscale("log")
    log_axis(ax.xaxis)
    canvas.plain(ax, "y")
