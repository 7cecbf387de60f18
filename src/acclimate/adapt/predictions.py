"""Predicted classes of image files, as a table: one line per file, also for what cannot be read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from acclimate.adapt.changes import Changes
from acclimate.adapt.classifier import Adapted, nothing_readable
from acclimate.core.plain_text import csv_text
from acclimate.core.watch import Watch, unwatched
from acclimate.data.quarantine import Quarantine


@dataclass(frozen=True, eq=False)
class Predictions:
    paths: Sequence[Path]
    classes: tuple[str, ...]
    found: Mapping[Path, np.ndarray]  # probabilities of the classes: [C]
    reasons: Mapping[str, str]  # why the others could not be read
    changes: Changes | None = None  # by adaptation, where there was one

    def __len__(self) -> int:
        """Images that were classified."""
        return len(self.found)

    def counts(self) -> dict[str, int]:
        """Images of each predicted class, by name; classes without any are left out."""
        best = Counter(self.classes[int(row.argmax())] for row in self.found.values())
        return dict(sorted(best.items()))

    def csv(self, *, every_class: bool) -> str:
        """A header line, then one line per image; with `every_class` a column for each class."""
        extra = self.classes if every_class else ()
        header = ["image", "label", "confidence", "problem", *extra]
        return csv_text([header, *(self._line(path, every_class) for path in self.paths)])

    def _line(self, path: Path, every_class: bool) -> list[str]:
        # "./=x.jpg" is the file "=x.jpg", and no formula.
        name = f"./{path}" if str(path).startswith(("=", "+", "-", "@")) else str(path)
        row = self.found.get(path)
        if row is None:
            blank = [""] * len(self.classes) if every_class else []
            return [name, "", "", self.reasons[str(path)], *blank]
        best = int(row.argmax())
        numbers = [f"{value:.6f}" for value in row] if every_class else []
        return [name, self.classes[best], f"{row[best]:.6f}", "", *numbers]


def predictions(
    site: Adapted,
    paths: Sequence[Path],
    quarantine: Quarantine,
    watch: Watch = unwatched,
) -> Predictions:
    """Raises where not one image can be read."""
    found: dict[Path, np.ndarray] = {}
    before: dict[Path, int] = {}
    for path, shares, plain in site.predict_files(paths, quarantine, watch):
        found[path], before[path] = shares, plain
    if not found:
        raise nothing_readable(quarantine)
    changes = None
    if site.method != "none":
        now = torch.tensor([int(shares.argmax()) for shares in found.values()])
        changes = Changes.between(torch.tensor(list(before.values())), now, site.classes)
    return Predictions(paths, site.classes, found, dict(quarantine.entries), changes)
