"""The folder of a run or of a shared Φ: whose it is, whether it is finished, and that only one
process works in it."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from acclimate.core.distributed import World
from acclimate.core.errors import RunBusy, RunError
from acclimate.core.files import write_json
from acclimate.runs.identity import difference
from acclimate.runs.identity import digest_of as digest_of
from acclimate.runs.records import Finished, read

PHI = "embedding.safetensors"
WORKING = ("checkpoint-*.safetensors", "best-*.safetensors")
PROGRESS = ("checkpoint-*.safetensors", PHI, "model.json")


@dataclass(frozen=True)
class Kind:
    """What a folder may hold: how it is called, and the file that says which one it is."""

    name: str
    file: str
    place: str  # how a message calls the setting that names the folder


RUN = Kind("run", "run.json", "--out")
SHARED = Kind("embedding", "embedding.json", "folder")


def refuse_others(out: Path, kind: Kind, wanted: dict[str, Any]) -> None:
    """An error where `out` holds another one of its kind, or something else."""
    path = out / kind.file
    if path.exists():
        found = difference(stored_identity(path), wanted) if _has_progress(out) else None
        if found is not None:
            raise RunError(
                f"{out} holds another {kind.name} ({found}); "
                f"choose another {kind.place}, or repeat the command that made it"
            )
    elif out.exists() and (not out.is_dir() or any(_visible(out))):
        article = "an" if kind is SHARED else "a"
        raise RunError(
            f"{out} is not empty and not {article} {kind.name} folder; choose another {kind.place}"
        )


def finished_before(out: Path, wanted: dict[str, Any]) -> Finished | None:
    """The end of this very run, if it is there; another run's folder is refused."""
    refuse_others(out, RUN, wanted)
    return read(out / "records.jsonl").finished if (out / "model.json").exists() else None


def claim(out: Path, kind: Kind, wanted: dict[str, Any], world: World) -> None:
    """Make `out` this one's folder; what was left behind without a checkpoint is cleared."""
    world.wait()  # every process has looked at the folder before the first one writes
    if world.main and not _has_progress(out):
        for name in ("records.jsonl", "quarantine.jsonl"):
            (out / name).unlink(missing_ok=True)
        write_json(out / kind.file, wanted)
    world.wait()


@contextmanager
def alone(out: Path, world: World) -> Iterator[None]:
    """Hold the folder's lock: a second training in it would spoil both.

    The system lets go of the lock of a process that dies, however it dies.
    """
    if world.main:
        out.mkdir(parents=True, exist_ok=True)
        with _locked(out) as lock:
            try:
                world.wait()
                yield
            finally:
                # While it is still held: whoever opened the file before sees that it is gone.
                Path(lock.name).unlink(missing_ok=True)
    else:
        world.wait()
        yield


def _locked(out: Path) -> TextIO:
    """The folder's lock file, locked."""
    path = out / ".lock"
    while True:
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunBusy(
                f"another process is training in {out}; wait for it, or choose another --out"
            ) from None
        except OSError as error:
            lock.close()
            raise RunError(
                f"{out} cannot be locked ({error.strerror}); choose a folder on a file system that "
                f"has locks"
            ) from None
        if _is_at(lock, path):
            return lock
        lock.close()  # its last holder removed it meanwhile; others would lock a new file


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def tidy(out: Path) -> None:
    """Remove what only a resumed run would need."""
    for pattern in WORKING:
        for path in out.glob(pattern):
            path.unlink(missing_ok=True)


def stored_identity(path: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise RunError(f"{path} is damaged; restore it, or choose another --out") from None
    return stored


def _has_progress(out: Path) -> bool:
    return any(any(out.glob(mark)) for mark in PROGRESS)


def _visible(out: Path) -> Iterator[Path]:
    return (path for path in out.iterdir() if not path.name.startswith("."))
