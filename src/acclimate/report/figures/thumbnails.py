"""Images in a grid, numbered, with their files' names."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np

from acclimate.core.text import short
from acclimate.data.images import decode
from acclimate.report.figures.canvas import INKS, TEXT, WIDTH, Drawing, figure_of

COLUMNS, SIDE = 5, 160  # pixels of an image


def draw_thumbnails(paths: Sequence[Path]) -> Drawing:
    lines = max(ceil(len(paths) / COLUMNS), 1)
    figure = figure_of(1.6 * lines, 2 * WIDTH)
    for place, ax in enumerate(figure.subplots(lines, COLUMNS, squeeze=False).flat):
        ax.set_axis_off()
        if place < len(paths):
            image = decode(paths[place], hint=SIDE)
            image.thumbnail((SIDE, SIDE))
            ax.imshow(np.asarray(image))
            name = f"{place + 1}  {short(paths[place].name, 18)}"
            ax.set_title(name, fontsize=TEXT, color=INKS["ink"], parse_math=False)
    return Drawing(figure)
