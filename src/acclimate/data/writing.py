"""How a manifest is written: Parquet with its class list and root in the metadata."""

import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from acclimate.core.errors import ManifestError
from acclimate.core.files import write_atomically
from acclimate.data.columns import Content, conform
from acclimate.data.readers import MANIFEST_KEY, SEAL_KEY

VERSION = 1


def write_parts(
    path: Path,
    parts: Iterable[pa.Table],
    *,
    classes: Sequence[str],
    root: Path,
    domains: Sequence[str] = (),
) -> None:
    """A manifest from tables of equal columns, each gone before the next is asked for; whole or
    not at all."""
    require_name(path)
    coming = iter(parts)
    first = next(coming)
    named = "image" in first.column_names
    facts = {
        "version": VERSION,
        "classes": tuple(classes),
        # Without paths the root means nothing, and where it was is nobody's business.
        "root": os.path.relpath(root, path.parent.resolve()) if named else ".",
        "domains": tuple(domains),
    }
    schema = first.schema.with_metadata({MANIFEST_KEY: json.dumps(facts)})
    content = Content(json.loads(json.dumps(facts)), schema.names)

    def fill(file: Path) -> None:
        # Pages have checksums of their own: columns that are not ours are guarded by those alone.
        options = {"compression": "zstd", "write_page_checksum": True}
        with pq.ParquetWriter(file, schema, **options) as writer:
            for part in chain([first], coming):
                content.add(conform(part, path.name))
                writer.write_table(part.cast(schema), row_group_size=1 << 16)
            writer.add_key_value_metadata({SEAL_KEY: content.checksum()})

    write_atomically(path, fill, sweep=True)


def require_name(path: Path) -> None:
    """For those who work long before they write, and want to know at once."""
    if path.suffix.lower() != ".parquet":
        raise ManifestError(f"'{path.name}' is no name for a manifest; end it in .parquet")
