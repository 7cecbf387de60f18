"""One process at a time in a folder, held by a lock that dies with its holder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from acclimate.core.errors import AcclimateError, RunBusy


@contextmanager
def locked(
    path: Path, doing: str, error: type[AcclimateError], *, remove: bool = True, wait: bool = False
) -> Iterator[None]:
    """Hold the lock file `path`; whoever comes meanwhile is told what is being done in its folder,
    or with `wait` has to wait.

    The system lets go of the lock of a process that dies, however it dies; the file itself means
    nothing, and is removed or left. `error` is raised where there are no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path, doing, error, 0 if wait else fcntl.LOCK_NB):
        try:
            yield
        finally:
            if remove:  # while it is held: whoever opened the file before sees that it is gone
                path.unlink(missing_ok=True)


def _lock(path: Path, doing: str, error: type[AcclimateError], how: int) -> TextIO:
    folder = path.parent
    while True:
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | how)
        except BlockingIOError:
            lock.close()
            raise RunBusy(
                f"another process is {doing} in {folder}; wait for it, or choose another --out"
            ) from None
        except OSError as problem:
            lock.close()
            raise error(
                f"{folder} cannot be locked ({problem.strerror}); choose a folder on a file system "
                f"that has locks"
            ) from None
        if _is_at(lock, path):
            return lock
        lock.close()  # its last holder removed it meanwhile; others would lock a new file


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
