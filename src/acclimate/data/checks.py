"""What can be wrong with a manifest. Each check returns one kind of problem and its remedy."""

import os
import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.core import wording
from acclimate.core.files import odd_kind
from acclimate.data.columns import CONTENT, ROLES, SPLITS, encode, feature_blocks

_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """Problems of one kind, and the remedy that they share."""

    problems: Sequence[str]
    remedy: str

    def sentences(self) -> list[str]:
        return [f"{problem} ({self.remedy})" for problem in self.problems]

    def summary(self) -> str:
        more = len(self.problems) - _SHOWN
        listed = ", ".join(self.problems[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"{listed} ({self.remedy})"


def find_problems(
    table: pa.Table,
    classes: Sequence[str],
    declared_domains: Sequence[str],
    root: Path,
    *,
    check_files: bool,
) -> list[Finding]:
    """Every kind of problem there is; the files are looked at only with `check_files`."""
    if table.num_rows == 0 and not declared_domains:
        return [Finding(["there are no rows"], "add some")]
    names = {column: encode(table[column]) for column in ("label", "domain", "split")}
    outside = _outside_paths(table)
    found = [
        _empty_names("label", *names["label"]),
        _empty_names("domain", *names["domain"]),
        _empty_domains(declared_domains, names["domain"][0]),
        _unlisted(classes, *names["label"]),
        _spellings("class", {*classes, *names["label"][0]}),
        _spellings("domain", names["domain"][0]),
        _bad_values("split", SPLITS, *names["split"]),
        *_roles(table, *names["domain"]),
        _no_content(table),
        _duplicates(table),
        _leaks(table),
        Finding(
            [f"path '{path}' is outside the root" for path in outside],
            "give paths relative to the root and below it",
        ),
        _bad_features(table),
    ]
    if check_files:
        found += _files(table, root, skip=set(outside))
    return [finding for finding in found if finding.problems]


def _leaks(table: pa.Table) -> Finding:
    """An image of a domain in two of its splits would be both trained on and scored."""
    problems: list[str] = []
    if "image" in table.column_names:
        named = table.select(["image", "domain", "split"]).filter(pc.is_valid(table["image"]))
        splits = named.group_by(["image", "domain"]).aggregate([("split", "count_distinct")])
        twice = splits.filter(pc.greater(splits["split_count_distinct"], 1)).sort_by("image")
        problems = [
            f"image '{row['image']}' is in several splits of domain '{row['domain']}'"
            for row in twice.select(["image", "domain"]).to_pylist()
        ]
    return Finding(problems, "keep all rows of an image in one split")


def _empty_names(column: str, names: list[str], codes: np.ndarray) -> Finding:
    blank = np.isin(codes, [code for code, name in enumerate(names) if not name.strip()])
    number = int(blank.sum())
    have = wording.count(number, "row") + (" has" if number == 1 else " have")
    problems = [f"{have} no {column}, first row {blank.argmax()}"] if number else []
    return Finding(problems, f"fill in the {column} or drop the rows")


def _empty_domains(declared: Iterable[str], present: Iterable[str]) -> Finding:
    empty = sorted(set(declared) - set(present))
    problems = [f"domain '{name}' has no images" for name in empty]
    return Finding(problems, "add images or remove its folder")


def _unlisted(classes: Sequence[str], names: list[str], codes: np.ndarray) -> Finding:
    listed = Counter(classes)
    twice = sorted(name for name, times in listed.items() if times > 1)
    counts = np.bincount(codes, minlength=len(names))
    problems = [f"class '{name}' is listed twice" for name in twice] + [
        f"label '{name}' of {wording.count(count, 'row')} is not in the class list"
        for name, count in zip(names, counts.tolist(), strict=True)
        if name.strip() and name not in listed
    ]
    return Finding(problems, "mend the class list or drop the rows")


def _spellings(what: str, names: Iterable[str]) -> Finding:
    spelt = defaultdict(list)
    for name in sorted(name for name in names if name.strip()):
        spelt[_spelling(name)].append(name)
    problems = [
        f"{what} '{first}' is also spelt " + " and ".join(f"'{name}'" for name in others)
        for first, *others in spelt.values()
        if others
    ]
    return Finding(problems, "choose one spelling")


def _spelling(name: str) -> str:
    """Equal for 'Ice-cream', 'ice_cream' and 'IceCream', but not for '-1' and '1' or 'v1-1', 'v11'.

    Names without a letter are codes, in which a dash is a sign or a separator.
    """
    folded = unicodedata.normalize("NFKC", name).casefold().strip()
    if not any(character.isalpha() for character in folded):
        return folded
    return re.sub(r"(?<!\d) | (?!\d)", "", re.sub(r"[\s_-]+", " ", folded))


def _bad_values(
    column: str, allowed: Sequence[str], names: list[str], codes: np.ndarray
) -> Finding:
    counts = np.bincount(codes, minlength=len(names)).tolist()
    problems = [
        f"{column} '{name}' of {wording.count(count, 'row')} is unknown"
        for name, count in zip(names, counts, strict=True)
        if count and name not in allowed
    ]
    return Finding(problems, f"use {', '.join(allowed[:-1])} or {allowed[-1]}")


def _roles(table: pa.Table, domains: list[str], domain: np.ndarray) -> list[Finding]:
    if "role" not in table.column_names:
        return []
    roles, role = encode(table["role"])
    given = np.asarray([bool(name) for name in roles], dtype=bool)[role]
    wrong = _bad_values("role", ROLES, roles, role[given])  # a domain need not have a role
    pairs = np.unique(domain * len(roles) + role)
    several = np.bincount(pairs // len(roles), minlength=len(domains)) > 1
    problems = []
    for code in np.flatnonzero(several).tolist():
        held = [roles[pair % len(roles)] or "none" for pair in pairs if pair // len(roles) == code]
        problems.append(f"domain '{domains[code]}' has the roles {' and '.join(held)}")
    return [wrong, Finding(problems, "give all rows of a domain one role")]


def _no_content(table: pa.Table) -> Finding:
    bare = np.ones(table.num_rows, dtype=bool)
    for name in set(CONTENT) & set(table.column_names):
        bare &= pc.is_null(table[name]).to_numpy()
    problems = [f"row {row} has no image" for row in np.flatnonzero(bare)]
    return Finding(problems, "give its path or drop the row")


def _duplicates(table: pa.Table) -> Finding:
    if "image" not in table.column_names:
        return Finding([], "")
    keys = ["image", "label", "domain", "split"]
    named = table.select(keys).filter(pc.is_valid(table["image"]))
    counted = named.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    repeated = counted.filter(pc.greater(counted["count_all"], 1)).to_pylist()
    problems = [
        f"image '{row['image']}' is listed {row['count_all']} times as {row['label']} in domain "
        f"'{row['domain']}', split '{row['split']}'"
        for row in repeated
    ]
    return Finding(problems, "keep one row of each")


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


def _bad_features(table: pa.Table) -> Finding:
    if "features" not in table.column_names:
        return Finding([], "")
    finite = [np.isfinite(block).all(axis=1) for block in feature_blocks(table["features"])]
    rows = np.flatnonzero(~np.concatenate([np.empty(0, dtype=bool), *finite]))
    problems = [f"the features of row {row} hold NaN or infinity" for row in rows]
    return Finding(problems, "replace the values or drop the rows")


def _files(table: pa.Table, root: Path, *, skip: set[str]) -> list[Finding]:
    if "image" not in table.column_names or "features" in table.column_names:
        return []  # with features, as with bytes, a path is only a name
    column = table["image"]
    if "bytes" in table.column_names:
        column = column.filter(pc.is_null(table["bytes"]))
    by_folder = defaultdict(list)
    for path in pc.unique(pc.drop_null(column)).to_pylist():
        if path not in skip:
            folder, _, name = path.rpartition("/")
            by_folder[folder].append(name)
    missing, stray, odd = [], [], []
    for folder, names in by_folder.items():
        entries, outside = _listing(root, folder)
        for name in names:
            path, entry = f"{folder}/{name}" if folder else name, entries.get(name)
            # A dead link is missing.
            if entry is None or not (entry.is_file() or Path(entry.path).exists()):
                missing.append(f"file '{path}' is missing")
            elif not entry.is_file():
                kind = odd_kind(Path(entry.path)) or "something else"
                odd.append(f"'{path}' is {kind}, not a file")
            elif outside or (entry.is_symlink() and not _inside(entry.path, root)):
                stray.append(f"file '{path}' leads out of the root")
    remedy = (
        "fetch them with `acclimate build fetch`"
        if "url" in table.column_names
        else "restore the files or drop their rows"
    )
    return [
        Finding(missing, remedy),
        Finding(stray, "replace the symbolic link by what it points to"),
        Finding(odd, "put files in their place, or drop their rows"),
    ]


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
