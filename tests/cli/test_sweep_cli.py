"""The `sweep` command: what it says before, while and after, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer

from acclimate.cli import main, sweep_live, sweep_run
from acclimate.config import as_dict
from acclimate.core.wording import duration
from acclimate.data.manifest import Manifest
from acclimate.results.protocol import DataSet, EmbeddingJob, Job, Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.runs.folder import RunFolder
from acclimate.runs.records import Loss, append
from acclimate.sweep import conduct, estimate
from acclimate.sweep.driver import Event, Tally
from acclimate.sweep.launchers import LaunchOptions
from acclimate.sweep.queue import Queue
from acclimate.sweep.task import Progress, progress_of
from fixtures.settings import TINY, as_flags

ENVIRONMENT = {**os.environ, "COLUMNS": "200"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, features: Manifest) -> Path:
    path = tmp_path_factory.mktemp("data") / "sites.parquet"
    features.write(path)
    return path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "acclimate", "sweep", *arguments]


def small(data: Path, out: Path, *more: str) -> list[str]:
    flags = ["--algorithms", "erm,da-erm", "--test-domains", "site-0", "--test-domains", "site-1"]
    flags += ["--trials", "1", "--device", "cpu", "--max-parallel", "2", *as_flags(TINY)]
    return command(str(data), *flags, "--out", str(out), *more)


def run(line: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, check=False)


@pytest.mark.slow
def test_methods_are_lines_of_their_own(data: Path, tmp_path: Path) -> None:
    """In the table, in --json, in the report and in its --json."""
    asked = ["--methods", "prior,embedding+prior", "--algorithms", "erm,da-erm", "--trials", "1"]
    asked += ["--test-domains", "site-0", "--device", "cpu", *as_flags(TINY)]
    line = command(str(data), *asked, "--out", str(tmp_path / "s"))
    done = run(line)
    assert done.returncode == 0, done.stderr
    assert [row.split("  ")[0] for row in done.stdout.splitlines()][2:7] == [
        "erm",
        "erm by prior",
        "da-erm",
        "da-erm by prior",
        "da-erm by embedding+prior",
    ]
    assert "2 of 2 runs done" in done.stdout
    found = json.loads(run([*line, "--json"]).stdout)["choices"]["training-domains"]
    methods = [("da-erm", m) for m in ("embedding", "embedding+prior", "prior")]
    methods += [("erm", m) for m in ("none", "prior")]
    assert [(one["algorithm"], one["method"]) for one in found] == methods
    assert all(one["top1"] is not None for one in found)
    report = [sys.executable, "-m", "acclimate", "report", str(tmp_path / "s"), "--json"]
    rows = json.loads(run(report).stdout)["results"][0]["rows"]
    assert {(row["algorithm"], row["method"]) for row in rows} >= {*methods}


@pytest.mark.slow
def test_a_sweep_from_plan_to_table(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "s"
    plan = run(small(data, out, "--dry-run"))
    assert plan.returncode == 0, plan.stderr
    assert "training-domains 4" in plan.stdout
    assert "this sweep: 4 runs and 2 shared embeddings, chosen by training-domains" in plan.stdout
    assert "0 done, 0 failed, 4 left" in plan.stdout
    assert "time left: about" in plan.stdout
    assert not out.exists()
    small_ones = run(small(data, out, "--dry-run", "--min-images", "25"))
    assert small_ones.stderr == (
        "error: domain 'site-0' of sites.parquet has 24 images, and domains with fewer than 25 are "
        "left out; name others, or lower data.min_images\n"
    )

    done = run(small(data, out))
    assert done.returncode == 0, done.stderr
    assert "[4/4] done" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["algorithm", "training-domains", "oracle"] in lines
    assert {line[0] for line in lines if line and line[0] in ("erm", "da-erm")} == {"erm", "da-erm"}
    assert f"4 of 4 runs done; sweep folder: {out}" in done.stdout
    assert f"report: run `acclimate report {out}`" in done.stdout
    assert len(list((out / "labels").glob("*.json"))) == 1

    before = contents(out)
    again = run(small(data, out, "--json"))
    assert again.returncode == 0, again.stderr
    assert before == contents(out)
    found = json.loads(again.stdout)
    assert (found["runs"], found["done"], found["done_before"], found["failed"]) == (4, 4, 4, 0)
    choices = found["choices"]["training-domains"]
    assert {(c["algorithm"], c["target"][0]) for c in choices} == {
        *(("erm", "site-0"), ("erm", "site-1"), ("da-erm", "site-0"), ("da-erm", "site-1"))
    }
    assert all(0 <= c["top1"] <= 1 for c in choices)

    other = run(small(data, out, "--rule", "oracle"))
    assert other.returncode == 1
    assert other.stderr == (
        f"error: {out} holds another sweep (its rule is 'training-domains', not 'oracle'); "
        "choose another --out, or repeat the command that made it\n"
    )


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_failures_are_listed_and_tried_again(data: Path, tmp_path: Path) -> None:
    """A file where a run's folder belongs makes one job fail, until it is removed."""
    out = tmp_path / "s"
    line = small(data, out)
    blocker = out / "runs" / defined(data, out)[0]
    blocker.parent.mkdir()
    blocker.touch()
    failed = run(line)
    assert failed.returncode == 1
    assert f"failed {blocker.name}: " in failed.stdout
    assert f"(traceback: {out}/failures/{blocker.name}.json)" in failed.stdout
    assert "once mended, try them again with --retry-failed" in failed.stdout
    assert "3 of 4 runs done; " in failed.stdout
    blocker.unlink()
    mended = run([*line, "--retry-failed", "--json"])
    assert mended.returncode == 0, mended.stderr
    found = json.loads(mended.stdout)
    assert (found["done"], found["done_before"], found["failures"]) == (4, 3, [])


def defined(data: Path, out: Path) -> list[str]:
    """The jobs of the command, in a folder that it has claimed and done nothing in yet."""
    from acclimate.config import nested
    from acclimate.sweep.definition import gather, open_data
    from acclimate.sweep.jobs import define

    flags: dict[str, Any] = {
        "data": (str(data),),
        "algorithms": ("erm", "da-erm"),
        "test_domains": ("site-0", "site-1"),
        "trials": 1,
        "settings": nested(TINY),
    }
    asked = gather(None, flags)
    made = define(asked, open_data(asked))
    SweepFolder(out).write(made)
    return [job.id for job in made.jobs]


# Python leaves Ctrl-C ignored where it was ignored before, as in the background of a shell script.
# The test may be running there; the command under test is not.
LISTENING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from acclimate.cli import main; main()"
)


@pytest.mark.slow
def test_ctrl_c_stops_and_says_how_to_resume(data: Path, tmp_path: Path) -> None:
    long = [f"--set={key}" for key in ("train.steps=100000", "train.evaluate_every=100000")]
    arguments = small(data, tmp_path / "s", *long)[3:]
    line = [sys.executable, "-c", LISTENING, *arguments]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        try:
            runs = tmp_path / "s" / "runs"
            while process.poll() is None and not list(runs.glob("*/checkpoint-*")):
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()  # it would train for hours after a failure of this test
    assert process.returncode == 130
    assert errors.endswith("interrupted; repeat the command to resume\n")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slurm", "partition"], "--slurm partition: write it as key=value, e.g. --slurm "),
        (["--search", "lr"], "--search lr: write it as key=value, e.g. --search "),
        (["--launcher", "lokal"], "there is no launcher 'lokal'; did you mean 'local'?"),
        (["--max-parallel", "0"], "--max-parallel must be at least 1, not 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    data: Path,
    tmp_path: Path,
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", small(data, tmp_path / "s", *flags)[2:])
    with pytest.raises(SystemExit) as end:
        main()
    assert str(end.value).startswith(f"error: {message}")
    assert not (tmp_path / "s").exists()


# ---- the live table ------------------------------------------------------------------------------


def test_progress_is_read_from_what_a_job_has_written(tmp_path: Path, tiny: Any) -> None:
    assert progress_of(RunFolder(tmp_path)) == Progress("")
    loss = {"risk": 1.0, "penalty": None, "lr": 0.1, "images_per_second": 1.0}
    append(tmp_path / "records.jsonl", Loss(phase="embedding", step=2, **loss))
    (tmp_path / "run.json").write_text(json.dumps({"config": as_dict(tiny("da-erm"))}))
    assert progress_of(RunFolder(tmp_path)) == Progress("embedding", 2, 4)
    append(tmp_path / "records.jsonl", Loss(phase="main", step=3, **loss))
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"schema": 1, "ki')  # being written
    assert progress_of(RunFolder(tmp_path)) == Progress("main", 3, 6)
    assert sweep_live.phase_of(progress_of(RunFolder(tmp_path))) == "Step B: predictor 3/6"


def test_the_live_table_counts_jobs_by_algorithm(tmp_path: Path) -> None:
    from rich.console import Console

    jobs = [
        Job(
            id=f"{name}-{number}",
            dataset="d",
            algorithm=name,
            groups=(("a",),),
            draw=0,
            trial=number,
            config={},
        )
        for name in ("erm", "irm")
        for number in range(3)
    ]
    data = DataSet(name="d", digest="0", source="", domains=())
    sweep = Sweep(
        title="", rule="oracle", baseline="erm", datasets=(data,), embeddings=(), jobs=tuple(jobs)
    )
    found: dict[str, Any] = dict.fromkeys((job.id for job in jobs), "waiting")
    queue = Queue(sweep, {**found, "erm-0": "done", "irm-2": "failed"})
    queue.start("erm-1")
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w"))
    table = sweep_live._Table(None, tmp_path, sweep, already=1)  # type: ignore[arg-type]
    console.print(table._drawing(queue, table.pace.began + 90.0))
    lines = [line.split() for line in console.export_text().splitlines()]
    console.file.close()
    assert lines == [
        ["algorithm", "done", "running", "failed", "waiting"],
        ["erm", "1", "1", "0", "1"],
        ["irm", "0", "0", "1", "2"],
        ["erm-1", "starting"],
        ["1", "min", "30", "s", "elapsed"],
    ]
    queue.end("erm-1", "done")
    # One job took 90 s, three are left; half of one of them is done as well.
    assert sweep_live.time_line(queue, 90.0, 1) == "1 min 30 s elapsed, about 4 min 30 s left"
    half = sweep_live.done_share(Progress("main", 3, 6))
    assert half == 0.5
    assert sweep_live.done_share(Progress("embedding", 3, 6)) == 0.0
    assert sweep_live.time_line(queue, 90.0, 1, half) == "1 min 30 s elapsed, about 2 min 30 s left"
    # Half of what is done was done in another sitting: a run takes 180 s.
    resumed = sweep_live.time_line(queue, 90.0, 1, half, before=1.0)
    assert resumed == "1 min 30 s elapsed, about 7 min 30 s left"


def small_queue(**found: Any) -> tuple[Sweep, Queue]:
    """A Φ and the two jobs that need it, waiting unless `found` says otherwise."""
    settings: dict[str, Any] = {"dataset": "d", "config": {}}
    jobs = [
        Job(
            id=id,
            algorithm="da-erm",
            groups=(("a",),),
            draw=0,
            trial=trial,
            needs="phi",
            **settings,
        )
        for trial, id in enumerate(("one", "two"))
    ]
    sweep = Sweep(
        title="",
        rule="oracle",
        baseline="erm",
        datasets=(DataSet(name="d", digest="0", source="", domains=()),),
        embeddings=(EmbeddingJob(id="phi", **settings),),
        jobs=tuple(jobs),
    )
    return sweep, Queue(sweep, {"phi": "waiting", "one": "waiting", "two": "waiting", **found})


def test_without_a_terminal_long_jobs_are_spoken_of_now_and_then(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    moments = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: moments[0])
    sweep, queue = small_queue(phi="done", one="done")
    place = SweepFolder(tmp_path).run("two").path
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({"config": as_dict(tiny("da-erm"))}))
    loss = {"risk": 1.0, "penalty": None, "lr": 0.1, "images_per_second": 1.0}
    append(place / "records.jsonl", Loss(phase="main", step=1, **loss))
    text = StringIO()
    console = Console(file=text, highlight=False, markup=False, soft_wrap=True)
    lines = sweep_live._Lines(console, tmp_path, sweep, already=1)
    queue.start("two")
    lines.heard(queue, Event(id="two", kind="started"))  # one step was done in another sitting
    append(place / "records.jsonl", Loss(phase="main", step=4, **loss))
    # After 20 s, then more and more seldom, and every five minutes at least.
    for moments[0] in (0.0, 19.0, 20.0, 21.0, 300.0, 333.0, 334.0, 6000.0, 6299.0, 6300.0):
        lines.heard(queue, None)
    lines.heard(queue, Event(id="two", kind="died", note="signal 9"))
    moments[0] = 6500.0
    lines.heard(queue, None)
    lines.heard(queue, Event(id="phi", kind="done"))
    assert text.getvalue().splitlines() == [
        "[1/2] running two (Step B: predictor 4/6); 20 s elapsed, about 13 s left",
        "[1/2] running two (Step B: predictor 4/6); 5 min 00 s elapsed, about 3 min 20 s left",
        "[1/2] running two (Step B: predictor 4/6); 5 min 34 s elapsed, about 3 min 43 s left",
        "[1/2] running two (Step B: predictor 4/6); 1 h 40 min elapsed, about 1 h 06 min left",
        "[1/2] running two (Step B: predictor 4/6); 1 h 45 min elapsed, about 1 h 10 min left",
        "[1/2] died two: signal 9",
        "[1/2] done the shared embedding phi",
    ]


def test_an_estimate_leaves_out_what_failed_and_never_stops_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, queue = small_queue(phi="failed")
    assert estimate.without_failed(sweep, queue).jobs == ()
    assert estimate.without_failed(sweep, queue).embeddings == ()
    sweep, queue = small_queue(two="failed")
    going = estimate.without_failed(sweep, queue)
    assert ([job.id for job in going.jobs], going.embeddings) == (["one"], sweep.embeddings)

    def expected(launcher: str, device: str) -> Any:
        launch = LaunchOptions(launcher=launcher, device=device)
        return estimate.expected_time(tmp_path, sweep, {}, launch, queue)

    def no_room(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("acclimate.sweep.estimate.estimate", no_room)
    assert expected("slurm", "cuda") == (
        "jobs run elsewhere, and there is no GPU here to time steps on"
    )
    assert expected("slurm", "cpu") == "steps cannot be timed: CUDA out of memory."
    assert expected("local", "cpu") == "steps cannot be timed: CUDA out of memory."


def test_durations_are_said_in_two_units() -> None:
    found = [duration(seconds) for seconds in (8, 95, 4000, 200_000)]
    assert found == ["8 s", "1 min 35 s", "1 h 06 min", "2 d 7 h"]


@pytest.mark.parametrize(("done", "code"), [(2, None), (1, 1)])
def test_a_sweep_ends_well_only_where_every_job_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int, code: int | None
) -> None:
    """Also where a failure could not even be written down."""
    sweep, _ = small_queue()
    tally = Tally(jobs=2, already=0, done=done, failures=(), blocked=())
    monkeypatch.setattr(conduct, "run_sweep", lambda *_, **__: tally)
    monkeypatch.setattr(conduct, "write_labels", lambda *_: None)
    monkeypatch.setattr(sweep_run, "_expected", lambda *_: None)
    how = conduct.Conduct(launch=LaunchOptions(device="cpu"))
    plan = conduct.Prepared(sweep, {}, {}, {})
    if code is None:
        assert sweep_run.run_and_show(tmp_path, plan, how, json=False) is not None
        return
    with pytest.raises(typer.Exit) as end:
        sweep_run.run_and_show(tmp_path, plan, how, json=False)
    assert end.value.exit_code == code
