"""Which classes are taken for which: a square for each pair of label and prediction."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from acclimate.core.text import percent, short
from acclimate.records.metrics import METRICS
from acclimate.records.predictions import Predictions
from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, Drawing, Illustration, of_data
from acclimate.results.material import Report

MOST_CLASSES = 30


def illustrate(report: Report) -> Iterable[Illustration]:
    for one in report.by_class:
        of = of_data(one.dataset, len(report.runs_by_dataset))
        where = f"{of}{one.label} on {one.where}, first trial"
        yield illustration_of(one.rows, f"{where}: a row")


def illustration_of(rows: Predictions, begin: str = "A row") -> Illustration:
    """The largest classes of `rows`; `begin` is how the caption begins."""
    counts = METRICS["confusion"].of(rows)
    shown = np.sort(np.argsort(-counts.sum(1), kind="stable")[:MOST_CLASSES])
    some = (
        f" The {len(shown)} largest of {len(counts)} classes." if len(shown) < len(counts) else ""
    )
    caption = (
        f"{begin} is a class, and its squares are what it is predicted as; the darker, the more of "
        f"its rows. Blue is right, orange is wrong.{some}"
    )
    return Illustration("Classes", caption, draw(counts, rows.classes, shown))


def draw(counts: np.ndarray, classes: tuple[str, ...], shown: np.ndarray) -> Drawing:
    """The `shown` classes of counts [C labels, C predictions], as shares of all rows of a class."""
    names = [short(classes[one], 24) for one in shown]
    figure = canvas.figure_of(0.17 * len(names) + 1.9)
    ax, titles = figure.subplots(), dict[str, str]()
    rows = counts.sum(1)
    for y, x in np.argwhere(counts[np.ix_(shown, shown)]):
        label, predicted = shown[y], shown[x]
        share, gid = counts[label, predicted] / rows[label], f"pair-{y}-{x}"
        look = {"color": INKS["blue" if y == x else "orange"], "alpha": 0.1 + 0.9 * share}
        ax.barh(y, 1, height=1, left=x - 0.5, linewidth=0, gid=gid, **look)
        titles[gid] = f"{names[y]} as {names[x]}: {percent(share)} % of {rows[label]}"
    canvas.name_rows(ax, names)
    ax.set_xticks(range(len(names)), names, rotation=90, parse_math=False)
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_xlabel("prediction")
    ax.set_ylabel("label")
    canvas.plain(ax, "")
    return Drawing(figure, titles)
