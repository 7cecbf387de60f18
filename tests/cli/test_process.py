"""What surrounds a command: closed streams, signals, launchers' variables, limits, odd links."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from acclimate.core.environment import first_process, launched
from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from fixtures.errors import refused
from fixtures.pictures import write_sites

ACCLIMATE = [sys.executable, "-m", "acclimate"]
LISTENING = (  # also where tests run in the background
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from acclimate.cli import main; main()"
)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites") / "tree", 6, ".png")


def shell(command: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    """A command line in a shell, which alone can close a stream."""
    task = ["bash", "-c", command.replace("acclimate", " ".join(ACCLIMATE))]
    return subprocess.run(task, capture_output=True, text=True, timeout=300, **more)


def test_closed_streams_do_not_end_a_command(sites: Path, tmp_path: Path) -> None:
    whole = shell(f"acclimate inspect {sites}")
    assert whole.returncode == 0 and whole.stdout
    closed = shell(f"acclimate inspect {sites} 2>&-")
    assert (closed.returncode, closed.stdout) == (0, whole.stdout)
    for closing in (">&-", ">&- 2>&-", "<&- >&- 2>&-"):
        out = tmp_path / "m.parquet"
        assert shell(f"acclimate build folder {sites} --out {out} {closing}").returncode == 0
        assert len(Manifest.open(out)) == len(Manifest.open(sites))
        out.unlink()
    wrong = shell(f"acclimate inspect {tmp_path / 'nowhere'} >&-")
    assert wrong.returncode == 1 and wrong.stderr.startswith("error: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_in_one_line(sites: Path, tmp_path: Path, number: int, code: int) -> None:
    flags = ["--algorithm", "erm", "--set", "train.steps=1000000", "--device", "cpu"]
    run = ["train", str(sites), *flags, "--out", str(tmp_path / "run")]
    task = [sys.executable, "-c", LISTENING, *run]
    process = subprocess.Popen(task, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    records = tmp_path / "run" / "records.jsonl"
    until = time.monotonic() + 120
    while not records.exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    assert out == "" and "Traceback" not in error
    assert error.splitlines()[-1] == "interrupted; repeat the command to resume"


def test_a_signal_while_a_command_is_read(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from acclimate import cli as module

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "load_commands", interrupted)
    code, out, error = cli("inspect", "x")
    assert (code, out, error) == (130, "", "interrupted; repeat the command\n")


@pytest.mark.parametrize(
    ("variables", "prints"),
    [
        ({"RANK": "1"}, True),
        ({"RANK": "abc"}, True),
        ({"RANK": "1", "WORLD_SIZE": "1"}, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
    ],
)
def test_one_process_speaks_for_all(
    cli: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], prints: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert first_process() is prints
    code, out, _ = cli("list", "methods")
    assert code == 0 and bool(out) is prints


@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "²"])
def test_what_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    with refused(ConfigError, "WORLD_SIZE", value):
        launched("WORLD_SIZE", 1)
    monkeypatch.setenv("WORLD_SIZE", "")
    assert launched("WORLD_SIZE", 1) == 1


def test_processes_that_nobody_started(
    cli: Any, sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    code, _, error = cli("train", sites, "--out", tmp_path / "run", "--device", "cpu")
    assert code == 1
    assert error.splitlines()[-1].startswith("error: the 2 processes of WORLD_SIZE")


def test_links_that_lead_to_themselves(cli: Any, sites: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    commands = (
        ("inspect", loop), ("train", loop), ("build", "folder", loop, "--out", "a.parquet"),
        ("train", sites, "--out", loop), ("report", loop), ("train", sites, "--config", loop),
        ("adapt", loop, sites, "--out", tmp_path / "a"), ("sweep", sites, "--out", loop),
    )  # fmt: skip
    for command in commands:
        code, _, error = cli(*command)
        assert code == 1, command
        assert error.strip().splitlines()[-1].startswith("error: "), (command, error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        SystemError("error return without exception set"),
        RuntimeError("could not create a primitive"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_each_word_for_too_little_memory(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from acclimate import cli as module

    def fails() -> None:
        raise error

    monkeypatch.setattr(module, "load_commands", fails)
    code, out, words = cli("inspect", "x")
    assert (code, out) == (1, "") and len(words.splitlines()) == 1
    assert f"out of memory ({str(error) or 'MemoryError'})" in words


def test_an_error_that_is_not_about_memory_is_shown_whole(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acclimate import cli as module

    def fails() -> None:
        raise SystemError("bad call")

    monkeypatch.setattr(module, "load_commands", fails)
    with pytest.raises(SystemError, match="bad call"):
        module.main()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of an address space")
@pytest.mark.parametrize(("gib", "rows"), [(0.6, 8), (6, 20_000)])
def test_too_little_memory_is_one_line(sites: Path, tmp_path: Path, gib: float, rows: int) -> None:
    """Too little for torch, and too little for a batch. Not between the two: where a thread finds
    no memory for its first line, Python waits for it forever."""
    limit = int(gib * 2**30)
    task = [*ACCLIMATE, "train", str(sites), "--algorithm", "erm", "--device", "cpu"]
    done = subprocess.run(
        [*task, "--set", f"train.per_domain={rows}", "--out", str(tmp_path / "run")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: out of memory (")
