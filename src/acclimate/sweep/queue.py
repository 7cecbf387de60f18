"""Which job comes next. Knows nothing of disks or processes."""

from collections import deque
from collections.abc import Mapping
from typing import Literal

from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import State

Place = Literal["waiting", "running", "done", "failed", "blocked"]


class Queue:
    """Each job's place. Embeddings come first: they unlock others; then the runs that embeddings
    are made of. Jobs that need none fill the slots meanwhile; those whose embedding failed are
    blocked. An embedding whose run failed learns its own weights."""

    def __init__(
        self, sweep: Sweep, found: Mapping[str, State], *, retry_failed: bool = False
    ) -> None:
        self.sweep = sweep
        self.states: dict[str, Place] = {}
        self._ready: deque[str] = deque()
        self._later: dict[str, float] = {}
        self._needing: dict[str, list[str]] = {}
        for job in sweep.jobs:
            self.states[job.id] = _place(found[job.id], retry_failed)
            if job.needs is not None and self.states[job.id] == "waiting":
                self._needing.setdefault(job.needs, []).append(job.id)
        for embedding in sweep.embeddings:
            place = _place(found[embedding.id], retry_failed)
            # An embedding that no unfinished job needs is of no interest.
            self.states[embedding.id] = place if embedding.id in self._needing else "done"
        self._awaiting: dict[str, list[str]] = {}
        for embedding in sweep.embeddings:
            if self.states[embedding.id] == "waiting":
                if embedding.needs is not None and self.states[embedding.needs] == "waiting":
                    self._awaiting.setdefault(embedding.needs, []).append(embedding.id)
                else:
                    self._ready.append(embedding.id)
        open_to_all = [
            job.id
            for job in sweep.jobs
            if self.states[job.id] == "waiting"
            and (job.needs is None or self.states[job.needs] == "done")
        ]
        self._ready += sorted(open_to_all, key=lambda id: id not in self._awaiting)
        for embedding in sweep.embeddings:
            if self.states[embedding.id] == "failed":
                self._block(embedding.id)
        self._runs = {job.id for job in sweep.jobs}

    def next(self, now: float) -> str | None:
        """The id to start now, which stays the queue's until `start`, `later` or `end`."""
        due = [id for id, moment in self._later.items() if moment <= now]
        for id in due:
            del self._later[id]
            self._ready.append(id)
        return self._ready.popleft() if self._ready else None

    def start(self, id: str) -> None:
        self.states[id] = "running"

    def later(self, id: str, moment: float) -> None:
        """Put back a job that could not be done, to be tried again from `moment` on."""
        self.states[id] = "waiting"
        self._later[id] = moment

    def end(self, id: str, state: Literal["done", "failed"]) -> None:
        self.states[id] = state
        self._ready.extendleft(self._awaiting.pop(id, ()))
        if id not in self._needing:
            return
        if state == "done":
            self._ready += self._needing[id]
        else:
            self._block(id)

    def unfinished(self) -> bool:
        return any(state in ("waiting", "running") for state in self.states.values())

    def count(self, place: Place) -> int:
        """Runs in that place; for "running" embeddings as well, as they take slots."""
        if place == "running":
            return sum(state == place for state in self.states.values())
        return sum(self.states[id] == place for id in self._runs)

    def _block(self, embedding: str) -> None:
        for job in self._needing[embedding]:
            self.states[job] = "blocked"


def _place(state: State, retry_failed: bool) -> Place:
    if state == "done" or (state == "failed" and not retry_failed):
        return state
    return "waiting"
