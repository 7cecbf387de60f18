"""Which rows show one picture, wherever it lies: no score may go by one that was trained on.

A picture is known by `base_image` where a row names the image that it was made from, else by the
content of its file or of its bytes. Digests of files are kept in the user's cache, by path, size
and times of change, so that the files of a data set are read for them once.
"""

import hashlib
import os
import re
import sqlite3
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.files import user_cache
from acclimate.core.progress import Watch, unwatched

BASE_IMAGE = "base_image"  # a free column that names the image a row was made from
GROUP = "group"  # a column of what belongs together: a patient, a burst, a recording
OWN = 0  # the key of a row that shows a picture of its own, or belongs to no group
SIZE = 32  # bytes of a digest
AT_ONCE = 500  # paths in a query, which SQLite limits


def picture_keys(table: pa.Table, root: Path, watch: Watch = unwatched) -> np.ndarray:
    """int64 [n]: equal where rows show one picture, here or in other data; `OWN` where it is no
    other row's."""
    keys = np.full(table.num_rows, OWN, dtype=np.int64)
    names = table.column_names
    for name in [name for name in ("image", "bytes", BASE_IMAGE) if name in names]:
        values, codes = _values(table[name])
        if name == "bytes":
            digests = content_digests(values)
        elif name == "image" and "features" not in names:  # with features a path is only a name
            digests = content_digests([str(root / value) for value in values], watch)
        else:
            digests = [_digest(f"{name}:{value}") for value in values]
        keys = _where_known(codes, digests, keys)
    return keys


def group_keys(table: pa.Table) -> np.ndarray:
    """int64 [n]: equal where rows belong to one group; `OWN` where there is none."""
    keys = np.full(table.num_rows, OWN, dtype=np.int64)
    if GROUP not in table.column_names:
        return keys
    values, codes = _values(table[GROUP].cast(pa.string()))
    return _where_known(codes, [_digest(f"group:{value}") for value in values], keys)


def groups_in_paths(paths: pa.ChunkedArray, pattern: str, source: str) -> pa.Array:
    """What `pattern` finds in each path: its first group, or all of it; null for nothing."""
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise ConfigError(f"'{pattern}' is no regular expression ({error}); mend --group") from None
    matches = [search(path) for path in paths.to_pylist()]
    if not any(matches):
        raise ManifestError(f"--group '{pattern}' matches no path of {source}; mend the pattern")
    names = [match and (match[1] if match.re.groups else match[0]) for match in matches]
    return pa.array(names, pa.string())


def _where_known(codes: np.ndarray, digests: Sequence[bytes], keys: np.ndarray) -> np.ndarray:
    """`keys` [n], and where a row's code is not -1, the first 8 bytes of its digest instead."""
    if not digests:
        return keys
    short = np.frombuffer(b"".join(digest[:8] for digest in digests), dtype="<i8")
    return np.where(codes >= 0, short[codes], keys)


def _values(column: pa.ChunkedArray) -> tuple[list[Any], np.ndarray]:
    """The distinct values of a column but null, and the place of each row's among them, or -1."""
    values = pc.unique(pc.drop_null(column))
    places = pc.fill_null(pc.index_in(column, value_set=values, skip_nulls=True), -1)
    return values.to_pylist(), places.to_numpy().astype(np.int64)


@dataclass(frozen=True)
class Seen:
    """The pictures that a model was trained on, and the groups that they belong to."""

    pictures: np.ndarray  # int64, distinct, ascending
    groups: np.ndarray

    @classmethod
    def of(cls, pictures: np.ndarray, groups: np.ndarray) -> "Seen":
        """From the keys of the rows that are trained on."""
        return cls(*(np.setdiff1d(keys, [OWN]) for keys in (pictures, groups)))

    def among(self, pictures: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """bool [n]: which rows, by their keys, show these pictures or belong to these groups."""
        return np.isin(pictures, self.pictures) | np.isin(groups, self.groups)


def numbers(keys: np.ndarray) -> np.ndarray:
    """int64 [n]: the first row that has the key of each; a row whose key is `OWN` is its own."""
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return np.where(keys == OWN, np.arange(len(keys)), first[place])


def content_digests(images: Sequence[str | bytes], watch: Watch = unwatched) -> list[bytes]:
    """SHA-256 of each image's content, files by path; what cannot be read is known by its name."""
    paths = [image for image in images if isinstance(image, str)]
    of_files = iter(file_digests(paths, watch))
    return [
        hashlib.sha256(image).digest()
        if isinstance(image, bytes)
        else next(of_files) or _digest(f"path:{image}")
        for image in images
    ]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def file_digests(paths: Sequence[str], watch: Watch = unwatched) -> list[bytes | None]:
    """SHA-256 of each file's content, from the cache as far as that knows the file as it is; None
    for what cannot be read, and for empty files, which show nothing."""
    with ThreadPoolExecutor(min(32, 4 * (os.cpu_count() or 1)), "digest") as pool:
        parts = [paths[start : start + AT_ONCE] for start in range(0, len(paths), AT_ONCE)]
        states = [state for part in pool.map(_states, parts) for state in part]
        known = _recall(paths)
        digests = [
            known[path][1] if state and path in known and known[path][0] == state else None
            for path, state in zip(paths, states, strict=True)
        ]
        missing = [place for place, state in enumerate(states) if state and not digests[place]]
        contents = pool.map(_read_digest, (paths[place] for place in missing))
        for done, (place, digest) in enumerate(zip(missing, contents, strict=True), start=1):
            digests[place] = digest
            watch("comparing images", done, len(missing), "")
    _remember([(paths[p], states[p], digests[p]) for p in missing if digests[p]])
    return digests


def _states(paths: Sequence[str]) -> list[str]:
    """Of many files at once: a task for each would take longer than looking at it."""
    return [_state(path) for path in paths]


def _state(path: str) -> str:
    """What changes with a file, "" where there is none."""
    try:
        facts = os.stat(path)  # noqa: PTH116 (many)
    except (OSError, ValueError):
        return ""
    if not stat.S_ISREG(facts.st_mode) or not facts.st_size:
        return ""
    return f"{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"


def _read_digest(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def open_store() -> sqlite3.Connection:
    """The cache of files' digests."""
    folder = user_cache("digests")
    if folder is None:
        raise FileNotFoundError("no folder for caches")
    folder.mkdir(parents=True, exist_ok=True)
    store = sqlite3.connect(folder / "files.sqlite", timeout=30, isolation_level=None)
    store.execute(
        "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, state TEXT, digest BLOB) "
        "WITHOUT ROWID"
    )
    return store


def _recall(paths: Sequence[str]) -> dict[str, tuple[str, bytes]]:
    """What the cache says of files: their state then, and their digest. It may be gone or damaged:
    then files are read again."""
    known: dict[str, tuple[str, bytes]] = {}
    with suppress(sqlite3.Error, OSError), closing(open_store()) as store:
        for start in range(0, len(paths), AT_ONCE):
            part = [os.fsencode(path) for path in paths[start : start + AT_ONCE]]
            marks = ",".join("?" * len(part))
            rows = store.execute(f"SELECT * FROM files WHERE path IN ({marks})", part)
            known |= {
                os.fsdecode(path): (str(state), digest)
                for path, state, digest in rows
                if isinstance(digest, bytes) and len(digest) == SIZE
            }
    return known


def _remember(files: Sequence[tuple[str, str, bytes | None]]) -> None:
    rows = [(os.fsencode(path), state, digest) for path, state, digest in files]
    with suppress(sqlite3.Error, OSError):
        if rows:
            with closing(open_store()) as store:
                store.execute("BEGIN IMMEDIATE")
                store.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", rows)
                store.execute("COMMIT")
