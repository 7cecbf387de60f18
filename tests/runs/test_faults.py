"""Disks that are full, fail or take half: one line, and the next start ends as if unharmed."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acclimate.config import RunConfig, as_dict
from acclimate.core.errors import WriteError
from acclimate.data.manifest import Manifest
from acclimate.rehearse.training import train
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.worker import Task, perform
from fixtures.faults import KINDS, failing
from fixtures.interruption import assert_same_weights, stable

Tiny = Callable[..., RunConfig]


def through(work: Callable[[], object], kind: str) -> int:
    """Start it again and again, each time with a fault one write later, until it ends."""
    for at in itertools.count(1):
        with failing(at, kind) as seen:
            try:
                work()
            except WriteError as error:
                said = str(error)
                assert " cannot be written: " in said and "\n" not in said
                assert said.endswith(("repeat the command", "check the path"))
                continue
            assert len(seen) < at
            return at - 1
    raise AssertionError("it never ended")


@pytest.fixture(scope="module")
def whole(features: Manifest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(tiny(), features, run)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training(features: Manifest, tiny: Tiny, whole: Path, tmp_path: Path, kind: str) -> None:
    faults = through(lambda: train(tiny(), features, tmp_path / "run"), kind)
    assert faults >= 5
    assert_same_weights(tmp_path / "run", whole)
    assert stable(tmp_path / "run") == stable(whole)
    assert not list((tmp_path / "run").glob(".*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("no space", "input/output"))
def test_a_job_of_a_sweep(
    features: Manifest, tiny: Tiny, whole: Path, tmp_path: Path, kind: str
) -> None:
    data = tmp_path / "a.parquet"
    features.write(data)
    config: dict[str, Any] = as_dict(tiny())
    task = Task(
        sweep=str(tmp_path / "sweep"), kind="run", id="job", data=str(data),
        digest=features.digest(), config=config, device="cpu",
    )  # fmt: skip
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    states = []
    for at in itertools.count(2, 5):
        with failing(at, kind):
            states.append(perform(task).state)
        if states[-1] == "done":
            break
        noted = folder.failure(task.id) is not None
        assert noted == (kind != "no space")  # a full disk is no failure of the job
    assert set(states[:-1]) == ({"full"} if kind == "no space" else {"failed"})
    assert_same_weights(folder.run(task.id).path, whole)
