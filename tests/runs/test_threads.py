"""Several threads, several processes: each gets its own result, and nobody's update is lost."""

import fcntl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from acclimate.adapt.classifier import adapt
from acclimate.config import RunConfig
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.rehearse.training import train
from fixtures.interruption import assert_same_weights

Tiny = Callable[..., RunConfig]


def test_the_callers_random_state_stays(features: Manifest, tiny: Tiny, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(tiny(**{"model.dropout": 0.5}), features, tmp_path / "run")
    Trained.load(tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_threads_train_what_each_would_alone(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    configs = [tiny("erm", seed=n, **{"model.dropout": 0.5, "train.steps": 30}) for n in range(3)]
    for number, config in enumerate(configs):
        train(config, features, tmp_path / f"alone-{number}")
    with ThreadPoolExecutor(3) as pool:
        folders = [tmp_path / f"together-{number}" for number in range(3)]
        list(
            pool.map(
                lambda pair: train(pair[0], features, pair[1]), zip(configs, folders, strict=True)
            )
        )
    for number in range(3):
        assert_same_weights(tmp_path / f"alone-{number}", tmp_path / f"together-{number}")


@pytest.mark.slow
def test_who_goes_on_from_a_state_waits_for_the_one_who_writes_it(
    tree: Path, tiny: Tiny, tmp_path: Path
) -> None:
    run, state = tmp_path / "run", tmp_path / "state.safetensors"
    train(tiny(), Manifest.open(tree), run)
    images = sorted((tree / "north" / "red").iterdir())
    trained, lock = Trained.load(run), tmp_path / ".state.safetensors.lock"
    first = adapt(trained, images[:1], method="embedding").state
    both = adapt(trained, images[:5], method="embedding").state
    assert first is not None and both is not None
    first.save(state)
    task = [sys.executable, "-m", "acclimate", "adapt", str(run), *map(str, images[5:8])]
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen([*task, "--into", str(state), "--out", str(state)])
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(7)
        both.save(state)
    assert process.wait() == 0
    assert DomainState.load(state).count == 8
    assert not lock.exists()
