"""The folder of a run, or of a Φ that runs share: whose it is, what it holds, and that only one
process works in it. The one reader and writer of its files; free of torch."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate.config import RunConfig
from acclimate.core import layout
from acclimate.core.errors import RunError, damage_is
from acclimate.core.files import Fields, locked, parse_json, write_document
from acclimate.runs.identity import difference
from acclimate.runs.records import Finished, Record, Records, append, read


@dataclass(frozen=True)
class Kind:
    """What a folder may hold: how it is called, and the file that says which one it is."""

    name: str
    folder: str
    file: str
    place: str  # how a message calls the setting that names the folder


RUN = Kind("run", "a run folder", layout.RUN, "--out")
SHARED = Kind("embedding", "an embedding folder", layout.EMBEDDING, "folder")


@dataclass(frozen=True)
class RunFolder:
    path: Path
    kind: Kind = RUN

    @property
    def exists(self) -> bool:
        """Does it say what it holds?"""
        return self.identity_file.exists()

    @property
    def identity_file(self) -> Path:
        return self.path / self.kind.file

    @property
    def records_file(self) -> Path:
        return self.path / layout.RECORDS

    @property
    def quarantine(self) -> Path:
        return self.path / layout.QUARANTINE

    @property
    def phi(self) -> Path:
        return self.path / layout.PHI

    @property
    def consistency_file(self) -> Path:
        return self.path / layout.CONSISTENCY

    @property
    def domain_map(self) -> Path:
        return self.path / layout.DOMAINS

    def rehearsal(self) -> dict[str, Any] | None:
        """What a rehearsal found; None where there was none."""
        path = self.path / layout.REHEARSAL
        return layout.stored(path) if path.exists() else None

    @property
    def card(self) -> Path:
        return self.path / layout.CARD

    def checkpoint(self, phase: str) -> Path:
        return self.path / layout.CHECKPOINT.format(phase=phase)

    def checkpoints(self) -> Iterator[Path]:
        return self.path.glob(layout.CHECKPOINT.format(phase="*"))

    def best(self, phase: str, step: int) -> Path:
        # By step: a checkpoint then names the very weights that it means.
        return self.path / layout.BEST.format(phase=phase, step=step)

    def all_best(self, phase: str = "*") -> Iterator[Path]:
        return self.path.glob(layout.BEST.format(phase=phase, step="*"))

    def identity(self) -> dict[str, Any]:
        """What the run is: its settings, data, domains and classes."""
        try:
            return layout.stored(self.identity_file)
        except FileNotFoundError:
            raise RunError(f"{self.path}: no run in it; train one with `acclimate train`") from None

    def comparable(self) -> dict[str, Any]:
        """The same, with all that tells it from another one."""
        found = self.identity()
        with damage_is(RunError, layout.AGAIN):
            facts = Fields(found, self.identity_file)
            facts.text("data"), facts.texts("train_domains")
            config = Fields(facts.table("config"), self.identity_file)
            config.table("model")
            for part in ("adapt", "data", "embedding", "train"):
                if part in config.values:  # a folder of Φ alone has not all of them
                    config.table(part)
        return found

    @property
    def algorithm(self) -> str:
        try:
            return str(self.identity()["config"]["algorithm"])
        except (KeyError, TypeError):
            raise layout.damaged(self.identity_file) from None

    def records(self) -> Records:
        """All of them; those of a finished run are compared with its checksums first."""
        if (self.path / layout.CHECKSUMS).exists():
            layout.check(self.path)
        return read(self.records_file)

    def append(self, record: Record) -> None:
        append(self.records_file, record)

    @property
    def finished(self) -> Finished | None:
        """The end of the run; None as long as it goes on. A record that the checksums do not list
        was written by a process that was killed before it could write them."""
        if not (self.path / layout.CHECKSUMS).exists():
            return None
        return read(self.records_file, first=layout.check(self.path)).finished

    def complete(self) -> bool:
        """Is what the folder is for there: the end of the run, or Φ?"""
        return self.phi.exists() if self.kind is SHARED else self.finished is not None

    def quarantined(self) -> tuple[tuple[str, str], ...]:
        """(image, reason) of what could not be read; a damaged line is an entry of its own."""
        if not self.quarantine.exists():
            return ()
        entries = []
        text = self.quarantine.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            try:
                entry = parse_json(line)
                entries.append((str(entry["image"]), str(entry["reason"])))
            except (ValueError, KeyError, TypeError):
                place = f"{self.quarantine.name}, line {number}"
                entries.append((place, "the entry itself cannot be read"))
        return tuple(entries)

    def consistency(self) -> dict[str, Any] | None:
        """What was measured of μ's error; a damaged file is as good as none."""
        try:
            return layout.stored(self.consistency_file)
        except (OSError, RunError):
            return None

    def write_consistency(self, measured: Mapping[str, Any]) -> None:
        write_document(self.consistency_file, measured)

    def refuse_others(self, wanted: dict[str, Any]) -> None:
        """An error where it holds another one of its kind, or something else."""
        if self.exists:
            found = difference(self.comparable(), wanted) if self._has_progress else None
            if found is not None:
                raise RunError(
                    f"{self.path} holds another {self.kind.name} ({found}); "
                    f"choose another {self.kind.place}, or repeat the command that made it"
                )
        elif holds_something(self.path):
            raise RunError(
                f"{self.path} is not empty and not {self.kind.folder}; "
                f"choose another {self.kind.place}"
            )

    def take(self, wanted: dict[str, Any]) -> None:
        """Make it this one's folder; what was left behind without a checkpoint is cleared."""
        if not self._has_progress:
            for path in (self.records_file, self.quarantine):
                path.unlink(missing_ok=True)
            write_document(self.identity_file, wanted)

    def locked(self) -> AbstractContextManager[None]:
        """Keep others out: a second training in the folder would spoil both."""
        return locked(self.path / layout.LOCK, "training", RunError)

    def tidy(self) -> None:
        """Remove what only a resumed run would need."""
        for path in (*self.checkpoints(), *self.all_best()):
            path.unlink(missing_ok=True)

    def prune(self) -> int:
        """Delete the weights, and say so; the bytes that this frees."""
        weights = (self.path / layout.WEIGHTS, self.phi)
        paths = [path for path in weights if path.exists()]
        if not paths:
            return 0
        time = datetime.now(UTC).isoformat(timespec="seconds")
        deleted = [path.name for path in paths]
        write_document(self.path / layout.PRUNED, {"time": time, "deleted": deleted})
        freed = 0
        for path in paths:
            facts = path.stat()
            freed += facts.st_size if facts.st_nlink == 1 else 0  # another name may keep the bytes
            path.unlink()
        return freed

    def settled(self, config: RunConfig) -> RunConfig:
        """`config` with what a run that began here decided by its device, wherever it goes on."""
        if not self.exists or not self._has_progress:
            return config
        began = self.comparable()["config"]
        if config.model.freeze == "auto":
            config = replace(config, model=replace(config.model, freeze=began["model"]["freeze"]))
        if config.adapt.depth == "auto":
            depth = began.get("adapt", {}).get("depth", "auto")  # a folder of Φ alone has none
            config = replace(config, adapt=replace(config.adapt, depth=depth))
        return config

    @property
    def _has_progress(self) -> bool:
        marks = (*self.checkpoints(), self.phi, self.path / layout.CHECKSUMS)
        return any(path.exists() for path in marks)


def runs_below(folder: Path) -> list[Path]:
    """Every run folder below `folder`, in the order of their names, but for hidden ones."""
    found = (path.parent for path in folder.rglob(layout.RUN))
    return sorted(run for run in found if not _hidden(run.relative_to(folder)))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def holds_something(folder: Path) -> bool:
    """Is it anything but a folder that is empty, or not there yet?"""
    if not folder.is_dir():
        return folder.exists()
    return any(not path.name.startswith(".") for path in folder.iterdir())
