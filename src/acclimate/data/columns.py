"""The manifest's core columns: their types, their seeded splits and their digest."""

import hashlib
import json
import os
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.core import text as wording
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream

Key = TypeVar("Key")
SPLITS = ("train", "val", "test")
ROLES = ("train", "val", "test")
TEXT = ("image", "label", "domain", "split", "role", "group")
CONTENT = ("image", "bytes", "features")
REGIONS = ("continent", "region")  # free columns that may sort domains into groups
CORE = (*CONTENT, "label", "domain", "split", "role")


def require_columns(table: pa.Table, source: str) -> None:
    """Refuse a table without label, domain and one of image, bytes and features."""
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ManifestError(f"{source} has two columns named '{twice[0]}'; rename one of them")
    content = [] if set(CONTENT) & set(names) else ["image"]
    for name in (*content, "label", "domain"):
        if name not in names:
            listed = ", ".join(other[:40] for other in names[:12])
            raise ManifestError(
                f"{source} has no column '{name}'; it has {listed}"
                f"{' and more' if len(names) > 12 else ''}. Name the column '{name}'"
            )


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
                require_exact(column, name, source)
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


def require_exact(column: pa.ChunkedArray | pa.Array, name: str, source: str) -> None:
    """Refuse names that are numbers so large that two of them may have become one."""
    if pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0) >= 1 << 53:
        raise ManifestError(
            f"column '{name}' of {source} holds floating-point numbers of 2^53 or more, which are "
            f"not exact; save it as text"
        )


def _fixed_size(column: pa.ChunkedArray, source: str) -> pa.ChunkedArray:
    if not hasattr(column.type, "value_type") or pa.types.is_dictionary(column.type):
        raise pa.ArrowInvalid("not a list")
    sizes = pc.unique(pc.fill_null(pc.list_value_length(column), 0)).to_pylist()
    if len(sizes) != 1 or sizes[0] == 0:
        lengths = " and ".join(map(str, sorted(sizes)[:3])) or "no"
        raise ManifestError(
            f"column 'features' of {source} holds lists of {lengths} numbers; "
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


def seeded_splits(table: pa.Table, units: np.ndarray, *, val_share: float, seed: int) -> pa.Array:
    """`train` or `val` for each row: one of them for each unit, in whatever domains it has rows.

    `units` [n] are equal where rows show one picture, or belong to one group. In each domain
    round(val_share * n) of its n units go to `val`, as far as other domains have not decided about
    them, and at least one stays.
    """
    if not 0 <= val_share < 1:
        raise ConfigError(f"val_share is {val_share}; give a share of at least 0 and less than 1")
    domains, domain = encode(table["domain"])
    _, unit = np.unique(units, return_inverse=True)
    split = np.full(unit.max(initial=-1) + 1, -1)  # of each unit: 1 for `val`, 0 for `train`
    for name, rows in grouped(domain, domains).items():
        own, first = np.unique(unit[rows], return_index=True)
        # In the order of this domain: numbers depend on the other domains.
        own = own[np.argsort(first)]
        shuffled = own[stream(seed, "split", name).permutation(len(own))]
        free = shuffled[split[shuffled] < 0]
        wanted = min(round(val_share * len(own)), len(own) - 1) - int((split[own] == 1).sum())
        split[free] = np.arange(len(free)) < wanted
        if split[own].all():
            split[own[0]] = 0
    return pa.array(np.where(split[unit] == 1, "val", "train").tolist(), pa.string())


def image_codes(table: pa.Table, *names: str) -> np.ndarray:
    """int64 [n], equal where two rows hold the same in one of the columns; else a row is its own.

    Of several columns the last that is not null counts.
    """
    codes = np.arange(table.num_rows)
    for name in [name for name in names if name in table.column_names]:
        column = table[name]
        values = pc.index_in(column, value_set=pc.unique(column)).to_numpy().astype(np.int64)
        # After all codes so far, so that a path and a row without one cannot be the same.
        codes = np.where(pc.is_valid(column).to_numpy(), codes.max(initial=0) + 1 + values, codes)
    return codes


def first_rows(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The first of `rows` with each of the `ids`, which are by row, in the order of `rows`."""
    _, first = np.unique(ids[rows], return_index=True)
    return np.asarray(rows[np.sort(first)])


def label_counts(labels: np.ndarray, domains: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """Rows of each class in each domain, whose rows `domains` lists; -1 is no class: [N, C]"""
    rows = (labels[own] for own in domains)
    return np.stack([np.bincount(own[own >= 0], minlength=classes) for own in rows])


def digest(table: pa.Table, classes: Sequence[str]) -> str:
    """SHA-256 over the class list and the core columns in row order, however they are chunked."""
    sha = hashlib.sha256()
    sha.update(json.dumps(["manifest", 1, list(classes), table.num_rows]).encode())
    for name in CORE:
        if name in table.column_names and table[name].null_count < table.num_rows:
            sha.update(name.encode())
            _feed(name, sha, table[name])
    return sha.hexdigest()


def _feed(name: str, sha: Any, column: pa.ChunkedArray) -> None:
    """Hash a column: the lengths of its cells, and their bytes."""
    if name == "features":
        for block in feature_blocks(column):
            sha.update(block.astype("<f4").tobytes())
        return
    column = column.cast(pa.large_binary())
    # Lengths first (null is -1), then the bytes on end: no separator can be mistaken for content.
    sha.update(pc.fill_null(pc.binary_length(column), -1).to_numpy().astype("<i8"))
    for chunk in pc.fill_null(column, b"").chunks:
        _, offsets, data = chunk.buffers()
        if len(chunk) and data is not None:
            ends = np.frombuffer(offsets, dtype=np.int64)
            sha.update(data[ends[chunk.offset] : ends[chunk.offset + len(chunk)]])


def grouped(codes: np.ndarray, keys: Sequence[Key]) -> dict[Key, np.ndarray]:
    """The positions of each code, ascending, by the key that it stands for; none are left out."""
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(keys) + 1))
    return {
        key: order[start:end]
        for key, start, end in zip(keys, ends[:-1], ends[1:], strict=True)
        if end > start
    }


_SHOWN = 3


class Problem(NamedTuple):
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} ({self.remedy})"


Problems = Iterator[Problem]


def summaries(problems: Iterable[Problem]) -> list[str]:
    """A line for those that share a remedy, which names a few of them."""
    by_remedy = defaultdict(list)
    for problem in problems:
        by_remedy[problem.remedy].append(problem.what)
    return [f"{wording.listed(alike, _SHOWN)} ({remedy})" for remedy, alike in by_remedy.items()]


def find_problems(
    table: pa.Table,
    classes: Sequence[str],
    declared_domains: Sequence[str],
    root: Path,
    *,
    check_files: bool,
) -> Problems:
    """Whatever is wrong with the rows; the files are looked at only with `check_files`."""
    if table.num_rows == 0 and not declared_domains:
        yield Problem("there are no rows", "add some")
        return
    for name in sorted({*declared_domains} - {*encode(table["domain"])[0]}):
        yield Problem(f"domain '{name}' has no images", "add images or remove its folder")
    yield from _names(table, "label", classes, "is not in the class list", "drop the rows")
    yield from _names(table, "domain")
    yield from _names(table, "split", SPLITS, "is unknown", _one_of(SPLITS))
    yield from _roles(table)
    yield from _content(table)
    outside = _outside_paths(table)
    for path in outside:
        remedy = "give paths relative to the root and below it"
        if path.startswith("\\"):
            remedy = "rename what begins with a backslash, which elsewhere is the root"
        yield Problem(f"path '{path}' is outside the root", remedy)
    if "image" in table.column_names:
        yield from _repeats(table.filter(pc.is_valid(table["image"])))
    if check_files:
        yield from _files(table, root, skip=set(outside))


def _names(
    table: pa.Table,
    column: str,
    allowed: Sequence[str] | None = None,
    what: str = "",
    remedy: str = "",
) -> Problems:
    """Names that are missing, spelt in two ways, or not `allowed`."""
    names, codes = encode(table[column])
    counts = np.bincount(codes, minlength=len(names)).tolist()
    for name, count in zip(names, counts, strict=True):
        rows = wording.count(count, "row")
        if not name.strip() and column != "split":
            first = pc.index(pc.fill_null(table[column], ""), name).as_py()
            fill = f"fill in the {column} or drop the rows"
            yield Problem(f"{rows} without {column}, first row {first}", fill)
        elif allowed is not None and name not in allowed:
            yield Problem(f"{column} '{name}' of {rows} {what}", remedy)
    spelt = defaultdict(list)
    for name in sorted({*names, *(allowed or ())}):
        spelt[_spelling(name)].append(name)
    for first, *others in spelt.values():
        if others and first.strip():
            also = " and ".join(f"'{name}'" for name in others)
            yield Problem(f"{column} '{first}' is also spelt {also}", "choose one spelling")


def _repeats(named: pa.Table) -> Problems:
    """Rows that say the same, and images in two splits of a domain, which would be both trained on
    and scored."""
    keys = ["image", "label", "domain", "split"]
    counted = named.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    for row in counted.filter(pc.greater(counted["count_all"], 1)).to_pylist():
        yield Problem(
            f"image '{row['image']}' is listed {row['count_all']} times as {row['label']} in "
            f"domain '{row['domain']}', split '{row['split']}'",
            "keep one row of each",
        )
    splits = named.group_by(["image", "domain"]).aggregate([("split", "count_distinct")])
    several = splits.filter(pc.greater(splits["split_count_distinct"], 1)).sort_by("image")
    for row in several.to_pylist():
        yield Problem(
            f"image '{row['image']}' is in several splits of domain '{row['domain']}'",
            "keep all rows of an image in one split",
        )


def _spelling(name: str) -> str:
    """Equal for 'Ice-cream', 'ice_cream' and 'IceCream', but not for '-1' and '1' or 'v1-1', 'v11'.

    Names without a letter are codes, in which a dash is a sign or a separator; numbers without a
    sign are equal by their value.
    """
    folded = unicodedata.normalize("NFKC", name).casefold().strip()
    if re.fullmatch(r"\d+(\.\d*)?", folded):  # 01, 1 and 1.0
        whole, _, part = folded.partition(".")
        return f"{whole.lstrip('0') or '0'}.{part.rstrip('0')}"
    if not any(character.isalpha() for character in folded):
        return folded
    return re.sub(r"(?<!\d) | (?!\d)", "", re.sub(r"[\s_-]+", " ", folded))


def _roles(table: pa.Table) -> Problems:
    """Unknown roles, and domains that have several; a domain need not have one."""
    if "role" not in table.column_names:
        return
    by_domain = defaultdict(list)
    pairs = table.select(["domain", "role"]).group_by(["domain", "role"]).aggregate([])
    for pair in pairs.to_pylist():
        by_domain[pair["domain"] or ""].append(pair["role"] or "none")
    for name, roles in sorted(by_domain.items()):
        for role in sorted({*roles} - {*ROLES, "none"}):
            yield Problem(f"role '{role}' of domain '{name}' is unknown", _one_of(ROLES))
        if len(roles) > 1:
            several = f"domain '{name}' has the roles {' and '.join(sorted(roles))}"
            yield Problem(several, "give all rows of a domain one role")


def _one_of(allowed: Sequence[str]) -> str:
    return f"use {', '.join(allowed[:-1])} or {allowed[-1]}"


def _content(table: pa.Table) -> Problems:
    """Rows without an image, and features that are no numbers."""
    bare = np.ones(table.num_rows, dtype=bool)
    for name in set(CONTENT) & set(table.column_names):
        bare &= pc.is_null(table[name]).to_numpy()
    for row in np.flatnonzero(bare):
        yield Problem(f"row {row} has no image", "give its path or drop the row")
    if "features" in table.column_names and table.num_rows:
        finite = [np.isfinite(block).all(axis=1) for block in feature_blocks(table["features"])]
        for row in np.flatnonzero(~np.concatenate(finite)):
            remedy = "replace the values or drop the rows"
            yield Problem(f"the features of row {row} hold NaN or infinity", remedy)


def _outside_paths(table: pa.Table) -> list[str]:
    """Absolute paths, and paths that climb out of the root, in row order."""
    if "image" not in table.column_names:
        return []
    paths = pc.drop_null(table["image"])
    suspect = pc.match_substring_regex(paths, r"^([A-Za-z]:)?[\\/]|(^|[\\/])\.\.([\\/]|$)")
    return [path for path in pc.unique(paths.filter(suspect)).to_pylist() if _leaves(path)]


def _leaves(path: str) -> bool:
    plain = posixpath.normpath(path.replace("\\", "/"))
    return plain.startswith("/") or plain[1:3] == ":/" or plain.split("/")[0] == ".."


def _files(table: pa.Table, root: Path, *, skip: set[str]) -> Problems:
    if "image" not in table.column_names or "features" in table.column_names:
        return  # with features, as with bytes, a path is only a name
    column = table["image"]
    if "bytes" in table.column_names:
        column = column.filter(pc.is_null(table["bytes"]))
    by_folder = defaultdict(list)
    for path in pc.unique(pc.drop_null(column)).to_pylist():
        if path not in skip:
            by_folder[path.rpartition("/")[0]].append(path)
    fetched = "url" in table.column_names
    mend = (
        "fetch them with `acclimate build fetch`"
        if fetched
        else "restore the files or drop their rows"
    )
    for folder, paths in by_folder.items():
        entries, outside = _listing(root, folder)
        for path in paths:
            entry = entries.get(path.rpartition("/")[2])
            # A dead link is missing.
            if entry is None or not (entry.is_file() or Path(entry.path).exists()):
                yield Problem(f"file '{path}' is missing", mend)
            elif outside or (entry.is_symlink() and not _inside(entry.path, root)):
                remedy = "replace the symbolic link by what it points to"
                yield Problem(f"file '{path}' leads out of the root", remedy)


def _listing(root: Path, folder: str) -> tuple[dict[str, os.DirEntry[str]], bool]:
    """What is in root/folder by name, and whether a symbolic link takes the folder out of the root.

    One listing per folder: a query per file takes minutes on two million files of a network drive.
    """
    try:
        with os.scandir(root / folder) as entries:
            return {entry.name: entry for entry in entries}, not _inside(root / folder, root)
    except (OSError, ValueError):  # a NUL in a name is no name of any file
        return {}, False


def _inside(path: str | Path, root: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
