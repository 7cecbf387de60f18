"""What rehearsal promised against what happened at unseen sites: `make bench-promises`.

    python benchmarks/promises.py runs/bench-shift/shift.json runs/rehearsed/rehearsed.json \\
        --out docs/images/promises.png

Reads the files of benchmarks/shift.py and benchmarks/rehearsed.py, any number of them. Draws a
point for each data set and chain, and prints how well the order of promises holds, how many true
gains lie where they were expected in nine cases of ten, and tables in Markdown.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import curves
import unseen
from acclimate.core.grid import Cell, Grid
from acclimate.core.text import DASH, percent, signed
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import Drawing, Format, write_figure
from acclimate.results.comparison import Comparison
from acclimate.results.comparison import Row as Line
from acclimate.results.runs import ERM, Key
from acclimate.results.statistics import Estimate, accuracy, difference, in_percent, in_points
from unseen import Row

ROOT = Path(__file__).resolve().parent.parent
CHAINS = {"prior": "o", "embedding": "s", "embedding+prior": "^"}  # with their markers
AUTO = Key("erm", "auto")
FAR = 0.02  # a gain, promised or true, from which on a point is named


@dataclass(frozen=True)
class Point:
    """A chain on a data set: means over seeds, with their standard errors."""

    data: str
    chain: str
    promised: float
    error: float  # that was promised, on average
    true: Estimate
    chosen: bool  # in half of the runs at least


def read(paths: Iterable[Path]) -> list[Row]:
    """The results of all files; of several under one name and seed, each is a part."""
    return [result for path in paths for result in json.loads(path.read_text())["results"]]


def by_data(results: Sequence[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(result["data"] for result in results)
    return {name: [r for r in results if r["data"] == name] for name in names}


def mainly(result: Row) -> Iterator[Row]:
    """Promises for the number of images that a result is mainly about, without auto's."""
    return (p for p in result["promises"] if p["n"] == result["n"] and p["chain"] in CHAINS)


def points(results: Sequence[Row]) -> list[Point]:
    return [
        _point(data, chain, kept)
        for data, found in by_data(results).items()
        for chain in CHAINS
        if (kept := [(r["seed"], p) for r in found for p in mainly(r) if p["chain"] == chain])
    ]


def _point(data: str, chain: str, kept: Sequence[tuple[int, Row]]) -> Point:
    seeds = sorted({seed for seed, _ in kept})
    true = Estimate.of(fmean(p["true"] for s, p in kept if s == seed) for seed in seeds)
    assert true is not None
    return Point(
        data,
        chain,
        fmean(p["gain"] for _, p in kept),
        fmean(p["error"] or 0.0 for _, p in kept),
        true,
        2 * sum(p["chosen"] for _, p in kept) >= len(kept),
    )


def draw(found: Sequence[Point]) -> Drawing:
    """Promised against true gains: a colour for each collection of data, a marker for each chain,
    filled where auto takes it. On white, so that it can be read on any page."""
    figure = canvas.figure_of(4.6)
    ax = figure.subplots()
    groups = list(dict.fromkeys(_group(point.data) for point in found))
    every = [100 * gain for point in found for gain in (point.promised, point.true.mean, 0.0)]
    room = 0.06 * (max(every) - min(every)) + 0.5
    ends = min(every) - room, max(every) + room
    ax.plot(ends, ends, color=canvas.INKS["faint"], linewidth=1, zorder=1)
    for line in (ax.axhline, ax.axvline):
        line(0, color=canvas.INKS["faint"], linewidth=0.6, linestyle=":", zorder=1)
    for point in found:
        colour = canvas.INKS[canvas.CYCLE[groups.index(_group(point.data)) % len(canvas.CYCLE)]]
        ax.errorbar(
            100 * point.promised,
            100 * point.true.mean,
            xerr=100 * point.error,
            yerr=100 * (point.true.se or 0.0),
            color=colour,
            marker=CHAINS[point.chain],
            markerfacecolor=colour if point.chosen else "white",
            markersize=6,
            elinewidth=0.9,
        )
    for text, place, side, up in _names(found, ends):
        ax.annotate(
            text,
            place,
            xytext=(8 * side, 8 * up),
            textcoords="offset points",
            fontsize=canvas.TEXT - 1,
            color=canvas.INKS["ink"],
            ha="left" if side > 0 else "right",
            va="center",
            parse_math=False,
        )
    for number, group in enumerate(groups):
        ax.plot([], [], "o", color=canvas.INKS[canvas.CYCLE[number % 6]], label=group)
    for chain, marker in CHAINS.items():
        if any(point.chain == chain for point in found):
            ink = canvas.INKS["ink"]
            ax.plot([], [], marker, label=chain, color=ink, markerfacecolor="white")
    ax.plot([], [], "o", color=canvas.INKS["ink"], label="filled: used by auto")
    ax.set_xlim(*ends)
    ax.set_ylim(*ends)
    ax.set_xlabel("promised by rehearsal: gain over the plain model, points")
    ax.set_ylabel("what happened at unseen sites, points")
    canvas.plain(ax, "")
    canvas.legend(figure, ax, columns=3)
    return Drawing(figure)


def _names(
    found: Sequence[Point], ends: tuple[float, float]
) -> Iterator[tuple[str, tuple[float, float], int, int]]:
    """Names of what auto gains much by, to the right (1) or left (-1) of their points, above (1) or
    below (-1) them; where there is no room on any side, there is none."""
    unit = (ends[1] - ends[0]) / 100  # boxes in percent of an axis: letters are 1.8 wide, 5 high
    places = {(100 * point.promised, 100 * point.true.mean): point for point in found}
    taken: list[tuple[float, float, float]] = []
    for (x, y), point in sorted(places.items(), key=lambda item: -item[0][1]):
        if not point.chosen or max(abs(x), abs(y)) < 100 * FAR:
            continue
        text = point.data.partition(": ")[2] or point.data
        marks = [
            (other - unit, other + unit, high) for other, high in places if (other, high) != (x, y)
        ]
        for side, up in ((1, -1), (-1, 1), (1, 1), (-1, -1)):
            left = x + unit * (3 if side > 0 else -3 - 1.8 * len(text))
            box = left, left + unit * 1.8 * len(text), y + up * 3 * unit
            free = all(_apart(box, other, 5 * unit) for other in taken)
            if free and left > ends[0] and all(_apart(box, mark, 3 * unit) for mark in marks):
                taken.append(box)
                yield text, (x, y), side, up
                break


def _apart(a: tuple[float, float, float], b: tuple[float, float, float], height: float) -> bool:
    return a[1] < b[0] or b[1] < a[0] or abs(a[2] - b[2]) >= height


def _group(data: str) -> str:
    return data.partition(": ")[0]


def spearman(found: Sequence[Point]) -> float | None:
    """Rank correlation of promised and true gains over chains and data sets."""
    if len(found) < 3:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr([p.promised for p in found], [p.true.mean for p in found]).statistic)


def inside(results: Sequence[Row]) -> tuple[float, float, float]:
    """Shares of what lies where it was expected in nine cases of ten: mean gains of a run's unseen
    domains and gains of single ones in their intervals, accuracies there by auto above the floor.
    """
    kept = [p for result in results for p in mainly(result) if p["low"] is not None]
    means = fmean(p["low"] <= p["true"] <= p["high"] for p in kept)
    domains = sum(p["inside"] * p["domains"] for p in kept) / sum(p["domains"] for p in kept)
    return means, domains, fmean(right for result in results for right in _as_expected(result))


def _as_expected(result: Row) -> Iterator[bool]:
    """Of each unseen domain, whether auto's accuracy is above the floor."""
    (auto,) = (p for p in result["promises"] if (p["chain"], p["n"]) == ("auto", result["n"]))
    floor = auto["floor"] or 0.0
    for row in result["rows"]:
        if (row["method"], row["n"]) == ("auto", result["n"]) and row["top1"] is not None:
            yield row["top1"] >= floor


def table(results: Sequence[Row]) -> Grid:
    """A row for each data set: plain, the best single method, auto, the highest ceiling."""
    compared = ("Plain", "Best single method", "Auto", "Auto − plain", "Auto − best")
    header = ("Data", "Images", *compared, "Told the truth", "Gap closed, %")
    rows = (_cells(name, found) for name, found in by_data(results).items())
    return Grid(header, tuple(tuple(cells) for cells in rows))


def _cells(name: str, found: Sequence[Row]) -> Iterator[Cell]:
    summary = unseen.summarised(found)
    best, ceiling = _best(summary, "method"), _best(summary, "ceiling")
    auto, plain = (line_of(summary, key) for key in (AUTO, ERM))
    yield Cell(name)
    yield Cell(f"{found[0]['n']}")
    yield accuracy(plain.average)
    yield Cell(DASH if best is None else f"{in_percent(best.average)} ({best.key.label})")
    yield accuracy(auto.average)
    yield difference(auto.gain)
    less = None if best is None else _mean(auto) - _mean(best)
    yield Cell(DASH if less is None else signed(less), less)
    yield accuracy(None if ceiling is None else ceiling.average)
    yield accuracy(auto.gap_closed)


def _best(summary: Comparison, kind: str) -> Line | None:
    """The one of the highest mean, apart from plain and auto."""
    able = [one for one in summary.lines if one.key.kind == kind and one.key not in (ERM, AUTO)]
    return max((one for one in able if one.average), key=_mean, default=None)


def _mean(line: Line) -> float:
    assert line.average is not None, "of what was scored on unseen domains"
    return line.average.mean


def line_of(summary: Comparison, key: Key) -> Line:
    found = summary.row(key)
    assert found is not None and found.average is not None, f"no scores of {key.label}"
    return found


def over_images(results: Sequence[Row]) -> Grid:
    """What auto gains over plain with each number of images: a row for each data set."""
    found = curves.by_data(results)
    sizes = sorted({point["n"] for points in found.values() for point in points})
    rows = []
    for name, measured in found.items():
        gains = {point["n"]: curves.gain_of(point) for point in measured}
        rows.append((Cell(name), *(difference(gains.get(n)) for n in sizes)))
    return Grid(("Auto − plain, with images", *map(str, sizes)), tuple(rows))


def said(results: Sequence[Row], found: Sequence[Point]) -> Iterator[str]:
    """What follows from it, in lines."""
    rank = spearman(found)
    shown = DASH if rank is None else f"{rank:.2f}"
    yield (
        f"Rank correlation (Spearman) of promised and true gains over {len(found)} pairs of data "
        f"set and chain: {shown}."
    )
    means, domains, accuracies = inside(results)
    yield (
        f"Where expected in nine cases of ten: {percent(means)} % of the mean gains, "
        f"{percent(domains)} % of the gains at single domains, {percent(accuracies)} % of auto's "
        f"accuracies there."
    )
    worst = [(point, name) for name, ps in curves.by_data(results).items() for point in ps]
    point, name = min(worst, key=lambda one: one[0]["gain"])
    yield (
        f"Auto less plain at worst, over data sets and numbers of images: "
        f"{in_points(curves.gain_of(point))} ({name}, {point['n']})."
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="shift.json, rehearsed.json, …")
    picture = ROOT / "docs" / "images" / "promises.png"
    parser.add_argument("--out", type=Path, default=picture, help="picture: .png, .svg or .pdf")
    parser.add_argument("--curve", type=Path, help="picture of auto's gain over images, likewise")
    asked = parser.parse_args()
    for path in filter(None, (asked.out, asked.curve)):
        if path.suffix[1:] not in get_args(Format):
            parser.error(f"{path.name}: .{', .'.join(get_args(Format))}")
    return asked


def main() -> None:
    asked = parsed()
    results = read(asked.files)
    found = points(results)
    kind: Any = asked.out.suffix[1:]
    write_figure(draw(found), asked.out, kind, dpi=150)
    for line in said(results, found):
        print(line)
    print(f"\n{table(results).to_markdown()}")
    print("Accuracy on unseen domains in percent, mean ± standard error over seeds.\n")
    print(over_images(results).to_markdown())
    print(f"picture: {asked.out}")
    if asked.curve is not None:
        kind = asked.curve.suffix[1:]
        write_figure(curves.draw_panels(curves.by_data(results)), asked.curve, kind, dpi=150)
        print(f"picture: {asked.curve}")


if __name__ == "__main__":
    main()
