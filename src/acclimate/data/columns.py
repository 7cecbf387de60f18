"""The manifest's core columns: their types, their seeded splits and their digest."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream

Key = TypeVar("Key")
SPLITS = ("train", "val", "test")
ROLES = ("train", "val", "test")
TEXT = ("image", "label", "domain", "split", "role")
CONTENT = ("image", "bytes", "features")
BASE_IMAGE = "base_image"  # a free column that names the image a row was made from
GROUPS = ("continent", "region", "group")  # free columns that may sort domains into groups
CORE = (*CONTENT, "label", "domain", "split", "role")


def require_columns(table: pa.Table, source: str) -> None:
    """Refuse a table without label, domain and one of image, bytes and features."""
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ManifestError(f"{source} has two columns named '{twice[0]}'; rename one of them")
    wanted = ["label", "domain"]
    if not set(CONTENT) & set(names):
        wanted.insert(0, "image")
    for name in wanted:
        if name not in names:
            raise ManifestError(_missing_column(name, names, source))


def _missing_column(name: str, names: Sequence[str], source: str) -> str:
    listed = ", ".join(other[:40] for other in names[:12])
    listed += f" and {len(names) - 12} more" if len(names) > 12 else ""
    short = [other for other in names[:1000] if len(other) <= 40]
    folded = {other.strip().casefold(): other for other in short if other not in CORE}
    near = get_close_matches(name, list(folded), n=1, cutoff=0.75)
    remedy = f"Rename '{folded[near[0]]}' to" if near else "Name the column"
    return f"{source} has no column '{name}'; it has {listed}. {remedy} '{name}'"


def conform(table: pa.Table, source: str) -> pa.Table:
    """`table` with its core columns in their types; other columns as they come.

    An empty image path or role means "none" and becomes null.
    """
    for name in table.column_names:
        if name not in CORE:
            continue
        column = table[name]
        try:
            if name == "features":
                column = _fixed_size(column, source)
            else:
                column = column.cast(pa.large_binary() if name == "bytes" else pa.string())
        except pa.ArrowException as error:
            kind = {"bytes": "encoded images", "features": "lists of numbers"}.get(name, "text")
            raise ManifestError(
                f"column '{name}' of {source} holds {table[name].type}; it must hold {kind}: "
                "convert or rename it"
            ) from error
        if name in ("image", "role"):
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
        table = table.set_column(table.column_names.index(name), name, column)
    return table.replace_schema_metadata(None)


def _fixed_size(column: pa.ChunkedArray, source: str) -> pa.ChunkedArray:
    if column.null_count:
        raise ManifestError(
            f"column 'features' of {source} is empty in {column.null_count} rows; drop those rows"
        )
    if not hasattr(column.type, "value_type") or pa.types.is_dictionary(column.type):
        raise pa.ArrowInvalid("not a list")
    sizes = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(sizes) != 1 or sizes[0] == 0:
        found = " and ".join(map(str, sorted(sizes)[:3])) or "no"
        raise ManifestError(
            f"column 'features' of {source} holds lists of {found} numbers; "
            "every row needs the same number of them, at least one"
        )
    chunks = [
        pa.FixedSizeListArray.from_arrays(chunk.flatten().cast(pa.float32()), sizes[0])
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks)


def feature_blocks(column: pa.ChunkedArray) -> Iterator[np.ndarray]:
    """float32 [rows, f], chunk by chunk."""
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False)
        yield values.reshape(len(chunk), column.type.list_size)


def require_finite(features: np.ndarray) -> None:
    """Refuse [n, f] with a value that no model can take, and name its row."""
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ConfigError(
            f"the features of row {int(np.argmin(finite))} hold NaN or infinity; replace the "
            f"values or drop the row"
        )


def encode(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """(sorted distinct names, int64 [n] index into them); null counts as the empty name."""
    filled = pc.fill_null(column, "")
    names: list[str] = sorted(pc.unique(filled).to_pylist())
    codes = pc.index_in(filled, value_set=pa.array(names, pa.string()))
    return names, codes.to_numpy().astype(np.int64)


def seeded_splits(
    table: pa.Table, *, val_share: float, seed: int, same: np.ndarray | None = None
) -> pa.Array:
    """`train` or `val` for each row; a domain's rows alone decide its split.

    In each domain round(val_share * n) of its n images go to `val`, and at least one stays. Rows
    that share an image go together, or a validation image would be trained on under another label.
    `same` [n] is equal where different files show one picture: copies go together too, and those
    of another domain's training images are trained on.
    """
    if not 0 <= val_share < 1:
        raise ConfigError(f"val_share is {val_share}; give a share of at least 0 and less than 1")
    domains, domain = encode(table["domain"])
    image = image_codes(table, "image") if same is None else same
    held_out = np.zeros(table.num_rows, dtype=bool)
    for name, rows in grouped(domain, domains).items():
        _, first, group = np.unique(image[rows], return_index=True, return_inverse=True)
        # Numbered by first appearance in this domain: codes depend on the other domains.
        group = np.argsort(np.argsort(first))[group]
        count = min(round(val_share * len(first)), len(first) - 1)
        chosen = stream(seed, "split", name).permutation(len(first))[:count]
        held_out[rows] = np.isin(group, chosen)
    if same is not None:
        held_out &= ~_copied(image_codes(table, "image"), same, ~held_out)
    return pa.array(np.where(held_out, "val", "train").tolist(), pa.string())


def _copied(file: np.ndarray, same: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """bool [n]: which rows show, in another file, a picture that a `trained` row shows."""
    pairs = np.unique(np.stack([same, file]), axis=1)
    several, files = np.unique(pairs[0], return_counts=True)
    return np.isin(same, several[files > 1]) & np.isin(same, same[trained])


def image_codes(table: pa.Table, *names: str) -> np.ndarray:
    """int64 [n], equal where two rows hold the same in one of the columns; else a row is its own.

    Of several columns the last that is not null counts.
    """
    codes = np.arange(table.num_rows)
    for name in [name for name in names if name in table.column_names]:
        column = table[name]
        found = pc.index_in(column, value_set=pc.unique(column)).to_numpy().astype(np.int64)
        # After all codes so far, so that a path and a row without one cannot be the same.
        codes = np.where(pc.is_valid(column).to_numpy(), codes.max(initial=0) + 1 + found, codes)
    return codes


def digest(table: pa.Table, classes: Sequence[str]) -> str:
    """SHA-256 over the class list and the core columns in row order, however they are chunked."""
    sha = hashlib.sha256()
    sha.update(json.dumps(["manifest", 1, list(classes), table.num_rows]).encode())
    for name in CORE:
        if name not in table.column_names or table[name].null_count == table.num_rows:
            continue
        sha.update(name.encode())
        if name == "features":
            for block in feature_blocks(table[name]):
                sha.update(block.astype("<f4").tobytes())
        else:
            _feed(sha, sha, table[name].cast(pa.large_binary()))
    return sha.hexdigest()


def _feed(lengths: Any, sha: Any, column: pa.ChunkedArray) -> None:
    # Lengths first (null is -1), then the bytes on end: no separator can be mistaken for content.
    lengths.update(pc.fill_null(pc.binary_length(column), -1).to_numpy().astype("<i8"))
    for chunk in pc.fill_null(column, b"").chunks:
        _, offsets, data = chunk.buffers()
        if len(chunk) and data is not None:
            ends = np.frombuffer(offsets, dtype=np.int64)
            sha.update(data[ends[chunk.offset] : ends[chunk.offset + len(chunk)]])


class Content:
    """The checksum of a manifest that comes in parts, however those are cut: its facts, the names
    of its columns, and what its core columns hold."""

    def __init__(self, facts: Mapping[str, Any], names: Sequence[str]) -> None:
        self._known = json.dumps([facts, list(names)], sort_keys=True)
        self._rows = 0
        self._sums = {n: (hashlib.sha256(), hashlib.sha256()) for n in CORE if n in names}

    def add(self, part: pa.Table) -> None:
        """`part` has its core columns in their types."""
        self._rows += part.num_rows
        for name, (lengths, content) in self._sums.items():
            if name == "features":
                for block in feature_blocks(part[name]):
                    content.update(block.astype("<f4", copy=False).tobytes())
            else:
                _feed(lengths, content, part[name].cast(pa.large_binary()))

    def checksum(self) -> str:
        sums = {n: [one.hexdigest() for one in both] for n, both in self._sums.items()}
        whole = json.dumps([self._known, self._rows, sums], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


def grouped(codes: np.ndarray, keys: Sequence[Key]) -> dict[Key, np.ndarray]:
    """The positions of each code, ascending, by the key that it stands for; none are left out."""
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(keys) + 1))
    return {
        key: order[start:end]
        for key, start, end in zip(keys, ends[:-1], ends[1:], strict=True)
        if end > start
    }
