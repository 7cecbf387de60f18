"""What all figures share: inks, sizes, axes, legends, and how a figure becomes SVG, PDF or PNG.

Inks stand for page colours: `svg` turns them into CSS variables, so that a page in dark mode can
brighten them; in files they are what they say, on white. All text is at least `TEXT` points, and a
page never draws a figure smaller than it is, so that a narrow window can be read too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acclimate.config import AlgorithmName
from acclimate.core import plots
from acclimate.core.files import write_atomically
from acclimate.core.text import short
from acclimate.records.folder import check_out
from acclimate.results.material import Report

if TYPE_CHECKING:  # matplotlib takes most of a second, which only drawing should pay
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INKS, CYCLE, MARKERS = plots.INKS, plots.CYCLE, plots.MARKERS
WIDTH = 4.8  # inches, for all figures: a page scales them alike, and a telephone shows them whole
TEXT = 9.0
MOST_DOMAINS = 60


@dataclass(frozen=True)
class Drawing:
    """A figure with its tooltips: the id of an artist (its `gid`) -> text."""

    figure: Figure
    titles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Illustration:
    """A figure as it is shown. Figures with one heading belong together; `name`, which the table
    of figures gives, is its file's name and the start of its ids."""

    heading: str
    caption: str
    drawing: Drawing
    name: str = ""


def of_data(dataset: str, among: int) -> str:
    """The start of a caption, where there are several data sets."""
    return f"Data set {dataset}. " if among > 1 and dataset else ""


def figure_of(height: float, width: float = WIDTH) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colours_of(report: Report) -> dict[str, str]:
    """A colour per algorithm, the same in every figure: the baseline's first, then its adaptive
    version's."""
    tables = [one for by_rule in report.results.values() for one in by_rule]
    names = {row.key.algorithm for one in tables for row in one.rows}
    names |= {run.algorithm for run in report.runs if run.problem is None}
    baseline = report.overall.baseline.algorithm
    second = AlgorithmName.of(baseline).adaptive_version
    others = sorted(names - {baseline, ""}, key=lambda name: (name != second, name))
    return {name: INKS[CYCLE[i % len(CYCLE)]] for i, name in enumerate([baseline, *others])}


def plain(ax: Axes, grid: str) -> None:
    """Few lines, all text in ink; `grid` is "x", "y", "both" or ""."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INKS["faint"])
    ax.tick_params(which="both", color=INKS["faint"], labelcolor=INKS["ink"])
    ax.tick_params(labelsize=TEXT, length=2)
    for axis in (ax.xaxis, ax.yaxis):
        for text in (axis.label, axis.offsetText):
            text.set(color=INKS["ink"], fontsize=TEXT)
    if grid:
        ax.grid(axis=grid, color=INKS["faint"], alpha=0.25, linewidth=0.7)  # type: ignore[arg-type]
    ax.set_axisbelow(True)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """A row for each name from the top, whose places are 0, 1, 2 …"""
    lines = ["\n".join(short(line, 24) for line in name.split("\n")) for name in names]
    ax.set_yticks(range(len(names)), lines, parse_math=False)
    ax.set_ylim(len(names) - 0.4, -0.6)


def headline(ax: Axes, text: str) -> None:
    # A folder may well be called "$5"; that is no formula.
    ax.set_title(text, fontsize=TEXT + 0.5, loc="left", color=INKS["ink"], parse_math=False)


def legend(figure: Figure, ax: Axes, *, columns: int = 4) -> None:
    # Below the axes: inside, it would cover points in one data set or another.
    handles, labels = ax.get_legend_handles_labels()
    if not labels:
        return
    # About 60 letters fit in a line; each entry has a mark and a gap as wide as 5.
    most = max(map(len, labels)) + 5
    fit = max(1, min(columns, 60 // most))
    lines = -(-len(labels) // fit)
    # Figures have room for two lines; more of them must not take it from the axes.
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, lines - 2))
    style: dict[str, Any] = {"fontsize": TEXT, "labelcolor": INKS["ink"], "columnspacing": 1.2}
    ncols = -(-len(labels) // lines)
    drawn = figure.legend(
        handles, labels, loc="outside lower center", ncols=ncols, frameon=False, **style
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)


def svg(drawing: Drawing, prefix: str) -> str:
    """An `<svg>` element to put into a page: ids start with `prefix`, inks are CSS variables."""
    import matplotlib as mpl

    text = io.StringIO()
    # A fixed salt and no date: the same runs give the same page.
    with mpl.rc_context({"svg.hashsalt": prefix, "svg.fonttype": "none"}):
        drawing.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r' xmlns(:xlink)?="[^"]*"', "", body).replace("xlink:href", "href")
    for name, colour in INKS.items():
        body = body.replace(colour, f"var(--{name})")
    for gid, title in drawing.titles.items():
        opening = f'<g id="{gid}">'
        marked = f'<g id="{gid}" class="mark">\n<title>{escape(title)}</title>'
        body = body.replace(opening, marked, 1)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)


Format = Literal["pdf", "svg", "png"]


def write_figure(drawing: Drawing, path: Path, kind: Format, *, dpi: int = 300) -> None:
    """One file: text stays text in PDF and SVG; the same figure gives the same file."""
    import matplotlib as mpl

    check_out(path, "figure")
    dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    with mpl.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": path.stem}):
        write_atomically(
            path,
            lambda file: drawing.figure.savefig(
                file, format=kind, dpi=dpi, bbox_inches="tight", metadata=dates[kind]
            ),
        )
