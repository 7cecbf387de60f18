"""Writes that are whole or absent: temporary file, fsync, rename."""

import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from acclimate.core.errors import AcclimateError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def odd_kind(path: Path) -> str | None:
    """What `path` is where it, or what it links to, is no regular file: "a pipe"."""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode))


def require_regular(path: Path) -> None:
    """Refuse to read a pipe, which may never end, and whatever else is no file."""
    kind = odd_kind(path)
    if kind is not None:
        raise AcclimateError(f"{path} is {kind}, not a file; give a file")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def clear_temporary(folder: Path) -> None:
    """Remove what a killed process left of files it was writing. Only where nobody works."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    # File names that are not UTF-8 come as surrogates, and go out as the bytes they were.
    encoded = text.encode("utf-8", errors="surrogateescape")
    write_atomically(path, lambda temporary: temporary.write_bytes(encoded))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def append_line(path: Path, line: str) -> None:
    """One write per line and an fsync: a crash can tear the last line, never an earlier one."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        rest = (line + "\n").encode()
        while rest:  # a nearly full disk takes a part, and refuses the rest with an error
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder's entry is.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
