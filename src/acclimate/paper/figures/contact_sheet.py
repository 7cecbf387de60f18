"""Sample images by class and domain (the paper's Figure 2B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from acclimate.core.errors import ImageError
from acclimate.core.randomness import stream
from acclimate.core.text import short
from acclimate.data.images import decode
from acclimate.data.inspection import label_counts
from acclimate.data.manifest import Manifest
from acclimate.report.figures.canvas import INKS, TEXT, Drawing, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES, DOMAINS = 3, 4  # the paper shows three classes
_SIDE = 96  # pixels of an image on the sheet
_TRIES = 5  # images tried where some cannot be read


@dataclass(frozen=True)
class Sheet:
    """Images [classes][domains], uint8 [side, side, 3]; None where a domain has none to show."""

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    images: tuple[tuple[np.ndarray | None, ...], ...]


def contact_sheet(manifest: Manifest, *, seed: int = 0) -> Sheet:
    """The classes that most domains have, and the domains with most images of them; an image of
    each, at random."""
    counts, names = label_counts(manifest), manifest.all_domains
    spread, sizes = (counts > 0).sum(axis=0), counts.sum(axis=0)
    order = sorted(range(counts.shape[1]), key=lambda c: (-spread[c], -sizes[c], c))
    classes = [c for c in order if sizes[c]][:CLASSES]
    # First those that lack none of the classes.
    fewest, total = counts[:, classes].min(axis=1), counts[:, classes].sum(axis=1)
    ranked = sorted(range(len(names)), key=lambda d: (not fewest[d], -total[d], names[d]))
    domains = [names[d] for d in ranked if total[d]][:DOMAINS]
    images = tuple(tuple(_image(manifest, c, name, seed) for name in domains) for c in classes)
    return Sheet(tuple(manifest.classes[c] for c in classes), tuple(domains), images)


def _image(manifest: Manifest, label: int, domain: str, seed: int) -> np.ndarray | None:
    rows = manifest.rows(domain=domain)
    rows = rows[manifest.label_index[rows] == label]
    for row in stream(seed, "contact sheet", domain, label).permutation(rows)[:_TRIES]:
        try:
            image = decode(manifest.image_source(int(row)), hint=_SIDE)
            return np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))
        except (ImageError, OSError):
            continue
    return None


def draw(sheet: Sheet) -> Drawing:
    """A row per class, a column per domain."""
    rows, columns = len(sheet.classes), len(sheet.domains)
    figure = figure_of(1.25 * max(rows, 1) + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False)
    for line, (name, images) in enumerate(zip(sheet.classes, sheet.images, strict=True)):
        for place, (domain, image) in enumerate(zip(sheet.domains, images, strict=True)):
            ax: Axes = axes[line][place]
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            if image is not None:
                ax.imshow(image, interpolation="nearest")
            words: dict[str, Any] = {"fontsize": TEXT, "color": INKS["ink"], "parse_math": False}
            if line == 0:
                ax.set_title(short(domain, 16), **words)
            if place == 0:
                ax.set_ylabel(short(name, 14), **words)
    return Drawing(figure)
