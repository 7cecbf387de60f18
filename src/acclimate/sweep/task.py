"""One job, as a worker does it, and how far it is. The same code under every launcher."""

import errno
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from acclimate.config import RunConfig, from_dict
from acclimate.core.errors import AcclimateError, RecordError, RunBusy, RunError, SweepError
from acclimate.core.files import clear_temporary
from acclimate.core.layout import is_pruned
from acclimate.data.manifest import Manifest
from acclimate.results.sweep_folder import Failure, SweepFolder
from acclimate.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker needs to know, in values that JSON holds."""

    sweep: str  # the sweep's folder
    kind: Literal["embedding", "run"]
    id: str
    data: str  # where the data lie
    digest: str  # what they must be
    config: Mapping[str, Any]
    needs: str | None = None  # the embedding to start from; of an embedding, the run
    device: str = "auto"
    threads: int = 0  # of torch on the CPU; 0: as many as it likes

    @property
    def folder(self) -> RunFolder:
        here = SweepFolder(Path(self.sweep))
        return here.embedding(self.id) if self.kind == "embedding" else here.run(self.id)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """How it went. "busy": another process is at it. "full": the disk is, so nothing can go on."""

    state: Literal["done", "busy", "failed", "full"]
    error: str = ""  # one line
    traceback: str = ""


def perform(task: Task) -> TaskResult:
    """Do the job, or go on with it. A failure is written down and returned, never raised."""
    try:
        _train(task)
        clear_temporary(task.folder.path)
        SweepFolder(Path(task.sweep)).forget_failure(task.id)
        return TaskResult(state="done")
    except RunBusy as error:
        return TaskResult(state="busy", error=str(error))
    except Exception as error:
        if _disk_full(error):
            return TaskResult(state="full", error=_line(error))
        return note_failure(Path(task.sweep), task.id, _line(error), traceback.format_exc())


def note_failure(sweep: Path, job: str, error: str, trace: str = "") -> TaskResult:
    """Keep a failure in the sweep's folder, counting how often the job has been tried."""
    before = SweepFolder(sweep).failure(job)
    failure = Failure(
        job=job,
        error=error,
        traceback=trace,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        attempts=1 if before is None else before.attempts + 1,
    )
    try:
        SweepFolder(sweep).write_failure(failure)
    except OSError as problem:
        return TaskResult(state="full" if _disk_full(problem) else "failed", error=_line(problem))
    return TaskResult(state="failed", error=error, traceback=trace)


def _train(task: Task) -> None:
    import torch

    from acclimate.core.graphs import give_back
    from acclimate.runs.training import train, train_embedding

    if task.threads:
        torch.set_num_threads(task.threads)
    try:
        manifest = _opened(task.data, task.digest)
        config = from_dict(RunConfig, task.config, where=task.id)
        if task.kind == "embedding":
            made_of = _weights_of(task)
            train_embedding(config, manifest, task.folder.path, device=task.device, erm=made_of)
            return
        shared = None
        if task.needs is not None:
            shared = SweepFolder(Path(task.sweep)).embedding(task.needs).path
        train(config, manifest, task.folder.path, device=task.device, embedding=shared)
    finally:
        give_back()  # others may share the GPU


def _weights_of(task: Task) -> Path | None:
    """The run whose weights an embedding is made of; None where it has to learn its own."""
    if task.needs is None:
        return None
    run = SweepFolder(Path(task.sweep)).run(task.needs)
    return run.path if run.complete() and not is_pruned(run.path) else None


@lru_cache(maxsize=1)
def _opened(data: str, digest: str) -> Manifest:
    """The last data set stays open: the next job most likely has the same."""
    manifest = Manifest.open(Path(data))
    if manifest.digest() != digest:
        raise SweepError(
            f"{data} is not the data that this sweep was made with (another digest); "
            f"restore them, or start a sweep of their own with another --out"
        )
    return manifest


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, AcclimateError):
        return text
    if "out of memory" in text:
        text += "; lower --max-parallel, or train.per_domain; --retry-failed tries again"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _disk_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):  # as tensor files report it
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass(frozen=True)
class Progress:
    """How far a running job is, from what it has written: the same under every launcher."""

    phase: str  # "" before the first step
    step: int = 0
    total: int = 0  # 0: not known


def progress_of(folder: RunFolder) -> Progress:
    """Of the run or the embedding in `folder`, which somebody may be writing."""
    try:
        losses = folder.records().losses
    except (OSError, RecordError):
        return Progress("")
    if not losses:
        return Progress("")
    return Progress(losses[-1].phase, losses[-1].step, _steps(folder, losses[-1].phase))


def _steps(folder: RunFolder, phase: str) -> int:
    try:
        settings = folder.identity()["config"]
        return int(settings["train" if phase == "main" else "embedding"]["steps"])
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return 0
