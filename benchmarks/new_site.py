"""The picture of the README: what happens at a new site.

    python benchmarks/new_site.py --out docs/images/new-site.png       # a minute on one core

Scikit-learn's digits, seen by sites that differ in class frequencies and in light. A model learns
from thirteen sites and adapts to one it has not seen.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure, SubFigure
from sklearn.datasets import load_digits

from acclimate import AdaptiveClassifier
from acclimate.core.files import write_atomically

SITES, ROWS, SHOWN = 14, 400, 12
RIGHT, WRONG = "#0072b2", "#d55e00"


def draw_sites(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images [n, 64], labels [n] and numbers of sites [n]."""
    digits, rng = load_digits(), np.random.default_rng(seed)
    images, labels = [], []
    for _ in range(SITES):
        frequencies, light = rng.dirichlet(np.full(10, 0.3)), 2 * rng.normal(size=64)
        weights = (frequencies / np.bincount(digits.target))[digits.target]
        rows = rng.choice(len(digits.data), ROWS, p=weights)
        images.append(digits.data[rows] + light + 8 * rng.normal(size=(ROWS, 64)))
        labels.append(digits.target[rows])
    return np.concatenate(images), np.concatenate(labels), np.repeat(np.arange(SITES), ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/new-site.png"))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    images, labels, sites = draw_sites(asked.seed)
    training = sites < SITES - 1
    names = np.array([f"site {site + 1}" for site in sites])
    model = AdaptiveClassifier().fit(images[training], labels[training], names[training])
    new, test = np.flatnonzero(~training)[:200], np.flatnonzero(~training)[200:]
    site = model.adapt(images[new])
    plain, adapted = model.predict(images[test]), site.predict(images[test])
    right = [float(np.mean(guess == labels[test])) for guess in (plain, adapted)]
    print(f"plain {right[0]:.1%}, adapted by {site.method} {right[1]:.1%}")

    matplotlib.rcParams["font.size"] = 9
    figure = Figure(figsize=(9, 3.0), dpi=120)
    columns: Any = figure.subfigures(1, 3, width_ratios=(1.1, 1, 1.9))
    panels: list[SubFigure] = list(columns)
    panels[0].suptitle("1. Train on labelled sites", y=0.97)
    first = np.concatenate([np.flatnonzero(sites == site)[:4] for site in (0, 4, 9)])
    _draw(panels[0], images, first, 4, [str(label) for label in labels[first]])
    panels[1].suptitle("2. A new site: images only", y=0.97)
    _draw(panels[1], images, new[:SHOWN], 4, ["?"] * SHOWN)
    panels[2].suptitle(
        f"3. Plain model {right[0]:.0%} right → adapted {right[1]:.0%} right", y=0.97
    )
    before, after = np.array(plain), np.array(adapted)
    differ, same = np.flatnonzero(before != after)[:8], np.flatnonzero(before == after)[:10]
    some = np.sort(np.concatenate([differ, same]))
    said = [
        f"{a} → {b}" if a != b else f"{a}" for a, b in zip(before[some], after[some], strict=True)
    ]
    _draw(panels[2], images, test[some], 6, said, after[some] == labels[test[some]])
    write_atomically(asked.out, lambda path: figure.savefig(path, format="png"))


def _draw(
    panel: SubFigure,
    images: np.ndarray,
    rows: np.ndarray,
    columns: int,
    titles: Sequence[str],
    right: np.ndarray | None = None,
) -> None:
    """Thumbnails in a grid with a line above each, in colour where it is known who is `right`."""
    axes = panel.subplots(-(-len(rows) // columns), columns)
    panel.subplots_adjust(left=0.04, right=0.96, top=0.84, bottom=0.02, hspace=0.45, wspace=0.15)
    for place, axis in enumerate(axes.flat):
        axis.axis("off")
        axis.imshow(images[rows[place]].reshape(8, 8), cmap="gray_r")
        color = "black" if right is None else RIGHT if right[place] else WRONG
        mark = "" if right is None or right[place] else " ✗"
        axis.set_title(titles[place] + mark, fontsize=8, pad=2, color=color)


if __name__ == "__main__":
    main()
