"""Writes that are whole or absent: temporary file, fsync, rename."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from acclimate.core.errors import AcclimateError, WriteError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{8}\.tmp", re.DOTALL)
_LONGEST = 200  # bytes of a name that a temporary file keeps; names may have 255


def odd_kind(path: Path) -> str | None:
    """What `path` is where it, or what it links to, is no regular file: "a pipe"."""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode))


def require_regular(path: Path) -> None:
    """Refuse to read a pipe, which may never end, and whatever else is no file."""
    kind = odd_kind(path)
    if kind is not None:
        raise AcclimateError(f"{path} is {kind}, not a file; give a file")


def write_atomically(path: Path, write: Callable[[Path], object], *, sweep: bool = False) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place.

    A link stays, and what it leads to is written; a pipe or a terminal is written to. What stood
    there before keeps its mode, and a new file has the one that the user's mask gives. `sweep`:
    also remove what killed processes left of the same file, which takes a look at the whole folder.
    """
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = _mode(path)
        if mode is not None and not stat.S_ISREG(mode):
            _write_through(path, mode, write)
            return
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        if sweep:
            _sweep(target.parent, f".{_short(target.name)}.")
        with _temporary(target) as (temporary, created):
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.chmod(stat.S_IMODE(created if mode is None else mode))
            temporary.replace(target)
        _sync_folder(target.parent)


@contextmanager
def _temporary(target: Path) -> Iterator[tuple[Path, int]]:
    """A file beside `target` and its mode, locked as long as its maker lives; gone on failure."""
    name = f".{_short(target.name)}.{secrets.token_hex(4)}.tmp"
    temporary = target.with_name(name)
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with suppress(OSError):  # without locks, nobody sweeps up behind us either
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield temporary, os.fstat(handle).st_mode
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _write_through(path: Path, mode: int, write: Callable[[Path], object]) -> None:
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise WriteError(f"{path} is {kind}; write to a file")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="acclimate-") as folder:
        whole = Path(folder) / "whole"
        write(whole)
        # Without waiting: a pipe that nobody reads is an error, and not a hang.
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(handle, True)
        with os.fdopen(handle, "wb") as to, whole.open("rb") as source:
            shutil.copyfileobj(source, to)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _short(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_LONGEST])


def clear_temporary(folder: Path) -> None:
    """Remove what killed processes left of files they were writing."""
    _sweep(folder, ".")


def _sweep(folder: Path, beginning: str) -> None:
    with suppress(OSError), os.scandir(folder) as entries:
        left = [e.path for e in entries if e.name.startswith(beginning)]
        for path in left:
            if _TEMPORARY.fullmatch(os.path.basename(path)):  # noqa: PTH119
                _remove_abandoned(path)


def _remove_abandoned(path: str) -> None:
    """Unless whoever writes it is alive, and so holds its lock."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)  # noqa: PTH108
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    try:
        # File names that are not UTF-8 come as surrogates, and go out as the bytes they were.
        encoded = text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:  # other halves of characters, which JSON knows as \ud800
        encoded = text.encode("utf-8", errors="backslashreplace")
    write_atomically(path, lambda temporary: temporary.write_bytes(encoded), sweep=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def append_line(path: Path, line: str) -> None:
    """One write per line and an fsync: a crash can tear the last line, never an earlier one."""
    with _told(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            rest = (line + "\n").encode()
            while rest:  # a nearly full disk takes a part, and refuses the rest with an error
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Failures of a disk in one line, with what to do; where it was is not always in the error."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> WriteError:
    told = WriteError(f"{path} cannot be written: {_reason(error, path)}")
    told.errno = error.errno
    return told


def _reason(error: OSError, path: Path) -> str:
    said = (error.strerror or str(error)).lower()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        left = ""
        with suppress(OSError):
            left = f", which has {shutil.disk_usage(path.parent).free / 1e6:.0f} MB left,"
        return f"{said}; free some on its disk{left} and repeat the command"
    if error.errno == errno.EIO:
        return f"{said}; check the disk, and repeat the command"
    if error.errno == errno.EFBIG:
        return f"{said}; use another disk or a higher limit (ulimit -f), and repeat the command"
    return f"{said}; check the path"


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder's entry is.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
