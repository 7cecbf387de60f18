"""Predicted classes of image files, as a table: one line per file, also for what cannot be read."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate.adapt.classifier import Adapted, nothing_readable
from acclimate.core.watch import Watch, unwatched
from acclimate.data.quarantine import Quarantine


@dataclass(frozen=True, eq=False)
class Predictions:
    paths: Sequence[Path]
    classes: tuple[str, ...]
    found: Mapping[Path, np.ndarray]  # probabilities of the classes: [C]
    reasons: Mapping[str, str]  # why the others could not be read

    def __len__(self) -> int:
        """Images that were classified."""
        return len(self.found)

    def counts(self) -> dict[str, int]:
        """Images of each predicted class, by name; classes without any are left out."""
        best = Counter(self.classes[int(row.argmax())] for row in self.found.values())
        return dict(sorted(best.items()))

    def csv(self, *, every_class: bool) -> str:
        """A header line, then one line per image; with `every_class` a column for each class."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        extra = self.classes if every_class else ()
        writer.writerow(["image", "label", "confidence", "problem", *extra])
        for path in self.paths:
            row = self.found.get(path)
            if row is None:
                writer.writerow([path, "", "", self.reasons[str(path)], *("" for _ in extra)])
                continue
            best = int(row.argmax())
            numbers = [f"{value:.6f}" for value in row] if every_class else []
            writer.writerow([path, self.classes[best], f"{row[best]:.6f}", "", *numbers])
        return text.getvalue()


def predictions(
    site: Adapted,
    paths: Sequence[Path],
    quarantine: Quarantine,
    watch: Watch = unwatched,
) -> Predictions:
    """Raises where not one image can be read."""
    found = dict(site.predict_files(paths, quarantine, watch))
    if not found:
        raise nothing_readable(quarantine)
    return Predictions(paths, site.classes, found, dict(quarantine.entries))
