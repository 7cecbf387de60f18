"""Runs every job of a sweep that is not done, whatever happens on the way.

What is done, the disk alone says: each job's folder, its failure, and a lock that its worker holds.
So the driver can be killed at any moment and started again, and finds its place. Where that is
asked for, the weights of runs that were not chosen are deleted at the end.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from acclimate.core.errors import SweepError, WriteError
from acclimate.core.files import clear_temporary, write_document
from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder, difference, holds_something, is_pruned
from acclimate.results.protocol import EmbeddingJob, Job, Sweep
from acclimate.results.selection import candidates, select
from acclimate.results.sweep_folder import Failure, LabelCounts, State, SweepFolder
from acclimate.sweep.launchers import Launch, Launcher
from acclimate.sweep.worker import Task, TaskResult, note_failure

MAX_DEATHS = 3
TICK = 0.5  # seconds between two calls of the listener
Place = Literal["waiting", "running", "done", "failed", "blocked"]


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep with its data, and what is to be said of it before it starts."""

    sweep: Sweep
    manifests: Mapping[str, Manifest]  # by the name of the data set
    paths: Mapping[str, Path]  # where workers find the same data
    notes: Sequence[str] = ()


class Queue:
    """Each job's place, and which comes next. Knows nothing of disks or processes.

    Embeddings come first: they unlock others. Jobs that need none fill the slots meanwhile; those
    whose embedding failed are blocked.
    """

    def __init__(
        self, sweep: Sweep, on_disk: Mapping[str, State], *, retry_failed: bool = False
    ) -> None:
        def place(id: str) -> Place:
            state = on_disk[id]
            if state == "done" or (state == "failed" and not retry_failed):
                return state
            return "waiting"

        self.sweep = sweep
        self.states: dict[str, Place] = {job.id: place(job.id) for job in sweep.jobs}
        needed = {job.needs for job in sweep.jobs if self.states[job.id] == "waiting"}
        for phi in sweep.embeddings:  # one that no unfinished job needs is of no interest
            self.states[phi.id] = place(phi.id) if phi.id in needed else "done"
        self._phis = {phi.id for phi in sweep.embeddings}
        self._needs = {job.id: job.needs for job in sweep.jobs}
        self._order = [phi.id for phi in sweep.embeddings] + list(self._needs)
        self._not_before: dict[str, float] = {}
        for id in self._phis:
            if self.states[id] == "failed":
                self._block(id)

    def next(self, now: float) -> str | None:
        """The job to start now; it is next until `start`, `later` or `end` is called with it."""
        return next((id for id in self._order if self._ready(id, now)), None)

    def start(self, id: str) -> None:
        self.states[id] = "running"

    def later(self, id: str, moment: float) -> None:
        """Put back a job that could not be done, to be tried again from `moment` on."""
        self.states[id] = "waiting"
        self._not_before[id] = moment
        self._order.remove(id)
        self._order.append(id)

    def end(self, id: str, state: Literal["done", "failed"]) -> None:
        self.states[id] = state
        if state == "failed" and id in self._phis:
            self._block(id)

    def unfinished(self) -> bool:
        return bool(self.ids("waiting", "running"))

    def ids(self, *places: Place) -> list[str]:
        """Runs and embeddings in those places."""
        return [id for id, state in self.states.items() if state in places]

    def count(self, place: Place) -> int:
        """Runs in that place, without embeddings."""
        return sum(self.states[job.id] == place for job in self.sweep.jobs)

    def _ready(self, id: str, now: float) -> bool:
        if self.states[id] != "waiting" or self._not_before.get(id, now) > now:
            return False
        embedding = self._needs.get(id)
        return embedding is None or self.states[embedding] == "done"

    def _block(self, embedding: str) -> None:
        for job in self.sweep.jobs:
            if job.needs == embedding and self.states[job.id] == "waiting":
                self.states[job.id] = "blocked"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to a job (or to an EmbeddingJob)."""

    id: str
    kind: Literal["started", "done", "failed", "busy", "died"]
    note: str = ""


Listener = Callable[[Queue, Event | None], None]  # None: time has passed


def silent(queue: Queue, event: Event | None) -> None:
    """A listener that shows nothing."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How a session ended. `blocked` jobs wait for an embedding that failed."""

    jobs: int
    already: int  # done before this session
    done: int  # altogether
    failures: tuple[Failure, ...]
    blocked: tuple[str, ...]


def write_labels(folder: Path, plan: SweepPlan) -> None:
    """Keep what a report needs of a sweep's data."""
    for data in plan.sweep.datasets:
        path = SweepFolder(folder).labels_file(data.digest)
        if not path.exists():
            write_document(path, asdict(LabelCounts.of(data.name, plan.manifests[data.name])))


def prune(folder: Path, sweep: Sweep) -> str:
    """Delete the weights of all runs but those that the sweep's rule chooses, and every shared Φ,
    of which each kept run has its own copy. Records stay, so that tables do not change.

    Returns why nothing was deleted, or "".
    """
    here = SweepFolder(folder)
    if any(here.job_state(job.id) != "done" for job in sweep.jobs):
        return "nothing is pruned before every job is done"
    chosen = set()
    for choice in select(candidates(folder, sweep), sweep.rule, expected=sweep.jobs):
        if choice.run is None:
            return f"nothing is pruned, as {sweep.rule} cannot choose: {choice.reason}"
        if is_pruned(here.run(choice.run).path):
            return (
                f"nothing is pruned, as the weights of the chosen {choice.run} were pruned before; "
                f"delete its folder and repeat the sweep to have them again"
            )
        chosen.add(choice.run)
    for job in sweep.jobs:
        if job.id not in chosen:
            here.run(job.id).prune()
    for phi in sweep.embeddings:
        here.embedding(phi.id).prune()
    return ""


def run_sweep(
    folder: Path,
    sweep: Sweep,
    data: Mapping[str, Path],
    *,
    launch: Launch,
    retry_failed: bool = False,
    extend: bool = False,
    listener: Listener = silent,
) -> Tally:
    """Run what is left of `sweep` in `folder`; `data` says where its data sets lie."""
    here = SweepFolder(folder.resolve())
    try:
        with claim(here.path, sweep, extend=extend):
            queue = look(here.path, sweep, retry_failed=retry_failed)
            already = queue.count("done")
            _clear_done(here, sweep, queue)
            if queue.unfinished():
                with closing(launch(here.path)) as launcher:
                    _Session(here, sweep, data, queue, launcher, listener).run()
            failures = map(here.failure, queue.ids("failed"))
            return Tally(
                jobs=len(sweep.jobs),
                already=already,
                done=queue.count("done"),
                failures=tuple(failure for failure in failures if failure is not None),
                blocked=tuple(queue.ids("blocked")),
            )
    except WriteError:
        raise  # it says where and what to do
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        where = error.filename or here.path
        raise SweepError(
            f"{where}: {reason}; mend that, then repeat the command to resume"
        ) from error


def look(folder: Path, sweep: Sweep, *, retry_failed: bool = False) -> Queue:
    """Where each job stands, from the disk alone."""
    here = SweepFolder(folder)
    states = {job.id: here.job_state(job.id) for job in sweep.jobs}
    states |= {phi.id: here.embedding_state(phi.id) for phi in sweep.embeddings}
    return Queue(sweep, states, retry_failed=retry_failed)


def _clear_done(here: SweepFolder, sweep: Sweep, queue: Queue) -> None:
    """Tidy what workers that were killed in their very last moment did not."""
    done: list[RunFolder] = []
    for job in sweep.jobs:
        if queue.states[job.id] == "done":
            here.forget_failure(job.id)
            done.append(here.run(job.id))
    ids = (phi.id for phi in sweep.embeddings)
    done += [here.embedding(id) for id in ids if here.embedding_state(id) == "done"]
    for place in done:
        place.tidy()
        clear_temporary(place.path)


@dataclass
class _Session:
    """One launcher, from the first task to the last."""

    folder: SweepFolder
    sweep: Sweep
    data: Mapping[str, Path]
    queue: Queue
    launcher: Launcher
    listener: Listener
    deaths: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        jobs: list[Job | EmbeddingJob] = [*self.sweep.jobs, *self.sweep.embeddings]
        self.jobs = {job.id: job for job in jobs}

    def run(self) -> None:
        while self.queue.unfinished():
            self._fill_slots()
            for id, result in self.launcher.finished(TICK):
                self._handle(id, result)
            self.listener(self.queue, None)

    def _fill_slots(self) -> None:
        while len(self.queue.ids("running")) < self.launcher.slots:
            id = self.queue.next(time.monotonic())
            if id is None:
                return
            task = self._task(id)
            shared = task.kind == "embedding"
            state = self.folder.embedding_state if shared else self.folder.job_state
            if state(id) == "done":  # by the process that kept it busy
                self._settle(id, "done")
                continue
            self.launcher.start(task)
            self.queue.start(id)
            self.listener(self.queue, Event(id=id, kind="started"))

    def _task(self, id: str) -> Task:
        job = self.jobs[id]
        return Task(
            sweep=str(self.folder.path),
            kind="embedding" if isinstance(job, EmbeddingJob) else "run",
            id=id,
            data=str(self.data[job.data].resolve()),
            digest=self.sweep.dataset(job.data).digest,
            config=job.config,
            needs=job.needs if isinstance(job, Job) else None,
        )

    def _handle(self, id: str, result: TaskResult) -> None:
        if result.state == "died":
            self._handle_death(id, result.error)
        elif result.state == "full":
            raise SweepError(
                f"the disk of {self.folder.path} is full ({result.error}); "
                f"free some space, then repeat the command to resume"
            )
        elif result.state == "busy":
            self.queue.later(id, time.monotonic() + self.launcher.patience)
            self.listener(self.queue, Event(id=id, kind="busy", note=result.error))
        else:
            self._settle(id, result.state, result.error)

    def _handle_death(self, id: str, how: str) -> None:
        self.deaths[id] += 1
        if self.deaths[id] < MAX_DEATHS:
            self.queue.later(id, time.monotonic())
            note = f"the worker died ({how}); it will be tried again"
            self.listener(self.queue, Event(id=id, kind="died", note=note))
            return
        error = (
            f"the worker died ({how}) {MAX_DEATHS} times; often out of memory: "
            f"lower --max-parallel; --retry-failed tries again"
        )
        self._handle(id, note_failure(self.folder, id, error))

    def _settle(self, id: str, state: Literal["done", "failed"], note: str = "") -> None:
        self.queue.end(id, state)
        self.listener(self.queue, Event(id=id, kind=state, note=note))


# ---- the folder: which sweep it holds, and that one driver runs it -------------------------------


@contextmanager
def claim(folder: Path, sweep: Sweep, *, extend: bool = False) -> Iterator[None]:
    """Make `folder` the sweep's, or refuse it as it is; keep other drivers out meanwhile."""
    check_folder(folder, sweep, extend=extend)  # first without leaving a trace
    here = SweepFolder(folder)
    with here.locked():
        check_folder(folder, sweep, extend=extend)
        here.clear_temporary()
        stored = here.read() if here.exists else None
        if stored is not None and len(stored.jobs) == len(sweep.jobs):
            sweep = replace(sweep, command=stored.command)  # not that of a repetition
        if stored != sweep:
            here.write(sweep)
        yield


def check_folder(folder: Path, sweep: Sweep, *, extend: bool = False) -> None:
    """Refuse a folder of something else, or of another sweep. Where data and weights lie may have
    changed; with `extend`, jobs may have been added."""
    if not SweepFolder(folder).exists:
        if holds_something(folder):
            raise SweepError(f"{folder} is not empty and not a sweep; choose another --out")
        return
    stored = SweepFolder(folder).read()
    change = _difference(stored, sweep, extend=extend)
    if change:
        raise SweepError(
            f"{folder} holds another sweep ({change}); "
            f"choose another --out, or repeat the command that made it"
        )
    added = len(sweep.jobs) - len(stored.jobs)
    if added and not extend:
        raise SweepError(
            f"{folder} holds {len(stored.jobs)} of these {len(sweep.jobs)} jobs; "
            f"add the other {added} with --extend, or choose another --out"
        )


def _difference(stored: Sweep, sweep: Sweep, *, extend: bool) -> str:
    """What makes the stored sweep another than this one, in words; "" where nothing does."""
    digests = {data.name: data.digest for data in (*stored.datasets, *stored.draws)}
    for data in (*sweep.datasets, *sweep.draws):
        if digests.get(data.name, data.digest) != data.digest:
            return f"its data '{data.name}' differ"
    ids = {job.id for job in sweep.jobs}
    lost = [job for job in stored.jobs if job.id not in ids]
    if lost:
        return _changed_setting(lost, sweep) or (
            f"{len(lost)} of its {len(stored.jobs)} jobs are not asked for, e.g. {lost[0].id}; "
            f"to add jobs, ask for these too and give --extend"
        )
    if not extend:
        for name in ("title", "rule", "baseline"):
            old, new = getattr(stored, name), getattr(sweep, name)
            if old != new:
                return f"its {name} is '{old}', not '{new}'"
    return ""


def _changed_setting(lost: Iterable[Job], sweep: Sweep) -> str:
    """The setting that makes another job of a stored one, if that is all that differs."""

    def place(job: Job) -> tuple[object, ...]:
        return (job.dataset, job.algorithm, job.variant, job.groups, job.draw, job.trial)

    twins = {place(job): job for job in sweep.jobs}
    for job in lost:
        if place(job) in twins:
            old, new = (
                {"data": "", "config": one.config, "weights": "", "train_domains": ()}
                for one in (job, twins[place(job)])
            )
            return difference(old, new) or "its weights are others"
    return ""
