"""The one seam between the records of a run and the tools that show them.

A tracker says at its start how many records of the run it has, and is told the others: those on
disk, then each one as it is written. So a run that was killed goes on in the same place, and a
finished one can be told at any time.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from acclimate.config import flat, metric_of
from acclimate.core.errors import AcclimateError, ConfigError, TrackError, require_known
from acclimate.core.exports import load
from acclimate.core.files import json_digest
from acclimate.core.text import reason_of
from acclimate.records.folder import RunFolder
from acclimate.records.records import Finished, Loss, Record, Score, Started, key_of, values_by_use

PROJECT = "acclimate"  # or experiment: where a tool files a run unless its own variable names one
LOSSES = ("risk", "penalty", "lr", "images_per_second")


@dataclass(frozen=True)
class RunFacts:
    """What a tracker is told of a run before its records."""

    folder: Path
    name: str
    id: str  # the run's own, wherever its folder lies
    group: str | None  # the sweep or folder that it is a part of
    started: float  # seconds since 1970
    settings: Mapping[str, Any]  # by their whole names
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """A record as trackers take it: its number in the run, and what of it is a number."""

    number: int
    record: Record
    time: float  # when its session began, in seconds since 1970; records have no other
    step: int
    values: Mapping[str, float]


class Tracker(Protocol):
    """A tool that shows runs. What it raises ends the tracking and not the run."""

    def on_start(self, run: RunFacts) -> int:
        """Open the run or go on with it; returns how many of its records are there already."""
        ...

    def on_record(self, entry: Entry) -> None:
        """Take a record. Each is told once, in the order of their numbers."""
        ...

    def on_end(self, *, finished: bool) -> None:
        """Close the run; what is not `finished` may go on another day."""
        ...


Listener = Callable[[Record], None]


def require_library(name: str, extra: str) -> Any:
    """The library that a tracker needs, or an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f'tracking with {extra} needs {name}; pip install "acclimate[{extra}]"'
        ) from None


@dataclass
class Feed:
    """Tells a tracker what it does not have of a run."""

    name: str
    folder: RunFolder
    label: str
    group: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    told: int = 0
    _finals: list[Score] = field(default_factory=list)
    _keys: set[tuple[Any, ...]] = field(default_factory=set)
    _time: float = 0.0
    _there: int | None = None  # records that the tracker has had before; None: not asked yet
    _finished: bool = False

    def __post_init__(self) -> None:
        """A wrong name and a missing library are errors now."""
        from acclimate.track import TRACKERS

        require_known(self.name, TRACKERS, f"there is no tracker '{self.name}'")
        with self._heard():
            self.tracker: Tracker = load(TRACKERS[self.name])(**self.options)

    def catch_up(self) -> None:
        """Tell what is on disk, where nothing was told yet."""
        if self._there is None and (records := self.folder.records().all):
            self._metric = metric_of(self.folder.identity()["config"])
            with self._heard():
                self._there = self.tracker.on_start(self._facts(records[0]))
            for record in records:
                self._tell(record)

    def tell(self, record: Record) -> None:
        """Tell a record that was just written; what a resumed run repeats is known."""
        self.catch_up()
        if key_of(record) not in self._keys:
            self._tell(record)

    def end(self) -> None:
        if self._there is not None:
            with self._heard():
                self.tracker.on_end(finished=self._finished)

    def _tell(self, record: Record) -> None:
        number = len(self._keys)
        self._keys.add(key_of(record))
        if isinstance(record, Started):
            self._time = _seconds(record)
        self._finished |= isinstance(record, Finished)
        step = getattr(record, "step", getattr(record, "kept_step", 0))
        entry = Entry(number, record, self._time, step, self._values(record))
        if number >= (self._there or 0):
            with self._heard():
                self.tracker.on_record(entry)
            self.told += 1

    def _values(self, record: Record) -> dict[str, float]:
        """The numbers of a record by name; those that are missing are left out."""
        metrics = dict.fromkeys(("top-1", "nll", self._metric))
        values: dict[str, float | None] = {}
        if isinstance(record, Loss):
            values = {f"{record.phase}/{name}": getattr(record, name) for name in LOSSES}
        elif isinstance(record, Score):
            if record.moment == "final":
                self._finals.append(record)
            method = "" if record.method == "none" else f"/{record.method}"
            where = f"{record.moment}/{record.domain}/{record.split}{method}"
            values = {f"{where}/{name}": record.value(name) for name in metrics}
        elif isinstance(record, Finished):
            values = {f"kept/{self._metric}": record.kept_score, "seconds": record.seconds}
            for name in metrics:
                for use, scores in values_by_use(self._finals, name).items():
                    values[f"mean/{'/'.join(use)}/{name}"] = sum(scores) / len(scores)
        return {name: float(value) for name, value in values.items() if value is not None}

    def _facts(self, first: Record) -> RunFacts:
        known = self.folder.identity()
        assert isinstance(first, Started), "a run begins with a session"
        facts = {"version": first.version, "device": first.device, "data": known["data"]}
        facts["train_domains"] = ", ".join(known["train_domains"])
        return RunFacts(
            folder=self.folder.path,
            name=self.label,
            id=json_digest([self.folder.whose, first.time])[:16],
            group=self.group,
            started=_seconds(first),
            settings=flat(known["config"]),
            facts=facts,
        )

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """What a tool prints goes to stderr; what it raises is one line."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except AcclimateError:
            raise
        except Exception as error:
            raise TrackError(
                f"{self.name} failed ({reason_of(error)}); `acclimate track {self.folder.path} "
                f"--to {self.name}` tells it what it lacks"
            ) from error


def _seconds(session: Started) -> float:
    return datetime.fromisoformat(session.time).timestamp()


@contextmanager
def tracked(
    path: Path, names: Sequence[str], say: Callable[[str], None] = lambda line: None
) -> Iterator[Listener]:
    """A listener for the training of the run in folder `path`, which tells these trackers. One that
    fails is left out from then on, and `say` is told why."""
    folder = RunFolder(path)
    feeds = [Feed(name, folder, path.resolve().name) for name in dict.fromkeys(names)]

    def each(act: Callable[[Feed], None]) -> None:
        for feed in tuple(feeds):
            try:
                act(feed)
            except TrackError as error:
                feeds.remove(feed)
                say(str(error))

    try:
        yield lambda record: each(lambda feed: feed.tell(record))
        each(Feed.catch_up)  # of a run that was finished before
    finally:
        each(Feed.end)


def replay(
    path: Path,
    name: str,
    *,
    label: str | None = None,
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> int:
    """Tell a tracker what it does not have of the finished run in folder `path`; returns how many
    records that were."""
    feed = Feed(name, RunFolder(path), label or path.resolve().name, group, options or {})
    feed.catch_up()
    feed.end()
    return feed.told
