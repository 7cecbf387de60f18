"""What a model predicted for each scored row of a manifest: the table that metrics work on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from acclimate.core.errors import DamagedFile
from acclimate.core.files import FORMAT, parse_json, require_format, write_atomically

_KEY = b"acclimate"  # of the Parquet file's metadata


@dataclass(frozen=True, eq=False)
class Predictions:
    """Columns [n]. A row is a manifest row scored by a method, so that each label of a picture
    counts by itself."""

    classes: tuple[str, ...]
    row: np.ndarray  # int64: its number in the manifest
    domain: np.ndarray  # str, as object
    split: np.ndarray
    method: np.ndarray
    label: np.ndarray  # int32: a number of `classes`
    predicted: np.ndarray  # int32
    rank: np.ndarray  # int32: of the label among the classes, 1 for the likeliest
    p_predicted: np.ndarray  # float32: probability of the prediction
    p_label: np.ndarray  # float32: probability of the label
    p_squares: np.ndarray  # float32: sum of all classes' squared probabilities
    loss: np.ndarray  # float32: −log p_label, also where that probability rounds to 0

    def __len__(self) -> int:
        return len(self.row)

    def where(self, chosen: np.ndarray) -> "Predictions":
        """The rows at which `chosen` [n] is true."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})

    @classmethod
    def joined(cls, parts: "Sequence[Predictions]") -> "Predictions":
        """The rows of one or more tables with the same classes, in order."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
        }
        return cls(parts[0].classes, **columns)

    def write(self, path: Path) -> None:
        """Write a Parquet file, whole or not at all; equal tables give equal bytes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: pa.array(getattr(self, name)) for name in COLUMNS}
        for name in _TEXTS:
            columns[name] = columns[name].cast(pa.string()).dictionary_encode()
        facts = json.dumps({"format": FORMAT, "classes": self.classes})
        table = pa.table(columns).replace_schema_metadata({_KEY: facts})
        options = {"compression": "zstd", "write_page_checksum": True}
        write_atomically(path, lambda file: pq.write_table(table, file, **options))

    @classmethod
    def read(cls, path: Path) -> "Predictions":
        """Read a file of `write`; a missing file is the caller's to explain."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read(columns=list(COLUMNS))
            facts = parse_json(table.schema.metadata[_KEY])
            columns = {name: table[name].to_numpy() for name in COLUMNS}
            classes, version = tuple(facts["classes"]), facts["format"]
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            raise DamagedFile(path) from None
        require_format(version, path)
        return cls(classes, **columns)


COLUMNS = tuple(field.name for field in fields(Predictions) if field.name != "classes")
_TEXTS = ("domain", "split", "method")
