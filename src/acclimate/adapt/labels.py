"""Labels as they were given: whole numbers stay whole numbers, however classes are named inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.core.errors import DamagedFile
from acclimate.core.files import read_document, write_document
from acclimate.records.folder import LABELS

MOST_BYTES = 1 << 16  # of one label


@dataclass(frozen=True, eq=False)
class Labels:
    """One for each class: [C]. A class is called as its label is written."""

    values: np.ndarray

    @classmethod
    def of(cls, given: Sequence[str] | np.ndarray) -> "Labels":
        """The different ones among `given`, in their order."""
        return cls(np.unique(np.asarray(given)))

    @property
    def names(self) -> list[str]:
        return [str(value) for value in self.values.tolist()]

    def ordered(self, classes: Sequence[str]) -> "Labels":
        """In the order of `classes`."""
        known = {name: place for place, name in enumerate(self.names)}
        return Labels(self.values[[known[name] for name in classes]])

    def places(self, values: np.ndarray) -> list[int]:
        """Where each of `values` stands among these."""
        return [self.values.tolist().index(value) for value in values.tolist()]

    def write(self, folder: Path) -> None:
        """Names need no file: they are the classes."""
        if self.values.dtype.kind in "iufb":
            facts = {"values": self.values.tolist(), "dtype": str(self.values.dtype)}
            write_document(folder / LABELS, facts)

    @classmethod
    def read(cls, folder: Path, classes: Sequence[str]) -> "Labels | None":
        """Those of `classes` that a file has; None where they are the names."""
        path = folder / LABELS
        if not path.exists():
            return None
        facts: dict[str, Any] = read_document(path)
        try:
            return cls.parsed(facts["values"], facts["dtype"], classes)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DamagedFile(path) from None

    @classmethod
    def parsed(cls, values: Any, kind: Any, classes: Sequence[str]) -> "Labels":
        """From what a file says; a ValueError where these are no labels of `classes`."""
        dtype = np.dtype(kind)
        if dtype.kind not in "iufbUO" or dtype.itemsize > MOST_BYTES:
            raise ValueError("no labels")
        labels = cls(np.asarray(values, dtype=dtype))
        if labels.values.ndim != 1 or sorted(labels.names) != sorted(classes):
            raise ValueError("labels of other classes")
        return labels
