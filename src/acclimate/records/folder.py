"""The folder of a run, or of a Φ that runs share: whose it is, what it holds, and that only one
process works in it. The one reader and writer of its files, which also knows what a command may
write over: an earlier output of the same kind, and nothing else. Free of torch."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.config import RunConfig, flat, with_settings
from acclimate.core.errors import AcclimateError, ConfigError, DamagedFile, RunError, damage_is
from acclimate.core.files import (
    Fields,
    file_digest,
    locked,
    odd_kind,
    parse_json,
    read_bytes,
    read_document,
    require_regular,
    write_document,
)
from acclimate.core.text import timestamp
from acclimate.records.predictions import Predictions
from acclimate.records.records import Finished, Record, Records, append, end_of, read, require_all

RUN = "run.json"  # what this run is: settings, data digest, domains, classes
EMBEDDING = "embedding.json"  # what this Φ is, if it is learned on its own
RECORDS = "records.jsonl"
PREDICTIONS = "predictions.parquet"  # the scored rows behind the final scores
QUARANTINE = "quarantine.jsonl"  # images that could not be read
PHI = "embedding.safetensors"  # Φ and the training domains' μ, after Step A
CONSISTENCY = "consistency.json"  # how fast μ settles with n; distances between domains
PICTURES = "pictures.safetensors"  # keys of the pictures and groups that were trained on
MODEL = "model.json"  # everything needed to load the weights; its digest of them too
WEIGHTS = "model.safetensors"
DOMAINS = "domains.safetensors"  # μ, σ² and n of every domain, for reports
REHEARSAL = "rehearsal.json"  # what adaptation did at held-out domains, and what follows
CARD = "MODEL_CARD.md"  # of a folder that travels
LABELS = "labels.json"  # labels that are no text, in the order of their values
SITE = "site.safetensors"  # of a folder with one domain's classifier
EXAMPLE = "predict.py"  # of a folder that travels
PRUNED = "pruned.json"  # of a run whose weights a sweep deleted
CHECKPOINT = "checkpoint-{phase}.safetensors"  # this one and the next only while training
BEST = "best-{phase}-{step}.safetensors"
CHECKSUMS = "checksums.json"  # digests of the others; written last
SWEEP = "sweep.json"  # of a sweep's folder: the definition and every job
LOCK = ".lock"
OWN = (
    *(RUN, EMBEDDING, RECORDS, PREDICTIONS, QUARANTINE, PHI, CONSISTENCY, MODEL, WEIGHTS, DOMAINS),
    *(REHEARSAL, PICTURES, CARD, LABELS, SITE, EXAMPLE, PRUNED, CHECKSUMS, SWEEP, LOCK),
    end_of(Path(RECORDS)).name,
)
MOST = 1 << 32  # bytes of a file that is listed
LOOK = 1 << 20  # bytes at both ends of a file that say what it is
_KINDS = {  # by what is in the file: a name can say anything
    "domain state": rb".{8}\{.*domain state",
    "manifest": rb"PAR1.*acclimate\.data\.seal",
    "table of predictions": rb"image,label,confidence,problem",
    # No list of images to label: it may have been filled in.
    "page": rb"<!DOCTYPE html>.*<meta name=\"generator\" content=\"acclimate\">",
    "figure": rb"(\x89PNG|%PDF|<\?xml).*[Mm]atplotlib",
    ".md file": rb"# .*<!-- acclimate report -->",
    ".tex file": rb"% Needs \\usepackage\{booktabs\}",
    ".csv file": rb"rule,dataset,algorithm,method,variant,",
    ".json file": rb"\{\s*\"baseline\": \{\s*\"algorithm\"",
    "log of a watch": rb"\{.*\"kind\": \"watch of a site\"",
    "data sheet": rb"\{\s*\"@context\".*mlcommons\.org/croissant/1",
    ".onnx file": rb".*made_by.{1,8}acclimate",
    ".pt2 file": rb"PK\x03\x04.*made_by.{1,8}acclimate",
    "configuration of Triton's": rb"# Made by acclimate\.",
    ".npz file": rb"PK\x03\x04.*prior\.npy.*temperature\.npy",
}
AGAIN = "restore it, or train again in another folder"


def stored(path: Path) -> dict[str, Any]:
    """The description in one of the JSON files; a missing file is the caller's to explain."""
    with damage_is(RunError, AGAIN):
        return read_document(path)


def write_checksums(folder: Path, *, finished: bool = False) -> None:
    """List a folder's files with their digests, and what a `finished` run writes at its end; where
    the list is, all is.

    Weights carry a digest of their own, which the model's description has too.
    """
    last = (RECORDS, PREDICTIONS, DOMAINS) if finished else ()
    listed = (RUN, MODEL, REHEARSAL, CONSISTENCY, LABELS, SITE, SWEEP, PICTURES, *last)
    digests = {name: _digest(folder / name) for name in listed if (folder / name).exists()}
    write_document(folder / CHECKSUMS, {"files": digests})


def _digest(path: Path) -> str:
    require_regular(path, MOST)
    return file_digest(path)


def check(
    folder: Path, error: type[AcclimateError] = RunError, remedy: str = AGAIN
) -> dict[str, str]:
    """The digests of a folder's files; an error where a file is not the one that was listed."""
    with damage_is(error, remedy):
        digests = Fields(read_document(folder / CHECKSUMS), folder / CHECKSUMS).table("files")
        for name, digest in digests.items():
            path = folder / Path(name).name
            if not path.exists():
                raise error(f"{path} is missing; {remedy}")
            if _digest(path) != digest:
                raise DamagedFile(path)
    return digests


def read_quarantine(path: Path) -> dict[str, str]:
    """The images in a list of those that could not be read, with their reasons; damaged lines are
    left out."""
    reasons = {}
    text = read_bytes(path).decode("utf-8", errors="replace") if path.exists() else ""
    for line in text.split("\n")[:-1]:
        with suppress(ValueError, KeyError, TypeError):
            entry = parse_json(line)
            reasons[str(entry["image"])] = str(entry["reason"])
    return reasons


def is_pruned(folder: Path) -> bool:
    """Did a sweep delete the weights of this run?"""
    return (folder / PRUNED).exists() and not (folder / WEIGHTS).exists()


@dataclass(frozen=True)
class RunFolder:
    path: Path
    shared: bool = False  # the folder of a Φ that runs share
    listen: Callable[[Record], None] | None = None  # is told what was appended

    @property
    def name(self) -> str:
        """What it holds, in a word."""
        return "embedding" if self.shared else "run"

    @property
    def exists(self) -> bool:
        """Does it say what it holds?"""
        return self.identity_file.exists()

    @property
    def identity_file(self) -> Path:
        return self.path / (EMBEDDING if self.shared else RUN)

    @property
    def quarantine(self) -> Path:
        return self.path / QUARANTINE

    @property
    def phi(self) -> Path:
        return self.path / PHI

    def listed(self, name: str) -> Path | None:
        """The file of that name, as the run wrote it; None where a run that is far enough for its
        checksums has none."""
        known = check(self.path) if (self.path / CHECKSUMS).exists() else {}
        return self.path / name if name in known else None

    def rehearsal(self) -> dict[str, Any] | None:
        """What a rehearsal measured; None where there was none."""
        path = self.listed(REHEARSAL)
        return None if path is None else stored(path)

    def checkpoint(self, phase: str) -> Path:
        return self.path / CHECKPOINT.format(phase=phase)

    def checkpoints(self) -> Iterator[Path]:
        return self.path.glob(CHECKPOINT.format(phase="*"))

    def best(self, phase: str, step: int) -> Path:
        # By step: a checkpoint then names the very weights that it means.
        return self.path / BEST.format(phase=phase, step=step)

    def all_best(self, phase: str = "*") -> Iterator[Path]:
        return self.path.glob(BEST.format(phase=phase, step="*"))

    def identity(self) -> dict[str, Any]:
        """What the run is: its settings, data, domains and classes."""
        try:
            identity = stored(self.identity_file)
        except FileNotFoundError:
            raise RunError(f"{self.path}: no run in it; train one with `acclimate train`") from None
        with damage_is(RunError, AGAIN):
            facts = Fields(identity, self.identity_file)
            facts.text("data"), facts.texts("train_domains")
            config = Fields(facts.table("config"), self.identity_file)
            # A folder of Φ alone has not all of these.
            for part in {"adapt", "data", "embedding", "train"} & config.values.keys() | {"model"}:
                config.table(part)
        return identity

    @property
    def algorithm(self) -> str:
        with damage_is(RunError, AGAIN):
            return Fields(self.identity()["config"], self.identity_file).text("algorithm")

    def records(self) -> Records:
        """All of them, as this run wrote them."""
        self.listed(RECORDS)
        require_all(self.path / RECORDS)
        return self._read()

    def append(self, record: Record) -> None:
        append(self.path / RECORDS, record, self.whose)
        if self.listen is not None:
            self.listen(record)

    def _read(self) -> Records:
        return read(self.path / RECORDS, self.whose)

    @property
    def whose(self) -> str:
        """The digest of its description, by which its files know it."""
        return file_digest(self.identity_file) if self.exists else ""

    @property
    def finished(self) -> Finished | None:
        """The end of the run; None as long as it goes on, to the checksums of its records."""
        return None if self.listed(RECORDS) is None else self._read().finished

    def complete(self) -> bool:
        """Is what the folder is for there: the end of the run, or Φ?"""
        return self.phi.exists() if self.shared else self.finished is not None

    def predictions(self) -> Predictions | None:
        """The rows behind the final scores; None where there are none yet."""
        path = self.listed(PREDICTIONS)
        with damage_is(RunError, AGAIN):
            return None if path is None else Predictions.read(path)

    def quarantined(self) -> tuple[tuple[str, str], ...]:
        """(image, reason) of what could not be read."""
        return tuple(read_quarantine(self.quarantine).items())

    def consistency(self) -> dict[str, Any] | None:
        """What was measured of μ's error; None where nothing was."""
        path = self.listed(CONSISTENCY)
        return None if path is None else stored(path)

    def refuse_others(self, wanted: dict[str, Any]) -> None:
        """An error where it holds another one of its kind, or something else."""
        if self.exists:
            other = difference(self.identity(), wanted) if self._has_progress else None
            if other is not None:
                raise RunError(
                    f"{self.path} holds another {self.name} ({other}); choose another --out, or "
                    f"repeat the command that made it"
                )
        elif holds_something(self.path):
            raise RunError(
                f"{self.path} is not empty and holds no {self.name}; choose another --out"
            )

    def take(self, wanted: dict[str, Any]) -> None:
        """Make it this one's folder; what was left behind without a checkpoint is cleared."""
        if not self._has_progress:
            records = self.path / RECORDS
            for path in (records, end_of(records), self.quarantine):
                path.unlink(missing_ok=True)
            write_document(self.identity_file, wanted)

    def locked(self) -> AbstractContextManager[None]:
        """Keep others out: a second training in the folder would spoil both."""
        return locked(self.path / LOCK, "training", RunError)

    def tidy(self) -> None:
        """Remove what only a resumed run would need."""
        for path in (*self.checkpoints(), *self.all_best()):
            path.unlink(missing_ok=True)

    def prune(self) -> None:
        """Delete the weights, and write down first that they were deleted."""
        weights = (self.path / WEIGHTS, self.phi)
        paths = [path for path in weights if path.exists()]
        if not paths:
            return
        facts = {"time": timestamp(), "deleted": [path.name for path in paths]}
        write_document(self.path / PRUNED, facts)
        for path in paths:
            path.unlink()

    def settled(self, config: RunConfig) -> RunConfig:
        """`config` with what a run that began here decided by its device, wherever it goes on."""
        if not self.exists or not self._has_progress:
            return config
        began, decided = self.identity()["config"], {}
        if config.model.freeze == "auto":
            part = Fields(began["model"], self.identity_file)
            with damage_is(RunError, AGAIN):
                decided["model.freeze"] = part.text("freeze")
        if config.adapt.depth == "auto" and "adapt" in began:  # a folder of Φ alone has none
            decided["adapt.depth"] = began["adapt"].get("depth", "auto")
        return with_settings(config, decided)

    @property
    def _has_progress(self) -> bool:
        marks = (*self.checkpoints(), self.phi, self.path / CHECKSUMS)
        return any(path.exists() for path in marks)


def is_own_file(path: Path) -> bool:
    """Whether a run, a model or a sweep in the folder of `path` calls a file of its own so."""
    whose = any((path.parent / name).exists() for name in (RUN, EMBEDDING, MODEL, CHECKSUMS))
    passing = path.match(CHECKPOINT.format(phase="*")) or path.match("best-*-*.safetensors")
    return whose and (path.name in OWN or passing)


def check_out(path: Path, kind: str, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse a `path` at which a file of this `kind` would replace what nobody meant to lose: one
    of the `inputs`, a file of a run, or anything that is no earlier output of the same kind."""
    path, remedy = path.expanduser(), "choose another file to write"
    real = Path(os.path.realpath(path))
    if is_own_file(real):
        raise ConfigError(f"{path} belongs to what {real.parent} holds; {remedy}")
    if not path.exists():
        return
    if any(one is not None and one.exists() and path.samefile(one) for one in inputs):
        raise ConfigError(f"{path} is an input of this command; {remedy}")
    if (odd := odd_kind(path)) is not None:
        raise ConfigError(f"{path} is {odd}, not a file; {remedy}")
    if not is_output(path, kind):
        raise ConfigError(f"{path} holds something else than an earlier {kind}; {remedy}")


def is_output(path: Path, kind: str) -> bool:
    """Whether a file is empty, or of the `kind`."""
    with path.open("rb") as file:
        ends = file.read(LOOK)
        file.seek(max(file.tell(), path.stat().st_size - LOOK))
        ends += file.read(LOOK)
    return not ends or re.match(_KINDS.get(kind, rb"(?!)"), ends, re.DOTALL) is not None


def runs_below(folder: Path) -> list[Path]:
    """Every run folder below `folder`, in the order of their names, but for hidden ones."""
    runs = (path.parent for path in folder.rglob(RUN))
    return sorted(
        run for run in runs if not any(part[0] == "." for part in run.relative_to(folder).parts)
    )


def holds_something(folder: Path) -> bool:
    """Is it anything but a folder that is empty, or not there yet?"""
    if not folder.is_dir():
        return folder.exists()
    return any(not path.name.startswith(".") for path in folder.iterdir())


def difference(stored: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """The first thing in which two identities differ, in words."""
    if stored["data"] != wanted["data"]:
        return "its data differ"
    old, new = (flat(one["config"]) for one in (stored, wanted))
    if "weights" in stored:  # by content, wherever the file lay
        old.pop("model.weights", None)
        new.pop("model.weights", None)
        if "weights" in wanted and stored["weights"] != wanted["weights"]:
            return "its model.weights has another content"
    # The kind of embedding before the settings that only one kind has.
    for key in sorted({*old, *new}, key=lambda name: (name != "embedding.name", name)):
        if old.get(key) != new.get(key):
            return f"its {key} is {old.get(key)!r}, not {new.get(key)!r}"
    same_domains = stored["train_domains"] == wanted["train_domains"]
    return None if same_domains else "its training domains differ"
