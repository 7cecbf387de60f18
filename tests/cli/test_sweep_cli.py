"""The `sweep` command: what it says before, while and after, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from acclimate.cli import sweep as sweep_command
from acclimate.config import RunConfig, from_dict, nested
from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep import jobs
from acclimate.sweep.definition import gather
from acclimate.sweep.driver import Event, Queue, Tally
from fixtures.errors import refused
from fixtures.settings import TINY, as_flags
from fixtures.sweeps import embedding_job, job, sweep_of

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


def assert_error(ended: "subprocess.CompletedProcess[str]", *facts: object) -> None:
    """One line with these facts, and a code of its own."""
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
    assert [str(fact) for fact in facts if str(fact) not in ended.stderr] == []


@pytest.mark.slow
def test_a_sweep_from_plan_to_table(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "s"
    plan = run(small(data, out, "--dry-run"))
    assert plan.returncode == 0, plan.stderr
    for fact in ("rule: training-domains", "runs: 4", "embeddings: 2", "left: 4"):
        assert fact in plan.stdout
    facts = json.loads(run(small(data, out, "--dry-run", "--json")).stdout)
    assert (facts["runs"], facts["embeddings"], facts["left"], facts["done"]) == (4, 2, 4, 0)
    assert not out.exists()
    small_ones = run(small(data, out, "--dry-run", "--set", "data.min_images=25"))
    assert_error(small_ones, "'site-0'", "sites.parquet", 24, 25, "data.min_images")

    done = run(small(data, out))
    assert done.returncode == 0, done.stderr
    assert "[4/4] done" in done.stderr
    assert "done: 4\n" in done.stdout
    assert f"acclimate report {out}" in done.stdout
    assert len(list((out / "labels").glob("*.json"))) == 1

    before = contents(out)
    again = run(small(data, out, "--json"))
    assert again.returncode == 0, again.stderr
    assert before == contents(out)
    found = json.loads(again.stdout)
    assert (found["runs"], found["done"], found["done_before"], found["failures"]) == (4, 4, 4, [])

    other = run(small(data, out, "--rule", "oracle"))
    assert_error(other, out, "'training-domains'", "'oracle'", "--out")


def test_the_metric_is_a_setting_of_every_run(
    cli: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Sweep] = []
    real = jobs.define

    def define(*args: Any, **options: Any) -> Sweep:
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr(jobs, "define", define)
    flags = ["--algorithms", "erm", "--metric", "nll", *as_flags(TINY), "--dry-run"]
    assert cli("sweep", data, *flags, "--out", tmp_path / "s")[0] == 0
    (sweep,) = made
    assert sweep.metric == "nll"
    assert {job.config["train"]["metric"] for job in sweep.jobs} == {"nll"}
    assert {job.config["train"]["steps"] for job in sweep.jobs} == {TINY["train.steps"]}


@pytest.mark.slow
def test_every_algorithm_on_features(cli: Any, data: Path, tmp_path: Path) -> None:
    """The page has the line that made it, which a repetition leaves as it was."""
    out, line = tmp_path / "s", ["--algorithms", "all", "--features", "--test-domains", "site-0"]
    line += ["--trials", "1", "--device", "cpu", *as_flags(TINY), "--out", str(tmp_path / "s")]
    code, _, said = cli("sweep", data, *line)
    assert code == 0 and "miro is left out" in said and "runs: 42" in said
    assert cli("sweep", data, *line, "--retry-failed")[0] == 0
    sweep = SweepFolder(out).read()
    assert len(sweep.jobs) == 42 and sweep.command.startswith(f"acclimate sweep {data} --algo")
    assert "--retry-failed" not in sweep.command and len(sweep.left_out) == 2
    assert cli("report", out)[0] == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    facts = ["miro is left out", "Seconds a run", "the same layers for all", "but those set aside"]
    assert [text for text in (f"<pre>{sweep.command}</pre>", *facts) if text not in page] == []


def test_runs_of_a_sweep_have_one_metric(data: Path) -> None:
    """Draws and lines could not be compared by several."""
    for table in ("per_algorithm", "variants"):
        with refused(ConfigError, f"{table}.erm.train.metric"):
            gather(None, {"data": (str(data),), table: {"erm": {"train.metric": "nll"}}})


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
    for fact in (blocker.name, out / "failures", "--retry-failed"):
        assert str(fact) in failed.stdout
    assert "done: 3\n" in failed.stdout
    blocker.unlink()
    mended = run([*line, "--retry-failed", "--json"])
    assert mended.returncode == 0, mended.stderr
    found = json.loads(mended.stdout)
    assert (found["done"], found["done_before"], found["failures"]) == (4, 3, [])


def defined(data: Path, out: Path) -> list[str]:
    """The jobs of the command, in a folder that it has claimed and done nothing in yet."""
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
    assert "resume" in errors.splitlines()[-1]
    assert "Traceback" not in errors


# ---- progress ------------------------------------------------------------------------------------


def small_queue(**found: Any) -> tuple[Sweep, Queue]:
    """A Φ and the two jobs that need it, waiting unless `found` says otherwise."""
    config = from_dict(RunConfig, nested(TINY), where="test")
    jobs = [job(name, config, needs="phi") for name in ("one", "two")]
    sweep = sweep_of(jobs, [embedding_job("phi", config)])
    return sweep, Queue(sweep, {"phi": "waiting", "one": "waiting", "two": "waiting", **found})


def test_without_a_terminal_each_job_that_ends_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep, queue = small_queue(phi="done", one="done")
    with sweep_command.progress_shown(sweep) as heard:
        queue.start("two")
        for kind, note in (("started", ""), ("busy", ""), ("died", "signal 9"), ("done", "")):
            heard(queue, Event(id="two", kind=kind, note=note))  # type: ignore[arg-type]
        queue.end("two", "done")
        heard(queue, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["[1/2] died two: signal 9", "[1/2] done two"]
    assert "2 of 2" in lines[2]


@pytest.mark.parametrize(("done", "code"), [(2, None), (1, 1)])
def test_a_sweep_ends_well_only_where_every_job_is_done(
    tmp_path: Path, done: int, code: int | None
) -> None:
    """Also where a failure could not even be written down."""
    tally = Tally(jobs=2, already=0, done=done, failures=(), blocked=())
    with nullcontext() if code is None else pytest.raises(typer.Exit) as end:
        sweep_command.show(tmp_path, tally, json=False)
    assert code == (end and end.value.exit_code)
