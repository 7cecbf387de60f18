"""Sweeps: every job is done once, in the right order, whatever dies on the way."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acclimate.config import RunConfig
from acclimate.core.errors import RunBusy, SweepError, WriteError
from acclimate.data.manifest import Manifest
from acclimate.records import records
from acclimate.records.folder import RunFolder, write_checksums
from acclimate.rehearse.training import train
from acclimate.results.protocol import Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep import driver
from acclimate.sweep.driver import Event, Queue, SweepPlan, claim, run_sweep
from acclimate.sweep.launchers.local import LocalLauncher, Slot, local_slots
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task, TaskResult, note_failure, perform
from fixtures.errors import refused
from fixtures.faults import no_file_above
from fixtures.interruption import assert_same_weights
from fixtures.sweeps import LOCAL, embedding_job, job, scores, start_driver, sweep_of

Tiny = Callable[..., RunConfig]


def small_sweep(tiny: Tiny, data: Path, **changes: Any) -> Sweep:
    """Two plain jobs, and two that share an embedding."""
    plain = [job(f"erm-{d}", tiny("erm", test_domains=[f"site-{d}"], **changes)) for d in (0, 1)]
    shared = tiny("da-erm", test_domains=["site-4"], **changes)
    conditioned = [
        job("da_erm-4", shared, needs="phi-4"),
        job("da_coral-4", replace(shared, algorithm="da-coral"), needs="phi-4"),
    ]
    phi = embedding_job("phi-4", shared)
    return sweep_of([*plain, *conditioned], [phi], Manifest.open(data).digest())


# ---- the queue -----------------------------------------------------------------------------------


def queue_of(jobs: Sequence[Job], found: Mapping[str, str], **options: Any) -> Queue:
    needed = dict.fromkeys(job.needs for job in jobs if job.needs)
    phis = [embedding_job(name) for name in needed]
    states = {**dict.fromkeys([*needed, *(job.id for job in jobs)], "waiting"), **found}
    return Queue(sweep_of(jobs, phis), states, **options)


def drained(queue: Queue) -> list[str]:
    found = []
    while (id := queue.next(0.0)) is not None:
        queue.start(id)
        found.append(id)
    return found


def test_embeddings_come_first_and_plain_jobs_fill_the_slots() -> None:
    queue = queue_of([job("one", needs="phi"), job("two"), job("three", needs="phi")], {})
    assert drained(queue) == ["phi", "two"]
    queue.end("phi", "done")
    assert drained(queue) == ["one", "three"]
    for id in ("one", "two", "three"):
        assert queue.unfinished()
        queue.end(id, "done")
    assert not queue.unfinished()


def test_what_is_done_is_not_done_again_and_needs_no_embedding() -> None:
    jobs = [job("one", needs="phi"), job("two"), job("three", needs="chi")]
    queue = queue_of(jobs, {"one": "done", "two": "started", "chi": "done"})
    assert drained(queue) == ["two", "three"]


def test_failed_jobs_are_left_unless_they_are_to_be_tried_again() -> None:
    jobs = [job("one", needs="phi"), job("two")]
    failed = {"phi": "failed", "two": "failed"}
    queue = queue_of(jobs, failed)
    assert not queue.unfinished()
    assert queue.states == {"one": "blocked", "two": "failed", "phi": "failed"}
    again = queue_of(jobs, failed, retry_failed=True)
    assert drained(again) == ["phi", "two"]
    again.end("phi", "failed")
    assert again.states == {"one": "blocked", "two": "running", "phi": "failed"}


def test_a_busy_job_is_tried_again_later() -> None:
    queue = queue_of([job("one")], {})
    assert queue.next(0.0) == "one"
    queue.start("one")
    queue.later("one", 5.0)
    assert queue.unfinished()
    assert queue.next(4.9) is None
    assert queue.next(5.0) == "one"


# ---- the driver, with a launcher that does as it is told -----------------------------------------


class Scripted:
    """Ends each task as the script says; by default it is done."""

    patience = 0.0

    def __init__(self, script: Mapping[str, Sequence[TaskResult]], slots: int = 2) -> None:
        self.script = {id: list(ends) for id, ends in script.items()}
        self.slots, self.started, self.closed = slots, [], False  # type: ignore[var-annotated]
        self.running: list[str] = []

    def start(self, task: Task) -> None:
        self.started.append(task.id)
        self.running.append(task.id)
        assert len(self.running) <= self.slots

    def finished(self, wait: float) -> list[tuple[str, TaskResult]]:
        id = self.running.pop(0) if self.running else None
        if id is None:
            return []
        ends = self.script.get(id)
        return [(id, ends.pop(0) if ends else TaskResult(state="done"))]

    def close(self) -> None:
        self.closed = True


def conduct(folder: Path, sweep: Sweep, launcher: Scripted, **options: Any) -> Any:
    return run_sweep(folder, sweep, {"sites": folder}, launch=lambda _: launcher, **options)


def test_a_worker_that_dies_puts_its_job_back_and_three_deaths_are_a_failure(
    tmp_path: Path,
) -> None:
    killed = TaskResult(state="died", error="signal 9")
    launcher = Scripted({"one": [killed] * 3, "two": [killed] * 2})
    tally = conduct(tmp_path / "s", sweep_of([job("one"), job("two")]), launcher)
    assert sorted(launcher.started) == ["one"] * 3 + ["two"] * 3
    (failure,) = tally.failures
    assert all(fact in failure.error for fact in ("signal 9", "3 times", "--max-parallel"))
    assert (tally.jobs, tally.done, tally.already) == (2, 1, 0)
    assert launcher.closed
    again = Scripted({"one": [killed] * 3})
    tally = conduct(tmp_path / "s", sweep_of([job("one"), job("two")]), again, retry_failed=True)
    assert [failure.attempts for failure in tally.failures] == [2]


def test_a_busy_job_is_started_again(tmp_path: Path) -> None:
    launcher = Scripted({"one": [TaskResult(state="busy", error="another")] * 4})
    events: list[Event] = []
    tally = conduct(
        tmp_path / "s",
        sweep_of([job("one")]),
        launcher,
        listener=lambda queue, event: events.append(event) if event else None,
    )
    assert launcher.started == ["one"] * 5
    assert [event.kind for event in events] == ["started", "busy"] * 4 + ["started", "done"]
    assert (tally.done, tally.failures) == (1, ())


def test_a_failed_embedding_blocks_its_jobs_but_is_their_only_failure(tmp_path: Path) -> None:
    sweep = sweep_of([job("one", needs="phi"), job("two")], [embedding_job("phi")])
    tally = conduct(
        tmp_path / "s", sweep, Scripted({"phi": [TaskResult(state="died", error="signal 9")] * 3})
    )
    assert [failure.job for failure in tally.failures] == ["phi"]
    assert tally.blocked == ("one",)
    assert not SweepFolder(tmp_path / "s").failure_file("one").exists()


def test_a_full_disk_stops_the_sweep_and_is_no_failure_of_the_job(tmp_path: Path) -> None:
    launcher = Scripted({"one": [TaskResult(state="full", error="OSError: [Errno 28] full")]})
    with refused(SweepError, tmp_path / "s", "[Errno 28] full", "resume"):
        conduct(tmp_path / "s", sweep_of([job("one")]), launcher)
    assert launcher.closed
    assert not SweepFolder(tmp_path / "s").failure_file("one").exists()


def test_trouble_of_the_driver_itself_is_said_in_one_line(tmp_path: Path) -> None:
    class Broken(Scripted):
        def start(self, task: Task) -> None:
            raise PermissionError(13, "Permission denied", "/somewhere")

    broken = Broken({})
    with refused(SweepError, "/somewhere", "permission denied", "resume"):
        conduct(tmp_path / "s", sweep_of([job("one")]), broken)
    assert broken.closed


def test_ctrl_c_stops_the_workers(tmp_path: Path) -> None:
    class Interrupted(Scripted):
        def finished(self, wait: float) -> list[tuple[str, TaskResult]]:
            raise KeyboardInterrupt

    launcher = Interrupted({})
    with pytest.raises(KeyboardInterrupt):
        conduct(tmp_path / "s", sweep_of([job("one")]), launcher)
    assert launcher.closed


# ---- the folder ----------------------------------------------------------------------------------


def assert_refused(folder: Path, sweep: Sweep, *facts: object, **options: Any) -> None:
    """In a line with these facts, and without a trace in the folder."""
    before = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*"))
    with refused(SweepError, folder, *facts):
        conduct(folder, sweep, Scripted({}), **options)
    assert before == sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*"))


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for place in (tmp_path, tmp_path / "thesis.tex"):
        assert_refused(place, sweep_of([job("one")]), "--out")


def test_another_sweep_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    stored = sweep_of([job("one"), job("two")])
    SweepFolder(folder).write(stored)
    fewer = sweep_of([job("one"), job("three", trial=7)])
    for changed, facts in (
        (replace(stored, rule="oracle"), ("rule", "training-domains", "oracle")),
        (replace(stored, title="large"), ("title", "small", "large")),
        (replace(stored, baseline="irm"), ("baseline", "erm", "irm")),
        (sweep_of(stored.jobs, digest="1" * 64), ("data", "sites")),
        (fewer, ("1 of its 2 jobs", "two", "--extend")),
    ):
        assert_refused(folder, changed, *facts)
    assert_refused(folder, fewer, "1 of its 2 jobs", "two", extend=True)


def test_the_setting_that_makes_another_sweep_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    config = RunConfig(algorithm="erm", test_domains=("site-0",))
    SweepFolder(folder).write(sweep_of([job("erm-1", config)]))
    longer = replace(config, train=replace(config.train, steps=31))
    assert_refused(folder, sweep_of([job("erm-2", longer)]), "train.steps", 0, 31)


def test_more_jobs_need_to_be_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    SweepFolder(folder).write(sweep_of([job("one")]))
    larger = sweep_of([job("one"), job("two"), job("three")])
    assert_refused(folder, larger, 1, 3, 2, "--extend")
    launcher = Scripted({})
    conduct(folder, larger, launcher, extend=True)
    assert SweepFolder(folder).read() == larger
    assert launcher.started == ["one", "two", "three"]


def test_data_that_moved_are_the_same_sweep_and_the_new_place_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    stored = sweep_of([job("one")])
    SweepFolder(folder).write(stored)
    moved = replace(stored, datasets=(replace(stored.datasets[0], source="there"),))
    conduct(folder, moved, Scripted({}))
    assert SweepFolder(folder).read().datasets[0].source == "there"


def test_two_drivers_do_not_run_one_sweep(tmp_path: Path) -> None:
    sweep = sweep_of([job("one")])
    with claim(tmp_path / "s", sweep), refused(RunBusy, tmp_path / "s", "--out"):
        conduct(tmp_path / "s", sweep, Scripted({}))
    conduct(tmp_path / "s", sweep, Scripted({}))


def test_label_counts_are_kept_for_the_report(features: Manifest, tmp_path: Path) -> None:
    sweep = sweep_of([job("one")], digest=features.digest())
    plan = SweepPlan(sweep=sweep, manifests={"sites": features}, paths={"sites": tmp_path})
    driver.conduct(tmp_path, plan, lambda _: Scripted({}))
    stored = json.loads((tmp_path / "labels" / f"{features.digest()[:16]}.json").read_text())
    assert (stored["name"], stored["classes"]) == ("sites", ["ant", "bee", "cat"])
    assert stored["domains"]["site-0"] == {
        "role": None,
        "group": "",
        "counts": [8, 8, 8],
    }
    assert len(stored["domains"]) == 5


# ---- tasks ---------------------------------------------------------------------------------------


def task_of(folder: Path, sweep: Sweep, data: Path, id: str) -> Task:
    wanted = next(job for job in sweep.jobs if job.id == id)
    digest = sweep.dataset(wanted.dataset).digest
    return Task(
        sweep=str(folder), kind="run", id=id, data=str(data), digest=digest, config=wanted.config
    )


def test_a_task_fails_with_its_traceback_and_a_success_clears_that(
    tiny: Tiny, data: Path, tmp_path: Path
) -> None:
    sweep = small_sweep(tiny, data)
    task = task_of(tmp_path, sweep, data, "erm-0")
    wrong = replace(task, config={**task.config, "algorithm": "erl"})
    for attempts in (1, 2):
        outcome = perform(wrong)
        failure = SweepFolder(tmp_path).failure("erm-0")
        assert failure is not None
        assert outcome.state == "failed"
        assert outcome.error == failure.error and "'erl'" in failure.error
        assert failure.traceback.startswith("Traceback")
        assert failure.attempts == attempts
    assert perform(task).state == "done"
    assert SweepFolder(tmp_path).failure("erm-0") is None
    assert SweepFolder(tmp_path).job_state("erm-0") == "done"


def test_a_task_refuses_other_data(
    features: Manifest, tiny: Tiny, data: Path, tmp_path: Path
) -> None:
    sweep = small_sweep(tiny, data)
    other = tmp_path / "other.parquet"
    features.without_domains("site-2").write(other)
    outcome = perform(task_of(tmp_path, sweep, other, "erm-0"))
    assert outcome.state == "failed" and str(other) in outcome.error


def test_a_full_disk_is_no_failure(
    tiny: Tiny, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, line: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(records, "append_line", full)
    outcome = perform(task_of(tmp_path, small_sweep(tiny, data), data, "erm-0"))
    assert outcome.state == "full"
    assert SweepFolder(tmp_path).failure("erm-0") is None


def test_a_folder_that_another_process_works_in_is_busy(
    tiny: Tiny, data: Path, tmp_path: Path
) -> None:
    import fcntl

    task = task_of(tmp_path, small_sweep(tiny, data), data, "erm-0")
    run = SweepFolder(tmp_path).run("erm-0").path
    run.mkdir(parents=True)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = perform(task)
    assert outcome.state == "busy"
    assert SweepFolder(tmp_path).failure("erm-0") is None


# ---- real workers --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_on_local_workers(tiny: Tiny, data: Path, tmp_path: Path) -> None:
    sweep = small_sweep(tiny, data)
    broken = job("erm-9", tiny("erm", test_domains=["site-0"]))
    broken = replace(broken, config={**broken.config, "algorithm": "erl"})
    sweep = replace(sweep, jobs=(broken, *sweep.jobs))
    folder = tmp_path / "s"
    tally = run_sweep(folder, sweep, {"sites": data}, launch=LOCAL)
    assert (tally.jobs, tally.done, tally.blocked) == (5, 4, ())
    assert [failure.job for failure in tally.failures] == ["erm-9"]
    for other in sweep.jobs[1:]:
        assert scores(folder, other.id)
    # Both DA runs started from the Φ that was learned once.
    phi = SweepFolder(folder).embedding("phi-4").path / "embedding.safetensors"
    for id in ("da_erm-4", "da_coral-4"):
        shared = SweepFolder(folder).run(id).path / "embedding.safetensors"
        assert shared.read_bytes() == phi.read_bytes()
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = run_sweep(folder, sweep, {"sites": data}, launch=never)
    assert (again.done, again.already, len(again.failures)) == (4, 4, 1)
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


def never(folder: Path) -> Any:
    raise AssertionError("nothing is left to do, and yet workers were started")


@pytest.mark.slow
def test_workers_end_with_a_killed_driver_and_the_sweep_goes_on(
    tiny: Tiny, data: Path, tmp_path: Path
) -> None:
    endless = small_sweep(tiny, data, **{"train.steps": 50_000, "train.evaluate_every": 50_000})
    SweepFolder(tmp_path / "s").write(endless)
    driver = start_driver(tmp_path / "s", data, LaunchOptions(max_parallel=2, device="cpu"))
    try:
        wait_until(lambda: len(list((tmp_path / "s" / "runs").glob("erm-*/checkpoint-*"))) == 2)
        workers = children(driver.pid)
        assert len(workers) == 2
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(alive(pid) for pid in workers), seconds=5)
    with claim(tmp_path / "s", endless):
        pass  # the lock went with its holder


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
def test_a_worker_killed_at_work_is_replaced(tiny: Tiny, data: Path, tmp_path: Path) -> None:
    long = tiny("erm", test_domains=["site-0"], **{"train.steps": 200})
    sweep = sweep_of([job("erm-0", long)], digest=Manifest.open(data).digest())
    killed: list[int] = []
    opened: list[LocalLauncher] = []

    def launch(folder: Path) -> LocalLauncher:
        opened.append(LocalLauncher(folder, LaunchOptions(max_parallel=1, device="cpu")))
        return opened[0]

    def listener(queue: Queue, event: Event | None) -> None:
        worker = opened[0]._workers[0]
        at_work = list(SweepFolder(tmp_path / "s").run("erm-0").path.glob("checkpoint-*"))
        if event is None and not killed and worker is not None and at_work:
            killed.append(worker.process.pid)
            worker.process.send_signal(signal.SIGKILL)

    tally = run_sweep(tmp_path / "s", sweep, {"sites": data}, launch=launch, listener=listener)
    assert (len(killed), tally.done, tally.failures) == (1, 1, ())
    alone = run_sweep(tmp_path / "t", sweep, {"sites": data}, launch=LOCAL)
    assert alone.done == 1
    assert scores(tmp_path / "s", "erm-0") == scores(tmp_path / "t", "erm-0")


def test_a_worker_that_cannot_start_says_why(
    tiny: Tiny, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "broken"))
    (tmp_path / "broken").write_text("#!/bin/sh\necho 'ImportError: no torch' >&2\nexit 1\n")
    (tmp_path / "broken").chmod(0o755)
    with refused(SweepError, "ImportError: no torch", tmp_path / "s" / "logs" / "worker-"):
        run_sweep(tmp_path / "s", small_sweep(tiny, data), {"sites": data}, launch=LOCAL)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 2 GPUs and 12 cores."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("acclimate.sweep.launchers.local.cores", lambda: 12)


@pytest.mark.usefixtures("two_gpus")
def test_slots_share_out_the_gpus() -> None:
    assert local_slots(LaunchOptions()) == [Slot("cuda:0", 6), Slot("cuda:1", 6)]
    assert [slot.device for slot in local_slots(LaunchOptions(max_parallel=5))] == [
        *("cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0")
    ]
    assert local_slots(LaunchOptions(device="cuda:1", max_parallel=3)) == [Slot("cuda:1", 4)] * 3
    # One thread each, however many there are: thread counts change rounding.
    assert local_slots(LaunchOptions(device="cpu")) == [Slot("cpu", 1)] * 12
    assert local_slots(LaunchOptions(device="cpu", max_parallel=2)) == [Slot("cpu", 1)] * 2


def test_a_folder_that_cannot_be_locked_is_not_called_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    locked = claim(tmp_path / "s", sweep_of([job("one")]))
    with refused(SweepError, tmp_path / "s", "No locks available"), locked:
        pass


def test_what_was_being_written_when_a_driver_was_killed_is_cleared(tmp_path: Path) -> None:
    sweep = sweep_of([job("one")])
    left = [tmp_path / part / ".x.json.0123abcd.tmp" for part in (".", "failures", "labels")]
    SweepFolder(tmp_path).write(sweep)
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))  # nobody has written to it for long
    with claim(tmp_path, sweep):
        assert not any(path.exists() for path in left)


def test_a_failure_that_a_killed_worker_had_mended_is_forgotten(tmp_path: Path) -> None:
    """It had finished the job, and was killed before it could remove the note."""
    sweep = sweep_of([job("one"), job("two")])
    place = SweepFolder(tmp_path).run("one").path
    place.mkdir(parents=True)
    end = records.Finished(
        kept_step=1, kept_by="last step", kept_score=None, seconds=1.0, quarantined=0
    )
    RunFolder(place).append(end)
    write_checksums(place, finished=True)
    SweepFolder(tmp_path).write(sweep)
    for id in ("one", "two"):
        note_failure(SweepFolder(tmp_path), id, "an error")
    tally = conduct(tmp_path, sweep, Scripted({}))
    assert [failure.job for failure in tally.failures] == ["two"]
    assert [path.stem for path in (tmp_path / "failures").iterdir()] == ["two"]


@pytest.mark.slow
def test_kills_of_drivers_and_workers_change_nothing(tmp_path: Path) -> None:
    """A small version of what `benchmarks/chaos.py` does with twenty kills."""
    script = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
    flags = ["--kills", "3", "--trials", "1", "--draws", "2", "--out", str(tmp_path / "chaos")]
    done = subprocess.run(
        [sys.executable, str(script), *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(
        "equal: every job has one result, and scores and choices are the same\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", (0, 12000))
def test_workers_that_cannot_write(
    tiny: Tiny, data: Path, tmp_path: Path, features: Manifest, size: int
) -> None:
    """The system refuses what a file has beyond `size`, to the driver as to its workers."""
    config = tiny("erm", test_domains=["site-0"])
    sweep = sweep_of([job("erm-0", config)], digest=Manifest.open(data).digest())
    folder, alone = tmp_path / "sweep", tmp_path / "alone"
    train(config, features, alone)
    with no_file_above(size):
        try:
            tally = run_sweep(folder, sweep, data={"sites": data}, launch=LOCAL)
        except WriteError as error:
            assert size == 0
            said = str(error)
        else:
            (said,) = [failure.error for failure in tally.failures]
    assert "file too large" in said and "\n" not in said
    tally = run_sweep(folder, sweep, data={"sites": data}, launch=LOCAL, retry_failed=True)
    assert (tally.done, tally.failures) == (1, ())
    assert_same_weights(SweepFolder(folder).run("erm-0").path, alone)
    assert not list(folder.rglob("*.tmp"))
