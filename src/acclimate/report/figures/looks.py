"""How the images of domains look: a box of each domain's values, measure by measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from acclimate.report.figures import canvas
from acclimate.report.figures.canvas import INKS, Drawing


def draw(values: Mapping[str, Mapping[str, Sequence[float]]]) -> Drawing:
    """By measure and domain, which are the same for each measure: a panel per measure, a row per
    domain. A box has the middle half of the images, its whiskers 5 to 95 % of them."""
    names = list(next(iter(values.values())))
    figure = canvas.figure_of((0.19 * len(names) + 0.65) * len(values))
    axes = figure.subplots(len(values), squeeze=False)[:, 0]
    line = {"color": INKS["ink"], "linewidth": 0.9}
    for ax, (measure, by_domain) in zip(axes, values.items(), strict=True):
        ax.boxplot(
            [np.asarray(one) for one in by_domain.values()],
            positions=range(len(names)),
            orientation="horizontal",
            widths=0.6,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": INKS["sky"], **line},
            medianprops={"color": INKS["orange"], "linewidth": 1.6},
            whiskerprops=line,
            capprops=line,
        )
        canvas.name_rows(ax, names)
        ax.set_xlabel(measure)
        canvas.plain(ax, "x")
    return Drawing(figure)
