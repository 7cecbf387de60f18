"""The folder of a run: whose it is, whether it is finished, and that only one works in it."""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acclimate import __version__
from acclimate.config import as_dict, flat
from acclimate.distributed import World
from acclimate.errors import RunError
from acclimate.files import write_json
from acclimate.plan import Plan
from acclimate.records import Finished, read

WORKING = ("checkpoint-*.safetensors", "best-*.safetensors")
PROGRESS = ("checkpoint-*.safetensors", "embedding.safetensors", "model.json")


def identity(plan: Plan) -> dict[str, Any]:
    """What makes a run the same run: its settings and its data."""
    return {
        "format": "acclimate-run-1",
        "version": __version__,
        "config": as_dict(plan.config),
        "data": plan.manifest.digest(),
        "source": plan.manifest.source,
        "classes": list(plan.classes),
        "train_domains": list(plan.train_domains),
        "val_domains": list(plan.val_domains),
        "test_domains": list(plan.test_domains),
    }


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def finished_before(out: Path, wanted: dict[str, Any]) -> Finished | None:
    """The end of this very run, if it is there; another run's folder is refused."""
    path = out / "run.json"
    if path.exists():
        stored = _stored(path)
        for part in ("data", "config"):
            if _has_progress(out) and stored[part] != wanted[part]:
                raise RunError(
                    f"{out} holds another run ({_difference(part, stored, wanted)}); "
                    f"choose another --out, or repeat the command that made it"
                )
        return read(out / "records.jsonl").finished if (out / "model.json").exists() else None
    if out.exists() and (not out.is_dir() or any(_visible(out))):
        raise RunError(f"{out} is not empty and not a run folder; choose another --out")
    return None


def claim(out: Path, wanted: dict[str, Any], world: World) -> None:
    """Make `out` this run's folder; what a run without a checkpoint left behind is cleared."""
    world.wait()  # every process has looked at the folder before the first one writes
    if world.main and not _has_progress(out):
        for name in ("records.jsonl", "quarantine.jsonl"):
            (out / name).unlink(missing_ok=True)
        write_json(out / "run.json", wanted)
    world.wait()


@contextmanager
def alone(out: Path, world: World) -> Iterator[None]:
    """Hold the folder's lock: a second training in it would spoil both."""
    if not world.main:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another process is training in {out}; wait for it, or choose another --out"
            ) from None
        try:
            yield
        finally:
            (out / ".lock").unlink(missing_ok=True)


def tidy(out: Path) -> None:
    """Remove what only a resumed run would need."""
    for pattern in WORKING:
        for path in out.glob(pattern):
            path.unlink(missing_ok=True)


def _has_progress(out: Path) -> bool:
    return any(any(out.glob(mark)) for mark in PROGRESS)


def _visible(out: Path) -> Iterator[Path]:
    return (path for path in out.iterdir() if not path.name.startswith("."))


def _stored(path: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise RunError(f"{path} is damaged; restore it, or choose another --out") from None
    return stored


def _difference(part: str, stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    if part == "data":
        return "its data differ"
    old, new = flat(stored["config"]), flat(wanted["config"])
    key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
    return f"its {key} is {old.get(key)!r}, not {new.get(key)!r}"
