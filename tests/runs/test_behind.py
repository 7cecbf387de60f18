"""Files written behind the training: in order, of what was there, and no failure is lost."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from acclimate.config import RunConfig
from acclimate.core.distributed import World
from acclimate.core.errors import AcclimateError
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.runs import behind, loop
from acclimate.runs.behind import MOST, AtOnce, Behind, saver
from acclimate.runs.training import train
from fixtures.gpu import on_gpu
from fixtures.interruption import assert_same_weights, stable

CPU = torch.device("cpu")
Tiny = Callable[..., RunConfig]


def test_what_was_there_is_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    go = threading.Event()

    def slow(path: Path, tensors: object, metadata: object = None) -> None:
        assert go.wait(60)
        save_tensors(path, tensors, metadata)  # type: ignore[arg-type]
        done.append(path.name)

    monkeypatch.setattr(behind, "save_tensors", slow)
    value = torch.zeros(3)
    with Behind(CPU) as files:
        files.write(tmp_path / "first", {"x": value}, {"step": "1"})
        value += 1
        files.write(tmp_path / "second", {"x": value})
        value += 1
        files.then(lambda: done.append("then"))
        assert done == [], "nobody waits"
        go.set()
        files.settle()
        assert done == ["first", "second", "then"]
    assert load_file(tmp_path / "first")["x"].tolist() == [0, 0, 0]
    assert load_file(tmp_path / "second")["x"].tolist() == [1, 1, 1]


def test_a_failure_comes_up_with_the_next_checkpoint_or_at_the_end(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("no space left")

    files = Behind(CPU)
    files.then(fail)
    with pytest.raises(OSError, match="no space"):
        files.settle()
    files.settle()  # it is said once
    with pytest.raises(OSError, match="no space"), Behind(CPU) as files:
        files.then(fail)
    with pytest.raises(ValueError, match="of its own"), Behind(CPU) as files:
        files.then(fail)
        raise ValueError("of its own")


def test_nothing_is_done_after_a_write_that_failed(tmp_path: Path) -> None:
    """What the last checkpoint needs stays until there is a next one."""
    needed = tmp_path / "best"
    needed.touch()

    def fail() -> None:
        raise OSError("no space left")

    files = Behind(CPU)
    files.then(fail)
    files.then(needed.unlink)
    with pytest.raises(OSError, match="no space"):
        files.settle()
    files._pool.shutdown()
    assert needed.exists()


def test_no_more_is_held_than_memory_should_and_a_failure_comes_up_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def slow(path: Path, tensors: object, metadata: object = None) -> None:
        assert go.wait(60)
        if path.name == "1":
            raise OSError("no space left")

    monkeypatch.setattr(behind, "save_tensors", slow)
    files = Behind(CPU)
    for number in range(MOST):
        assert not files.writing(tmp_path / str(number))
        files.write(tmp_path / str(number), {})  # nobody waits
        assert files.writing(tmp_path / str(number))
    threading.Timer(0.2, go.set).start()
    with pytest.raises(OSError, match="no space"):
        for number in range(MOST):
            files.write(tmp_path / f"further {number}", {})
            assert go.is_set(), "the first had to be written before"
    assert not files.writing(tmp_path / "0")
    files.end()


def test_a_checkpoint_that_is_due_while_one_is_written_is_left_out(
    tiny: Tiny, features: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four, the first is held up until the third step; the weights that it ends with, and those
    of a run that is killed and goes on from the first, are the same as ever."""
    config = tiny("erm", **{"train.steps": 4, "train.checkpoint_every": 1, "train.keep": "last"})
    train(config, features, tmp_path / "usual", device="cpu")
    begun, go, written = threading.Event(), threading.Event(), []

    def slow(path: Path, tensors: Any, metadata: Any = None) -> None:
        if path.name.startswith("checkpoint"):
            written.append(json.loads(metadata["progress"])["step"])
            begun.set()
            assert go.wait(60)
        save_tensors(path, tensors, metadata)

    def watch(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == ("main", 3):
            assert begun.wait(60) and written == [1]
            go.set()
        if (phase, done) == ("main", 3) and killed:
            raise KeyboardInterrupt

    monkeypatch.setattr(behind, "save_tensors", slow)
    monkeypatch.setattr(loop, "saver", lambda world: Behind(world.device))
    for killed in (False, True):
        begun.clear()
        go.clear()
        written.clear()
        out = tmp_path / str(killed)
        if killed:
            with pytest.raises(KeyboardInterrupt):
                train(config, features, out, device="cpu", watch=watch)
            killed = False
            go.set()
            train(config, features, out, device="cpu")
        else:
            train(config, features, out, device="cpu", watch=watch)
            assert written == [1, 4]
        assert_same_weights(out, tmp_path / "usual")


@on_gpu
def test_a_gpus_memory_stays_as_it_is(tmp_path: Path) -> None:
    gpu = torch.device("cuda", 0)
    value = torch.zeros(1 << 22, device=gpu)
    before = torch.cuda.memory_allocated(gpu)
    with Behind(gpu) as files:
        files.write(tmp_path / "file", {"x": value})
        value += 1
        assert torch.cuda.memory_allocated(gpu) == before
    assert not load_file(tmp_path / "file")["x"].any()


def test_only_a_gpu_of_its_own_writes_behind() -> None:
    assert isinstance(saver(World()), AtOnce)
    if torch.cuda.is_available():
        gpu = torch.device("cuda", 0)
        assert isinstance(saver(World(device=gpu)), Behind)
        assert isinstance(saver(World(size=2, device=gpu)), AtOnce)


def test_a_run_is_the_same(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("da-erm", test_domains=["site-4"])
    train(config, features, tmp_path / "at once")
    monkeypatch.setattr("acclimate.runs.loop.saver", lambda world: Behind(world.device))
    train(config, features, tmp_path / "behind")
    assert_same_weights(tmp_path / "at once", tmp_path / "behind")
    assert stable(tmp_path / "at once") == stable(tmp_path / "behind")


def test_a_full_disk_ends_the_run(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *others: object) -> None:
        raise AcclimateError(f"cannot write {path}: no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("acclimate.runs.loop.saver", lambda world: Behind(world.device))
        patch.setattr(behind, "save_tensors", full)
        before = set(threading.enumerate())
        with pytest.raises(AcclimateError, match="no space left") as caught:
            train(tiny("erm", test_domains=["site-4"]), features, tmp_path / "run")
        assert caught.value and set(threading.enumerate()) <= before, "though the error is held"
    config = tiny("erm", test_domains=["site-4"])
    train(config, features, tmp_path / "run")
    train(config, features, tmp_path / "undisturbed")
    assert_same_weights(tmp_path / "undisturbed", tmp_path / "run")
