"""One job, as a worker does it under every launcher; and the local worker process.

A local worker reads tasks as lines on stdin and writes results as lines on stdout. It lives exactly
as long as the process that started it: the end of stdin, which also comes when that process is
killed, ends it at once, in the middle of whatever it does.
"""

import ctypes
import errno
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from acclimate.config import RunConfig, from_dict
from acclimate.core.errors import AcclimateError, RunBusy, SweepError
from acclimate.core.files import clear_temporary
from acclimate.core.text import timestamp
from acclimate.data.manifest import Manifest
from acclimate.results.sweep_folder import Failure, SweepFolder

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker needs to know, in values that JSON holds."""

    sweep: str  # the sweep's folder
    kind: Literal["embedding", "run"]
    id: str
    data: str  # where the data lie
    digest: str  # what they must be
    config: Mapping[str, Any]
    needs: str | None = None  # the embedding that a run starts from
    device: str = "auto"
    threads: int = 0  # of torch on the CPU; 0: as many as it likes


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """How it went. "busy": another process is at it. "full": the disk is, so nothing can go on.
    "died": the worker ended without a result, as it was killed or lost with its machine."""

    state: Literal["done", "busy", "failed", "full", "died"]
    error: str = ""  # one line; of a worker that died, how: "signal 9"


def perform(task: Task) -> TaskResult:
    """Do the job, or go on with it. A failure is written down and returned, never raised."""
    folder = SweepFolder(Path(task.sweep))
    try:
        clear_temporary(_train(task, folder))
        folder.forget_failure(task.id)
        return TaskResult(state="done")
    except RunBusy as error:
        return TaskResult(state="busy", error=str(error))
    except Exception as error:
        if _disk_full(error):
            return TaskResult(state="full", error=_line(error))
        return note_failure(folder, task.id, _line(error), traceback.format_exc())


def note_failure(folder: SweepFolder, job: str, error: str, trace: str = "") -> TaskResult:
    """Keep a failure in the sweep's folder, counting how often the job has been tried."""
    before = folder.failure(job)
    failure = Failure(
        job=job,
        error=error,
        traceback=trace,
        time=timestamp(),
        attempts=1 if before is None else before.attempts + 1,
    )
    try:
        folder.write_failure(failure)
    except OSError as problem:
        return TaskResult(state="full" if _disk_full(problem) else "failed", error=_line(problem))
    return TaskResult(state="failed", error=error)


def _train(task: Task, folder: SweepFolder) -> Path:
    """Train the run or the embedding; returns its folder."""
    import torch

    from acclimate.core.distributed import use_threads
    from acclimate.rehearse.training import train
    from acclimate.runs.training import train_embedding

    if task.threads:
        use_threads(task.threads)
    try:
        manifest = _open(task.data, task.digest)
        config = from_dict(RunConfig, task.config, where=task.id)
        if task.kind == "embedding":
            out = folder.embedding(task.id).path
            train_embedding(config, manifest, out, device=task.device)
        else:
            out = folder.run(task.id).path
            shared = None if task.needs is None else folder.embedding(task.needs).path
            train(config, manifest, out, device=task.device, embedding=shared)
        return out
    finally:
        torch.cuda.empty_cache()  # others may share the GPU


@lru_cache(maxsize=1)
def _open(data: str, digest: str) -> Manifest:
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


def main() -> None:
    """The process: tasks in, results out, until stdin ends or a task fails."""
    # In case the thread that waits for the end of stdin is held up; Linux alone knows this.
    with suppress(AttributeError, TypeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to the log, not between the replies
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()

    import acclimate.runs.training  # once, before the first task: it takes seconds

    assert acclimate.runs
    replies.write("ready\n")
    replies.flush()
    while True:
        result = perform(Task(**json.loads(tasks.get())))
        replies.write(json.dumps(asdict(result)) + "\n")
        replies.flush()
        if result.state == "failed":
            return  # an error may have spoilt the process, as those of a GPU do


def _listen(tasks: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
