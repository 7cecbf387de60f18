"""Accuracy on unseen domains: by method, and domain by domain from the baseline to a contender.

Both are rows of marks. Marks, unlike bars, need no axis that starts at 0, so that accuracies near
each other can be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from acclimate.core.text import count
from acclimate.records.metrics import METRICS, TOP_1, measured
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, MOST_DOMAINS, TEXT, Drawing, Illustration
from acclimate.results.comparison import Difference
from acclimate.results.material import Report
from acclimate.results.statistics import in_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def by_method(report: Report) -> Iterable[Illustration]:
    """The mean over all unseen domains, a row per method; not of an ablation, which has a curve."""
    lines = [line for line in report.overall.lines if line.average is not None]
    if report.axis is not None or not lines:
        return
    names = [fill(line.key.label, 22) for line in lines]
    height, metric = 0.2 + 0.14 * max(name.count("\n") for name in names), METRICS[report.metric]
    figure, ax = _axes_of_rows(names, height, report.metric)
    colours, titles = canvas.colours_of(report), {}
    for place, line in enumerate(lines):
        assert line.average is not None
        colour, score = colours[line.key.algorithm], in_percent(line.average, metric)
        fillstyle: Any = "full" if line.key.kind == "method" else "none"
        mean, error = (metric.scale * (x or 0.0) for x in (line.average.mean, line.average.se))
        gid = f"mark-{place}"
        ax.plot(mean, place, "o", color=colour, fillstyle=fillstyle, markersize=5, gid=gid)
        if error:
            ax.errorbar(mean, place, xerr=error, color=colour, lw=1, capsize=2)
        right = 1.02, place  # of the axes, so that no whisker is written over
        across = ax.get_yaxis_transform()
        ax.text(*right, score, transform=across, va="center", fontsize=TEXT, color=INKS["ink"])
        domains = count(line.domains, "domain")
        titles[gid] = f"{line.key.label}: {score}{metric.unit} on {domains}"
    what = "accuracy" if report.metric == TOP_1 else report.metric
    hollow = any(line.key.kind != "method" for line in lines)
    yield Illustration(
        "Unseen domains",
        f"Each mark is the mean {what} over the unseen domains, "
        f"farther {'right' if metric.sign > 0 else 'left'} is better; whiskers are one standard "
        "error over trials; the axis does not start at 0."
        + " Hollow: controls and ceilings."
        * hollow,
        Drawing(figure, titles),
    )


def gains(report: Report) -> Iterable[Illustration]:
    """Domain by domain, from the baseline to the contender that gained most; not of an ablation,
    where one variant of many would be picked by its name."""
    contenders = [row for row in report.overall.contenders if row.gain is not None]
    if report.axis is not None or not contenders:
        return
    sign = METRICS[report.metric].sign
    best = max(contenders, key=lambda row: sign * row.gain.mean if row.gain else 0.0).difference
    assert best is not None
    line, base = best.line.label, best.against.label
    hidden = len(best.changes) - MOST_DOMAINS
    some = f" The {hidden} domains in the middle are left out." if hidden > 0 else ""
    if len(contenders) > 1:
        some += (
            f" Of {len(contenders)} methods {line} did best, on these very domains, and so "
            "looks better here than it is."
        )
    yield Illustration(
        "Domain by domain",
        f"Each row is an unseen domain, from {base} (ring) to {line} (diamond), averaged over "
        f"seeds; the largest gain is on top, and a diamond {'left' if sign > 0 else 'right'} of "
        f"its ring has lost.{some}",
        draw_gains(best, canvas.colours_of(report)),
    )


def draw_gains(difference: Difference, colours: Mapping[str, str]) -> Drawing:
    """A row per unseen domain from the baseline to the contender, the largest gain on top."""
    metric = METRICS[difference.metric]
    changes = sorted(
        difference.changes.items(), key=lambda item: (metric.sign * (item[1][0] - item[1][1]), item)
    )
    if len(changes) > MOST_DOMAINS:  # both ends matter: the losers must not fall off the page
        changes = changes[: MOST_DOMAINS // 2] + changes[-MOST_DOMAINS // 2 :]
    figure, ax = _axes_of_rows([domain for domain, _ in changes], 0.21, difference.metric)
    first, last = (colours[key.algorithm] for key in (difference.against, difference.line))
    # The ring is on top and wider, so that it shows where both are the same.
    ring: dict[str, Any] = {"color": first, "markersize": 8, "fillstyle": "none", "zorder": 4}
    diamond: dict[str, Any] = {"color": last, "markersize": 4.5, "zorder": 3}
    titles = {}
    for place, (domain, (before, after)) in enumerate(changes):
        gid, style = f"mark-{place}", "-" if metric.sign * (after - before) >= 0 else ":"
        ends = [metric.scale * before, metric.scale * after]
        ax.plot(ends, [place] * 2, style, color=INKS["faint"], linewidth=2, zorder=1)
        ax.plot(ends[1], place, "D", **diamond, gid=gid)
        ax.plot(ends[0], place, "o", **ring)
        titles[gid] = f"{domain}: {metric.write(before)} to {metric.write(after)}{metric.unit}"
    ax.plot([], [], "o", **ring, label=difference.against.label)
    ax.plot([], [], "D", **diamond, label=difference.line.label)
    canvas.legend(figure, ax)
    return Drawing(figure, titles)


def _axes_of_rows(names: Sequence[str], height: float, metric: str) -> tuple[Figure, Axes]:
    """A figure with a row for each name, on which values of the metric are marked."""
    figure = canvas.figure_of(height * len(names) + 1.0)
    ax = figure.subplots()
    canvas.name_rows(ax, names)
    ax.set_xlabel(measured(metric))
    canvas.plain(ax, "both")
    return figure, ax
