"""A sweep as data: what was asked for, the jobs that takes, and what its folder holds of each.

SWEEP/
  sweep.json           the definition and every job; the only reader and writer is here
  runs/JOB/            the run folder of a job
  embeddings/ID/       a Φ that several jobs share
  failures/JOB.json    why a job failed, with its traceback
  labels/DIGEST.json   rows of each class in each domain, for the report
  logs/, slurm/        what workers printed
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from acclimate.core.errors import SweepError
from acclimate.core.files import write_json
from acclimate.runs.records import read

FORMAT = "acclimate-sweep-1"
SWEEP_FILE = "sweep.json"
RULES = {
    "training-domains": "validation splits of the training domains",
    "validation-domains": "validation domains, which no run trains on",
    "leave-one-out": "each further domain held out in turn (the paper's)",
    "k-fold": "each further fold of domains held out in turn",
    "oracle": "the test domains themselves: a ceiling, not a method",
}
CROSS_VALIDATED = frozenset({"leave-one-out", "k-fold"})
State = Literal["done", "failed", "started", "waiting"]
Group = tuple[str, ...]  # domains that are held out together, in alphabetical order


@dataclass(frozen=True, kw_only=True)
class DataSet:
    name: str
    digest: str
    source: str  # where it lay when the sweep was made; no part of what it is
    domains: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an ablation varies: each variant's place, `None` where variants have no order."""

    label: str
    places: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class EmbeddingJob:
    """Step A for one training set and seed; `config` is that of any job that needs it."""

    id: str
    dataset: str
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run. One group of held-out domains: a run that is scored on them. Two: a run that only
    helps to choose among draws, for either group with the score on the other."""

    id: str  # also the name of its folder
    dataset: str
    algorithm: str
    variant: str = ""  # "" where nothing else is varied
    groups: tuple[Group, ...]
    draw: int  # 0: the default settings
    trial: int
    config: Mapping[str, Any]  # nested, as `from_dict(RunConfig, …)` takes it
    needs: str | None = None  # id of the EmbeddingJob

    @property
    def held_out(self) -> Group:
        return tuple(sorted(name for group in self.groups for name in group))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    title: str
    rule: str
    baseline: str
    datasets: tuple[DataSet, ...]
    embeddings: tuple[EmbeddingJob, ...]
    jobs: tuple[Job, ...]
    axis: Axis | None = None

    def dataset(self, name: str) -> DataSet:
        return next(found for found in self.datasets if found.name == name)


def job_digest(data_digest: str, config: Mapping[str, Any], weights_digest: str = "") -> str:
    """What makes a job the same job: its data and settings, wherever data and weights lie."""
    model = {**config.get("model", {}), "weights": weights_digest}
    settings = {**config, "model": model}
    text = json.dumps([FORMAT, data_digest, settings], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def job_name(parts: Iterable[str], digest: str) -> str:
    """A folder name that people can read and that no other job has."""
    words = [re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.")[:40] for part in parts]
    return "-".join([*(word for word in words if word), digest[:10]])


def runs_needed(rule: str, groups: int, *, folds: int | None = None, draws: int = 1) -> int:
    """Runs that `rule` takes per algorithm and trial.

    `groups` are held out in turn. Cross-validation holds out pairs of them as well; `folds` says
    that it is instead over that many folds of each group's training domains. With one draw there
    is nothing to choose, and only the scored runs are needed.
    """
    if rule not in CROSS_VALIDATED or draws == 1:
        return groups * draws
    further = groups * folds if folds is not None else groups * (groups - 1) // 2
    return draws * (groups + further)


def write_sweep(folder: Path, sweep: Sweep) -> None:
    write_json(folder / SWEEP_FILE, {"format": FORMAT, **asdict(sweep)})


def read_sweep(folder: Path) -> Sweep:
    path = folder / SWEEP_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        version = stored.pop("format")
    except FileNotFoundError:
        raise SweepError(
            f"{folder}: no sweep in it (no {SWEEP_FILE}); make one with `acclimate sweep`"
        ) from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise SweepError(f"{path} is damaged; restore it, or choose another --out") from None
    if version != FORMAT:
        raise SweepError(
            f"{path}: format {version}, this version reads {FORMAT}; "
            f"use the version of acclimate that wrote it"
        )
    try:
        return _sweep(stored)
    except (KeyError, TypeError, AttributeError):
        raise SweepError(f"{path} is damaged; restore it, or choose another --out") from None


def _sweep(stored: dict[str, Any]) -> Sweep:
    axis = stored.pop("axis")
    return Sweep(
        datasets=tuple(
            DataSet(**{**found, "domains": tuple(found["domains"])})
            for found in stored.pop("datasets")
        ),
        embeddings=tuple(EmbeddingJob(**found) for found in stored.pop("embeddings")),
        jobs=tuple(
            Job(**{**found, "groups": tuple(map(tuple, found["groups"]))})
            for found in stored.pop("jobs")
        ),
        axis=None if axis is None else Axis(**axis),
        **stored,
    )


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP_FILE).is_file()


def run_folder(sweep: Path, job: str) -> Path:
    return sweep / "runs" / job


def embedding_folder(sweep: Path, embedding: str) -> Path:
    return sweep / "embeddings" / embedding


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a job (or the EmbeddingJob of that id) failed the last time it was tried."""

    job: str
    error: str  # one line
    traceback: str
    time: str
    attempts: int


def failure_path(sweep: Path, job: str) -> Path:
    return sweep / "failures" / f"{job}.json"


def read_failure(sweep: Path, job: str) -> Failure | None:
    path = failure_path(sweep, job)
    if not path.exists():
        return None
    try:
        return Failure(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return Failure(job=job, error=f"{path.name} is damaged", traceback="", time="", attempts=1)


def write_failure(sweep: Path, failure: Failure) -> None:
    write_json(failure_path(sweep, failure.job), asdict(failure))


def job_state(sweep: Path, job: str) -> State:
    """From what is on disk alone, so that any process, at any time, sees the same."""
    folder = run_folder(sweep, job)
    if (folder / "model.json").exists() and read(folder / "records.jsonl").finished is not None:
        return "done"
    if failure_path(sweep, job).exists():
        return "failed"
    return "started" if (folder / "run.json").exists() else "waiting"


def embedding_state(sweep: Path, embedding: str) -> State:
    folder = embedding_folder(sweep, embedding)
    if (folder / "embedding.safetensors").exists():
        return "done"
    if failure_path(sweep, embedding).exists():
        return "failed"
    return "started" if folder.exists() else "waiting"


def targets(jobs: Sequence[Job]) -> list[Group]:
    """The groups that runs are scored on, each once, in the order of the jobs."""
    return list(dict.fromkeys(job.groups[0] for job in jobs if len(job.groups) == 1))
