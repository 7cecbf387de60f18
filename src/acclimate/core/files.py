"""Files: written whole or not at all, JSON documents with a format number, and locks."""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from acclimate.core.errors import (
    AcclimateError,
    DamagedFile,
    NotAFile,
    RunBusy,
    SchemaError,
    WriteError,
)

MOST = 1 << 28  # bytes of a document
FORMAT = 1  # of everything that we write; files with another number are refused
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{8}\.tmp", re.DOTALL)
_ABANDONED = 86_400  # seconds after which nobody is still writing a temporary file
CACHE = "ACCLIMATE_CACHE"  # the variable that names the folder of caches
_LONGEST = 200  # bytes of a name that a temporary file keeps; names may have 255
BINARY = getattr(os, "O_BINARY", 0)  # lest Windows write \\n as \\r\\n


def odd_kind(path: Path) -> str | None:
    """What `path` is where it, or what it links to, is no regular file: "a pipe"."""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode))


def require_regular(path: Path, most: int | None = None) -> None:
    """Refuse to read a pipe, which may never end, whatever else is no file, and a file of more than
    `most` bytes."""
    kind = odd_kind(path)
    if kind is not None:
        raise NotAFile(f"{path} is {kind}, not a file; give a file")
    if most is not None and path.stat().st_size > most:
        raise NotAFile(f"{path} is larger than {most >> 20} MiB; restore or delete it")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it to `path`.

    What a link leads to is written, and the link stays. A file that was there keeps its mode, and
    a new one has the mode that the user's mask gives.
    """
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        if target.exists() and (kind := odd_kind(target)) is not None:
            raise WriteError(f"{path} is {kind}; write to a file")
        name = os.fsdecode(os.fsencode(target.name)[:_LONGEST])
        temporary = target.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        mode = (target.stat() if target.exists() else os.fstat(handle)).st_mode
        os.close(handle)
        try:
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.chmod(stat.S_IMODE(mode))  # `write` may have made another file of it
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


def clear_temporary(folder: Path, older_than: float = _ABANDONED) -> None:
    """Remove what killed processes left of files they were writing.

    Where several processes may write, only files that were left alone for `older_than` seconds.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime >= older_than:
                        path.unlink()


def write_text(path: Path, text: str) -> None:
    try:
        # File names that are not UTF-8 come as surrogates, and go out as the bytes they were.
        encoded = text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:  # other halves of characters, which JSON knows as \ud800
        encoded = text.encode("utf-8", errors="backslashreplace")
    write_atomically(path, lambda temporary: temporary.write_bytes(encoded))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON as `json.loads` does; every fault of the text is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_metadata(stored: Mapping[str, str] | None) -> dict[str, str]:
    """The metadata of a file of `save_tensors`; a ValueError where a file has no such metadata."""
    values = parse_json((stored or {}).get("acclimate", ""))
    if not isinstance(values, dict):
        raise ValueError("no metadata")
    return {str(key): str(value) for key, value in values.items()}


def write_document(path: Path, values: Mapping[str, Any]) -> None:
    """A JSON object with the format number."""
    write_json(path, {**values, "format": FORMAT})


def read_document(path: Path) -> dict[str, Any]:
    """The values that `write_document` was given; a missing file is the caller's to explain."""
    try:
        values = parse_json(read_bytes(path))
    except ValueError:
        raise DamagedFile(path) from None
    if not isinstance(values, dict):
        raise DamagedFile(path)
    require_format(values.pop("format", FORMAT), path)
    return values


def require_format(version: object, where: object) -> None:
    """Refuse what another version of the program wrote."""
    if version != FORMAT:
        raise SchemaError(
            f"{where}: format {version}, this version reads {FORMAT}; "
            f"use the version of acclimate that wrote it"
        )


def json_digest(value: Any) -> str:
    """SHA-256 (hex) of a value that JSON holds, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """The content of a regular file of at most `most` bytes; a missing one is the caller's to
    explain."""
    require_regular(path, most)
    with path.open("rb") as file:
        return file.read(most)


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of the bytes of a regular file."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_line(path: Path, line: str, *, sync: bool = True) -> None:
    """One write per line and an fsync: a crash can tear the last line, never an earlier one.
    Without `sync` that holds where the process ends, but not where the power does."""
    with _disk_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, 0o666)
        try:
            rest = f"{line}\n".encode()
            while rest:  # a nearly full disk takes a part, and refuses the rest with an error
                rest = rest[os.write(handle, rest) :]
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Failures of a disk in one line, with what to do; where it was is not always in the error."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> WriteError:
    problem = WriteError(f"{path} cannot be written: {_reason(error, path)}")
    problem.errno = error.errno
    return problem


def _reason(error: OSError, path: Path) -> str:
    text = (error.strerror or str(error)).lower()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        left = ""
        with suppress(OSError):
            left = f", which has {shutil.disk_usage(path.parent).free / 1e6:.0f} MB left,"
        return f"{text}; free some on its disk{left} and repeat the command"
    if error.errno in (errno.EIO, errno.EFBIG):
        return f"{text}; check the disk and its limits (ulimit -f), and repeat the command"
    return f"{text}; check the path"


def _sync_folder(folder: Path) -> None:
    # The rename itself is durable only once the folder's entry is.
    if os.name == "nt":  # where folders cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(
    path: Path, doing: str, error: type[AcclimateError], *, wait: bool = False
) -> Iterator[None]:
    """Hold the lock file `path`; another process is told what is being done in the folder, or
    waits where it said `wait`. The system releases the lock of a process that dies.

    `error` is raised on a file system without locks.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        raise RunBusy(
            f"another process is {doing} in {folder}; wait for it, or choose another --out"
        ) from None
    except (OSError, NotImplementedError) as problem:
        if isinstance(problem, OSError) and problem.errno not in (errno.ENOLCK, errno.ENOSYS):
            raise write_error(path, problem) from problem
        reason = getattr(problem, "strerror", None) or problem
        raise error(
            f"{folder} cannot be locked ({reason}); choose a folder on a file system that has locks"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: who opened the file before sees that it is gone
            path.unlink()
        lock.release()


@dataclass(frozen=True)
class Fields:
    """Values of a file, taken out by name, each of the kind that it should be."""

    values: Mapping[str, Any]
    path: Path

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        return str(self._of(name, str))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._list(name, str))

    def table(self, name: str) -> dict[str, Any]:
        return dict(self._of(name, dict))

    def tables(self, name: str) -> list["Fields"]:
        return [Fields(values, self.path) for values in self._list(name, dict)]

    def whole(self, name: str, *, least: int = 0, most: int = 1 << 53) -> int:
        """An integer from `least` to `most`; beyond 2⁵³ none is a count of anything."""
        value = self.values.get(name)
        if type(value) is not int or not least <= value <= most:
            raise DamagedFile(self.path)
        return value

    def number(self, name: str) -> float:
        """A finite one."""
        return _finite(self._of(name, int | float), self.path)

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(_finite(value, self.path) for value in self._list(name, int | float))

    def _list(self, name: str, kind: Any) -> list[Any]:
        items = self._of(name, list)
        if not all(isinstance(value, kind) and not isinstance(value, bool) for value in items):
            raise DamagedFile(self.path)
        return list(items)

    def _of(self, name: str, kind: Any) -> Any:
        value = self.values.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise DamagedFile(self.path)
        return value


def _finite(value: float, path: Path) -> float:
    try:
        if math.isfinite(number := float(value)):
            return number
    except OverflowError:  # an integer of hundreds of digits
        pass
    raise DamagedFile(path)


def user_cache(kind: str) -> Path | None:
    """The folder for `kind`: in $ACCLIMATE_CACHE, else in the user's cache; None without a home
    that can be written to."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named).expanduser() / kind
    with suppress(OSError, RuntimeError):
        usual = Path.home() / ".cache" / "acclimate" / kind
        usual.mkdir(parents=True, exist_ok=True)
        if os.access(usual, os.W_OK):
            return usual
    return None
