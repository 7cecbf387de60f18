"""The folder of a sweep: the one reader and writer of its files.

SWEEP/
  sweep.json           the definition and every job
  runs/JOB/            the run folder of a job
  embeddings/ID/       a Φ that several jobs share
  failures/JOB.json    why a job failed, with its traceback
  labels/DIGEST.json   rows of each class in each domain, for the report
  logs/, slurm/        what workers printed
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acclimate.config import from_dict
from acclimate.core.errors import AcclimateError, DamagedFile, SweepError, damage_is
from acclimate.core.files import clear_temporary, locked, read_document, write_document
from acclimate.records.folder import CHECKSUMS, LOCK, RunFolder, check, write_checksums
from acclimate.records.folder import SWEEP as DEFINITION
from acclimate.results.protocol import EmbeddingJob, Job, Sweep

if TYPE_CHECKING:
    from acclimate.data.manifest import Manifest

State = Literal["done", "failed", "started", "waiting"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a job (or the EmbeddingJob of that id) failed the last time it was tried."""

    job: str
    error: str  # one line
    traceback: str
    time: str
    attempts: int


@dataclass(frozen=True)
class DomainLabels:
    role: str | None
    counts: tuple[int, ...]  # rows of each class
    group: str = ""  # such as its continent, where the data say so


@dataclass(frozen=True)
class LabelCounts:
    """How many rows each class has in each domain of a data set."""

    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, DomainLabels]

    @classmethod
    def of(cls, name: str, manifest: "Manifest") -> "LabelCounts":
        from acclimate.data.inspection import label_counts  # a report needs no data

        roles, groups = manifest.roles(), manifest.groups()
        counts = zip(manifest.all_domains, label_counts(manifest).tolist(), strict=True)
        domains = {
            domain: DomainLabels(roles.get(domain), tuple(row), groups.get(domain, ""))
            for domain, row in counts
        }
        return cls(name, manifest.classes, domains)


@dataclass(frozen=True)
class SweepFolder:
    path: Path

    @property
    def exists(self) -> bool:
        """Is there a sweep in it?"""
        return (self.path / DEFINITION).is_file()

    @property
    def embeddings(self) -> Path:
        return self.path / "embeddings"

    @property
    def failures(self) -> Path:
        return self.path / "failures"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def slurm(self) -> Path:
        return self.path / "slurm"

    def run(self, job: str) -> RunFolder:
        return RunFolder(self.path / "runs" / job)

    def embedding(self, embedding: str) -> RunFolder:
        return RunFolder(self.embeddings / embedding, shared=True)

    def failure_file(self, job: str) -> Path:
        return self.failures / f"{job}.json"

    def labels_file(self, data_digest: str) -> Path:
        return self._labels / f"{data_digest[:16]}.json"

    def write(self, sweep: Sweep) -> None:
        write_document(self.path / DEFINITION, asdict(sweep))
        write_checksums(self.path)

    def read(self) -> Sweep:
        path = self.path / DEFINITION
        remedy = "restore it, or choose another --out"
        if (self.path / CHECKSUMS).exists():
            check(self.path, SweepError, remedy)
        try:
            with damage_is(SweepError, remedy):
                stored = read_document(path)
        except FileNotFoundError:
            raise SweepError(
                f"{self.path}: no sweep in it (no {path.name}); make one with `acclimate sweep`"
            ) from None
        with damage_is(SweepError, remedy):
            try:
                return _sweep(stored)
            except (AcclimateError, KeyError, TypeError, ValueError, AttributeError):
                raise DamagedFile(path) from None

    def failure(self, job: str) -> Failure | None:
        path = self.failure_file(job)
        if not path.exists():
            return None
        try:
            return Failure(**read_document(path))
        except (AcclimateError, OSError, TypeError):
            error = f"{path.name} is damaged"
            return Failure(job=job, error=error, traceback="", time="", attempts=1)

    def write_failure(self, failure: Failure) -> None:
        write_document(self.failure_file(failure.job), asdict(failure))

    def forget_failure(self, job: str) -> None:
        self.failure_file(job).unlink(missing_ok=True)

    def job_state(self, job: str) -> State:
        """From what is on disk alone, so that any process, at any time, sees the same."""
        run = self.run(job)
        return self._state(job, run, begun=run.exists)

    def embedding_state(self, embedding: str) -> State:
        shared = self.embedding(embedding)
        return self._state(embedding, shared, begun=shared.path.exists())

    def _state(self, id: str, place: RunFolder, *, begun: bool) -> State:
        if place.complete():
            return "done"
        if self.failure_file(id).exists():
            return "failed"
        return "started" if begun else "waiting"

    def labels(self) -> Iterator[LabelCounts]:
        """Label counts of each data set. Unreadable files are skipped: only a plot needs them."""
        for path in sorted(self._labels.glob("*.json")):
            with suppress(AcclimateError, OSError, ValueError, KeyError, TypeError, AttributeError):
                yield from_dict(LabelCounts, read_document(path), where=path.name)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other drivers out."""
        return locked(self.path / LOCK, "running the sweep", SweepError)

    def clear_temporary(self) -> None:
        """Remove what a killed driver left of files it was writing; runs are their workers'."""
        for place in (self.path, self.failures, self._labels):
            clear_temporary(place)

    @property
    def _labels(self) -> Path:
        return self.path / "labels"


def sweeps_below(folder: Path) -> list[Path]:
    """The sweeps further down; `folder` itself is none of them."""
    sweeps = sorted(path.parent for path in folder.rglob(DEFINITION))
    return [sweep for sweep in sweeps if sweep != folder]


def _sweep(stored: Mapping[str, Any]) -> Sweep:
    """A stored sweep; whatever it raises else is damage."""
    sweep = from_dict(Sweep, stored, where=DEFINITION)
    everything: list[Job | EmbeddingJob] = [*sweep.embeddings, *sweep.jobs]
    for one in everything:
        # A name that is safe as that of a folder: no way leads out of the sweep.
        if not one.id.strip(".") or "/" in one.id or "\0" in one.id:
            raise ValueError(one.id)
        methods = one.config.get("adapt", {}).get("methods", [])  # rows of tables
        if not (isinstance(methods, list) and all(isinstance(name, str) for name in methods)):
            raise TypeError(methods)
    if not {job.dataset for job in sweep.jobs} <= {data.name for data in sweep.datasets}:
        raise KeyError("dataset")
    return sweep
