"""Runs every job of a sweep that is not done, whatever happens on the way.

What is done, the disk alone says: each job's folder, its failure, and a lock that its worker holds.
So the driver can be killed at any moment and started again, and finds its place.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from acclimate.core.errors import SweepError, WriteError
from acclimate.core.files import clear_temporary
from acclimate.results.protocol import EmbeddingJob, Job, Sweep
from acclimate.results.sweep_folder import Failure, SweepFolder
from acclimate.sweep.launchers import Died, Launch, Launcher
from acclimate.sweep.opening import opened
from acclimate.sweep.queue import Queue
from acclimate.sweep.task import Task, TaskResult, note_failure

MAX_DEATHS = 3
TICK = 0.5  # seconds between two looks of the listener


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to a job (or to an EmbeddingJob)."""

    id: str
    kind: Literal["started", "done", "failed", "busy", "died"]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How a session ended. `blocked` jobs wait for an embedding that failed."""

    jobs: int
    already: int  # done before this session
    done: int  # altogether
    failures: tuple[Failure, ...]
    blocked: tuple[str, ...]


Listener = Callable[[Queue, Event | None], None]  # None: time has passed


def unheard(queue: Queue, event: Event | None) -> None:
    """For those who do not listen."""


def run_sweep(
    folder: Path,
    sweep: Sweep,
    data: Mapping[str, Path],
    *,
    launch: Launch,
    retry_failed: bool = False,
    extend: bool = False,
    listener: Listener = unheard,
) -> Tally:
    """Run what is left of `sweep` in `folder`; `data` says where its data sets lie."""
    folder = folder.resolve()
    try:
        with opened(folder, sweep, extend=extend):
            queue = look(folder, sweep, retry_failed=retry_failed)
            already = queue.count("done")
            _clear_done(folder, sweep, queue)
            if queue.unfinished():
                with closing(launch(folder)) as launcher:
                    _Round(folder, sweep, data, queue, launcher, listener).go()
            return _tally(folder, sweep, queue, already)
    except WriteError:
        raise  # it says where and what to do
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        where = error.filename or folder
        raise SweepError(
            f"{where}: {reason}; mend that, then repeat the command to resume"
        ) from error


def look(folder: Path, sweep: Sweep, *, retry_failed: bool = False) -> Queue:
    """Where each job stands, from the disk alone."""
    here = SweepFolder(folder)
    states = {job.id: here.job_state(job.id) for job in sweep.jobs}
    states |= {found.id: here.embedding_state(found.id) for found in sweep.embeddings}
    return Queue(sweep, states, retry_failed=retry_failed)


def _clear_done(folder: Path, sweep: Sweep, queue: Queue) -> None:
    """What workers that were killed in their very last moment did not tidy."""
    here, done = SweepFolder(folder), []
    for job in sweep.jobs:
        if queue.states[job.id] == "done":
            here.forget_failure(job.id)
            done.append(here.run(job.id))
    done += [
        here.embedding(phi.id) for phi in sweep.embeddings if here.embedding_state(phi.id) == "done"
    ]
    for place in done:
        place.tidy()
        clear_temporary(place.path)


def _tally(folder: Path, sweep: Sweep, queue: Queue, already: int) -> Tally:
    failed = [id for id, state in queue.states.items() if state == "failed"]
    failures = [SweepFolder(folder).failure(id) for id in failed]
    return Tally(
        jobs=len(sweep.jobs),
        already=already,
        done=queue.count("done"),
        failures=tuple(failure for failure in failures if failure is not None),
        blocked=tuple(id for id, state in queue.states.items() if state == "blocked"),
    )


class _Round:
    """One launcher, from the first task to the last."""

    def __init__(
        self,
        folder: Path,
        sweep: Sweep,
        data: Mapping[str, Path],
        queue: Queue,
        launcher: Launcher,
        listener: Listener,
    ) -> None:
        self.folder, self.sweep, self.data = folder, sweep, data
        self.queue, self.launcher, self.listener = queue, launcher, listener
        self.jobs: dict[str, Job | EmbeddingJob] = {job.id: job for job in sweep.jobs}
        self.jobs |= {job.id: job for job in sweep.embeddings}
        self.deaths: Counter[str] = Counter()

    def go(self) -> None:
        while self.queue.unfinished():
            self._fill()
            for id, end in self.launcher.finished(TICK):
                self._ended(id, end)
            self.listener(self.queue, None)

    def _fill(self) -> None:
        while self.queue.count("running") < self.launcher.slots:
            id = self.queue.next(time.monotonic())
            if id is None:
                return
            if self._done_by_another(id):
                self._tell(id, "done")
                continue
            self.launcher.start(self._task(id))
            self.queue.start(id)
            self.listener(self.queue, Event(id=id, kind="started"))

    def _done_by_another(self, id: str) -> bool:
        """A busy job may have been finished by the process that was at it."""
        here = SweepFolder(self.folder)
        shared = isinstance(self.jobs[id], EmbeddingJob)
        return (here.embedding_state(id) if shared else here.job_state(id)) == "done"

    def _task(self, id: str) -> Task:
        job = self.jobs[id]
        return Task(
            sweep=str(self.folder),
            kind="embedding" if isinstance(job, EmbeddingJob) else "run",
            id=id,
            data=str(self.data[job.data].resolve()),
            digest=self.sweep.dataset(job.data).digest,
            config=job.config,
            needs=job.needs,
        )

    def _ended(self, id: str, end: TaskResult | Died) -> None:
        if isinstance(end, Died):
            self._died(id, end)
        elif end.state == "full":
            raise SweepError(
                f"the disk of {self.folder} is full ({end.error}); "
                f"free some space, then repeat the command to resume"
            )
        elif end.state == "busy":
            self.queue.later(id, time.monotonic() + self.launcher.patience)
            self._tell(id, "busy", end.error)
        else:
            self._tell(id, end.state, end.error)

    def _died(self, id: str, end: Died) -> None:
        self.deaths[id] += 1
        if self.deaths[id] < MAX_DEATHS:
            self.queue.later(id, time.monotonic())
            self._tell(id, "died", f"the worker died ({end.how}); it will be tried again")
            return
        error = (
            f"the worker died ({end.how}) {MAX_DEATHS} times; often out of memory: "
            f"lower --max-parallel; --retry-failed tries again"
        )
        outcome = note_failure(self.folder, id, error)
        self._ended(id, outcome)

    def _tell(
        self, id: str, kind: Literal["done", "failed", "busy", "died"], note: str = ""
    ) -> None:
        if kind in ("done", "failed"):
            self.queue.end(id, kind)
        self.listener(self.queue, Event(id=id, kind=kind, note=note))
