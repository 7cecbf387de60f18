"""What a running sweep shows: a table that keeps itself up to date, or a line per job."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from acclimate.core.plain_text import printable
from acclimate.core.progress import PHASES
from acclimate.core.wording import duration
from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.driver import Event, Listener
from acclimate.sweep.queue import Queue
from acclimate.sweep.task import Progress, progress_of

PLACES = ("done", "running", "failed", "waiting")
LEAST_DONE = 0.5  # runs' worth of work, before which nothing is said of the time left
SHOWN = 12  # running jobs that are shown one by one
# Seconds without a line after which one says how far the running jobs are: at first, and at most.
SOON, QUIET = 20.0, 300.0


@contextmanager
def progress_shown(folder: Path, sweep: Sweep, *, already: int) -> Iterator[Listener]:
    """On stderr: live on a terminal; elsewhere one plain line per finished or failed job, and one
    now and then where jobs take long."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield _Lines(console, folder, sweep, already).heard
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _Table(live, folder, sweep, already).heard


class _Pace:
    """What the time left is worked out from."""

    def __init__(self, folder: Path, sweep: Sweep, already: int) -> None:
        self.folder, self.sweep, self.already = folder, sweep, already
        self.began = time.monotonic()
        self.before: dict[str, float] = {}  # shares of jobs that earlier sessions had done

    def note(self, event: Event | None) -> None:
        if event is not None and event.kind == "started" and event.id not in self.before:
            self.before[event.id] = done_share(self._progress(event.id))

    def running(self, queue: Queue) -> dict[str, Progress]:
        """How far each running job is."""
        found = (id for id, state in queue.states.items() if state == "running")
        return {id: self._progress(id) for id in found}

    def line(self, queue: Queue, jobs: Mapping[str, Progress], now: float) -> str:
        under_way, before = sum(map(done_share, jobs.values())), sum(self.before.values())
        return time_line(queue, now - self.began, self.already, under_way, before)

    def is_embedding(self, id: str) -> bool:
        return any(job.id == id for job in self.sweep.embeddings)

    def _progress(self, id: str) -> Progress:
        here = SweepFolder(self.folder)
        return progress_of(here.embedding(id) if self.is_embedding(id) else here.run(id))


class _Lines:
    def __init__(self, console: Console, folder: Path, sweep: Sweep, already: int) -> None:
        self.console, self.sweep = console, sweep
        self.pace = _Pace(folder, sweep, already)
        self.said = time.monotonic()

    def heard(self, queue: Queue, event: Event | None) -> None:
        self.pace.note(event)
        if event is None:
            now = time.monotonic()
            if now - self.said >= min(QUIET, max(SOON, (now - self.pace.began) / 10)):
                self._say(queue, self._under_way(queue))
        elif event.kind not in ("started", "busy"):
            note = f": {event.note}" if event.note else ""
            of = "the shared embedding " if self.pace.is_embedding(event.id) else ""
            self._say(queue, f"{event.kind} {of}{event.id}{note}")

    def _say(self, queue: Queue, text: str) -> None:
        self.said = time.monotonic()
        self.console.print(f"[{queue.count('done')}/{len(self.sweep.jobs)}] {printable(text)}")

    def _under_way(self, queue: Queue) -> str:
        jobs = self.pace.running(queue)
        shown = [f"{id} ({phase_of(progress)})" for id, progress in list(jobs.items())[:SHOWN]]
        shown += [f"and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else []
        return f"running {', '.join(shown)}; {self.pace.line(queue, jobs, time.monotonic())}"


class _Table:
    def __init__(self, live: Live, folder: Path, sweep: Sweep, already: int) -> None:
        self.live, self.sweep = live, sweep
        self.pace = _Pace(folder, sweep, already)
        self.drawn = time.monotonic()

    def heard(self, queue: Queue, event: Event | None) -> None:
        self.pace.note(event)
        if event is not None and event.kind in ("failed", "died"):
            self.live.console.print(printable(f"{event.kind} {event.id}: {event.note}"))
        now = time.monotonic()
        if event is None and now - self.drawn >= 1.0:
            self.drawn = now
            self.live.update(self._drawing(queue, now), refresh=True)

    def _drawing(self, queue: Queue, now: float) -> Group:
        parts: list[Table | Text] = [counts_table(self.sweep, queue)]
        jobs = self.pace.running(queue)
        if jobs:
            parts.append(_running_table(jobs))
        parts.append(Text(self.pace.line(queue, jobs, now), style="dim"))
        return Group(*parts)


def _running_table(jobs: Mapping[str, Progress]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for id, progress in list(jobs.items())[:SHOWN]:
        table.add_row(Text(f"  {id}"), Text(phase_of(progress)))
    if len(jobs) > SHOWN:
        table.add_row(Text(f"  and {len(jobs) - SHOWN} more"), Text(""))
    return table


def counts_table(sweep: Sweep, queue: Queue) -> Table:
    """How many jobs of each algorithm are where; blocked ones are waiting too."""
    counts: dict[str, Counter[str]] = {}
    for job in sweep.jobs:
        name = f"{job.algorithm} {job.variant}".strip()
        state = queue.states[job.id]
        counts.setdefault(name, Counter())["waiting" if state == "blocked" else state] += 1
    if sweep.embeddings:
        found = [queue.states[job.id] for job in sweep.embeddings]
        counts["(embeddings)"] = Counter(found)
    table = Table(box=None, pad_edge=False)
    table.add_column("algorithm")
    for place in PLACES:
        table.add_column(place, justify="right")
    for name, places in counts.items():
        table.add_row(Text(name), *(str(places[place]) for place in PLACES))
    return table


def phase_of(progress: Progress) -> str:
    if not progress.phase:
        return "starting"
    total = f"/{progress.total}" if progress.total else ""
    return f"{PHASES.get(progress.phase, progress.phase)} {progress.step}{total}"


def done_share(progress: Progress) -> float:
    """Of a run: how much of Step B is behind it."""
    known = progress.phase == "main" and progress.total > 0
    return progress.step / progress.total if known else 0.0


def time_line(
    queue: Queue, elapsed: float, already: int, under_way: float = 0.0, before: float = 0.0
) -> str:
    """`under_way` are runs' worth of work that running ones have behind them; `before`, what of
    that and of finished ones was done in earlier sessions, and so says nothing of the pace."""
    done = queue.count("done") - already + under_way - before
    left = sum(queue.states[job.id] in ("waiting", "running") for job in queue.sweep.jobs)
    if done < LEAST_DONE:
        return f"{duration(elapsed)} elapsed"
    ahead = max(left - under_way, 0.0)
    return f"{duration(elapsed)} elapsed, about {duration(elapsed / done * ahead)} left"
