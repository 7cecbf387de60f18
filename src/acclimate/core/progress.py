"""How far long work is: a bar in terminals and notebooks, and a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

from acclimate.core.text import duration, printable


class Watch(Protocol):
    """Told of `done` of `total` pieces of `phase`, with a word on how it goes."""

    def __call__(self, phase: str, done: int, total: int, note: str) -> None: ...


def unwatched(phase: str, done: int, total: int, note: str) -> None:
    """For those who do not look."""


def prefixed(watch: Watch, prefix: str) -> Watch:
    """Tells `watch` of phases by names that begin with `prefix`."""
    return lambda phase, done, total, note: watch(prefix + phase, done, total, note)


PHASES = {
    "features": "backbone features",
    "scoring": "scoring",
    "embedding": "Step A: embedding",
    "domains": "domain embeddings",
    "main": "predictor",
    "trials": "trials of methods",
}
SECONDS_BETWEEN = 15.0  # lines of a phase; in a long one, a twentieth of the time it has taken
SHARE_BETWEEN = 1 / 20


def phase_name(phase: str) -> str:
    """For people: `north: main` -> `north: predictor`."""
    before, colon, last = phase.rpartition(": ")
    return f"{before}{colon}{PHASES.get(last, last)}"


class Lines:
    """Tells a log how far work is, without filling it."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.write, self.clock = write, clock
        self._phase, self._done = "", 0  # as last heard
        self._began, self._first, self._told = 0.0, 0, 0.0

    def __call__(self, phase: str, done: int, total: int, note: str) -> None:
        if not total:  # nothing to do, such as a rehearsal of too few images
            return
        now, before = self.clock(), self._done
        if phase != self._phase or done < before:  # it begins, or begins again
            self._began, self._first, self._told = now, done, now
            before = 0
        self._phase, self._done = phase, done
        pause = max(SECONDS_BETWEEN, SHARE_BETWEEN * (now - self._began))
        if before < total and (done >= total or now - self._told >= pause):
            self._told = now
            self.write(_line(phase, done, total, note, now - self._began, done - self._first))


def _line(phase: str, done: int, total: int, note: str, seconds: float, worked: int) -> str:
    parts = [f"{phase_name(phase)}: {done} of {total}"]
    if done < total and worked > 0 and seconds > 0:
        rate = worked / seconds
        speed = f"{rate:.1f} a second" if rate >= 1 else f"{duration(1 / rate)} each"
        parts += [speed, f"about {duration((total - done) / rate)} left"]
    elif done >= total:
        parts.append(duration(seconds))
    return ", ".join([*parts, *([printable(note)] if note else [])])


@contextmanager
def bar(*, transient: bool = False) -> Iterator[Watch]:
    """A bar for each phase, on the standard error."""
    from rich.console import Console  # rich takes longer to import than --help may
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=transient) as progress:
        tasks: dict[str, Any] = {}

        def watch(phase: str, done: int, total: int, note: str) -> None:
            if not total:
                return
            if phase not in tasks:
                # What was done before, in a run that goes on, says nothing of the speed.
                name = phase_name(phase)
                tasks[phase] = progress.add_task(name, total=total, completed=done, note="")
            progress.update(tasks[phase], completed=done, note=printable(note))

        yield watch


@contextmanager
def shown_by_itself() -> Iterator[Watch]:
    """For those who call the library: a bar where a person looks on, and else nothing."""
    if in_notebook() or sys.stderr.isatty():
        with bar(transient=True) as watch:
            yield watch
    else:
        yield unwatched


def in_notebook() -> bool:
    """Is this a notebook that can show a bar?"""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    kernel = type(shell).__name__ == "ZMQInteractiveShell"
    return kernel and find_spec("ipywidgets") is not None
