"""Accuracy on unseen domains: by method, by domain, and from the baseline to a contender.

All three are rows of marks with whiskers. Marks, unlike bars, need no axis that starts at 0, so
that accuracies near each other can be told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from acclimate.core.text import count, percent
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, MOST_DOMAINS, TEXT, Drawing, Illustration, of_data
from acclimate.results.comparison import Difference, Row
from acclimate.results.material import Report
from acclimate.results.statistics import Estimate, in_percent

MOST_METHODS = 8
_FILLS = ("full", "none", "left", "bottom", "right", "top")
_WHISKERS = "whiskers are one standard error over trials; the axis does not start at 0."


class Board:
    """A figure with a row for each name, on which accuracies are marked."""

    def __init__(self, names: Sequence[str], step: float) -> None:
        self.figure = canvas.figure_of(step * len(names) + 1.0)
        self.ax = self.figure.subplots()
        self.titles: dict[str, str] = {}
        canvas.name_rows(self.ax, names)
        self.ax.set_xlabel("accuracy, %")
        canvas.plain(self.ax, "both")

    def mark(self, place: float, value: Estimate, title: str, **look: Any) -> None:
        """A mark with its whisker; `title` is its tooltip, `look` is matplotlib's."""
        gid = f"mark-{len(self.titles)}"
        look = {"markersize": 5.0, "zorder": 3, "gid": gid, **look}
        self.ax.plot(100 * value.mean, place, linestyle="", **look)
        if value.se:
            error, colour = 100 * value.se, look["color"]
            self.ax.errorbar(100 * value.mean, place, xerr=error, color=colour, lw=1, capsize=2)
        self.titles[gid] = title

    def entry(self, label: str, **look: Any) -> None:
        """An entry of the legend."""
        self.ax.plot([], [], linestyle="", label=label, **look)

    def drawing(self) -> Drawing:
        canvas.legend(self.figure, self.ax)
        return Drawing(self.figure, self.titles)


def by_method(report: Report) -> Iterable[Illustration]:
    """The mean over all unseen domains, a row per method; not of an ablation, which has a curve."""
    lines = [line for line in report.overall.lines if line.average is not None]
    if report.axis is not None or not lines:
        return
    colours = canvas.colours_of(report)
    names = [fill(line.key.label, 22) for line in lines]
    board = Board(names, 0.2 + 0.14 * max(name.count("\n") for name in names))
    for place, line in enumerate(lines):
        assert line.average is not None
        said, hollow = in_percent(line.average), line.key.kind != "method"
        look = {"color": colours[line.key.algorithm], "fillstyle": "none" if hollow else "full"}
        title = f"{line.key.label}: {said} % on {count(line.domains, 'domain')}"
        board.mark(place, line.average, title, marker="o", **look)
        right = 1.02, place  # of the axes, so that no whisker is written over
        across = board.ax.get_yaxis_transform()
        board.ax.text(*right, said, transform=across, va="center", fontsize=TEXT, color=INKS["ink"])
    kinds = {line.key.kind for line in lines}
    hollow_are = " Hollow: controls and ceilings." if kinds > {"method"} else ""
    yield Illustration(
        "Unseen domains",
        f"Each mark is the mean accuracy over the unseen domains, farther right is better; "
        f"{_WHISKERS}{hollow_are}",
        board.drawing(),
    )


def by_domain(report: Report) -> Iterable[Illustration]:
    """Each unseen domain of a sweep, data set by data set; runs on their own have `gains`."""
    if not report.rule or report.axis is not None:
        return
    for results in report.tables:
        rows = [row for row in results.rows if not row.badge]
        rows.sort(key=lambda row: row.key != results.baseline)
        columns = [name for name in results.columns if any(row.cells.get(name) for row in rows)]
        if not columns:
            continue
        left_out = {
            "domains": len(columns) - MOST_DOMAINS,
            "methods": len(rows) - MOST_METHODS,
        }
        some = "".join(f" {n} further {of} are left out." for of, n in left_out.items() if n > 0)
        yield Illustration(
            "Accuracy by domain",
            f"{of_data(results.dataset, len(report.tables))}Mean accuracy on each domain while "
            f"it is unseen; {_WHISKERS}{some}",
            _by_domain(report, rows[:MOST_METHODS], columns[:MOST_DOMAINS]),
        )


def _by_domain(report: Report, rows: Sequence[Row], columns: Sequence[str]) -> Drawing:
    many = len(columns) > 16  # then marks share a line, lest the figure fill pages
    board = Board(columns, 0.22 if many else 0.12 * len(rows) + 0.12)
    offsets = canvas.spread(len(rows), 0.0 if many else 0.8 / len(rows))
    colours, used = canvas.colours_of(report), Counter[str]()
    markers = canvas.markers_of(colours)
    for row, offset in zip(rows, offsets, strict=True):
        name = row.key.algorithm
        # Methods of one algorithm share its colour and marker, and differ in how it is filled.
        look = {"color": colours[name], "marker": markers[name]}
        look["fillstyle"] = _FILLS[used[name] % len(_FILLS)]
        used[name] += 1
        for place, column in enumerate(columns):
            value = row.cells.get(column)
            if value is not None:
                title = f"{column}, {row.key.label}: {in_percent(value)} %"
                board.mark(place + offset, value, title, **look)
        board.entry(row.key.label, **look)
    return board.drawing()


def gains(report: Report) -> Iterable[Illustration]:
    """Domain by domain, from the baseline to the contender that gained most; not of an ablation,
    where one variant of many would be picked by its name."""
    found = [row.difference for row in report.overall.contenders]
    differences = [(one.gain.mean, one) for one in found if one is not None and one.gain]
    if report.axis is not None or not differences:
        return
    _, best = max(differences, key=lambda pair: pair[0])
    line, base = best.line.label, best.against.label
    hidden = len(best.changes) - MOST_DOMAINS
    some = f" The {hidden} domains in the middle are left out." if hidden > 0 else ""
    if len(differences) > 1:
        some += (
            f" Of {len(differences)} methods {line} did best, on these very domains, and so "
            "looks better here than it is."
        )
    yield Illustration(
        "Domain by domain",
        f"Each row is an unseen domain, from {base} (ring) to {line} (diamond), averaged over "
        f"seeds; the largest gain is on top, and a diamond left of its ring has lost.{some}",
        draw_gains(best, canvas.colours_of(report)),
    )


def draw_gains(difference: Difference, colours: dict[str, str]) -> Drawing:
    """A row per unseen domain from the baseline to the contender, the largest gain on top."""
    changes = sorted(difference.changes, key=lambda c: (c.before - c.after, c.domain))
    if len(changes) > MOST_DOMAINS:  # both ends matter: the losers must not fall off the page
        changes = changes[: MOST_DOMAINS // 2] + changes[-MOST_DOMAINS // 2 :]
    board = Board([change.domain for change in changes], 0.21)
    first, last = (colours[key.algorithm] for key in (difference.against, difference.line))
    # The ring is on top and wider, so that it shows where both are the same.
    ring: dict[str, Any] = {"marker": "o", "color": first, "markersize": 8, "fillstyle": "none"}
    diamond: dict[str, Any] = {"marker": "D", "color": last, "markersize": 4.5}
    for place, change in enumerate(changes):
        title = f"{change.domain}: {percent(change.before)} to {percent(change.after)} %"
        style = "-" if change.after >= change.before else ":"
        ends = [100 * change.before, 100 * change.after]
        board.ax.plot(ends, [place] * 2, style, color=INKS["faint"], linewidth=2, zorder=1)
        board.mark(place, Estimate(change.after, None, 1), title, **diamond)
        board.ax.plot(ends[0], place, linestyle="", zorder=4, **ring)
    board.entry(difference.against.label, **ring)
    board.entry(difference.line.label, **diamond)
    return board.drawing()
