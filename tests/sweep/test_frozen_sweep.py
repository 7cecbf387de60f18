"""Sweeps decide once whether backbones are trained, by the device their jobs run on."""

from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.models import build_backbone
from acclimate.results.protocol import Sweep
from acclimate.sweep.jobs import define, notes
from acclimate.sweep.settings import LaunchOptions, SweepConfig


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small-cnn.safetensors"
    save_tensors(path, build_backbone("small-cnn").body.state_dict())
    return {
        "data": {"image_size": 72},
        "model": {"backbone": "small-cnn", "weights": str(path), "width": 8, "hidden": 8},
        "embedding": {"steps": 1, "per_domain": 4, "dim": 4},
        "train": {"steps": 1, "per_domain": 4},
    }


def defined(settings: dict[str, Any], tree: Path, device: str | None) -> Sweep:
    config = SweepConfig(algorithms=("erm", "da-erm"), trials=1, settings=settings)
    return define(config, {"sites": Manifest.from_folder(tree)}, device=device)


def test_the_device_decides_and_the_jobs_say_so(settings: dict[str, Any], tree: Path) -> None:
    here, there = (defined(settings, tree, device) for device in ("cpu", None))
    assert {job.config["model"]["freeze"] for job in here.jobs} == {"backbone"}
    assert {job.config["model"]["freeze"] for job in there.jobs} == {"none"}
    (said,) = notes(SweepConfig(), {}, here)
    assert "model.freeze=none" in said
    assert notes(SweepConfig(), {}, there) == []
    asked = {**settings, "model": {**settings["model"], "freeze": "none"}}
    explicit = defined(asked, tree, "cpu")
    assert explicit == there
    assert not {job.id for job in here.jobs} & {job.id for job in there.jobs}


def test_machines_out_of_sight_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert LaunchOptions(launcher="ray").trained_on == "auto"
    assert LaunchOptions(launcher="ray", ray_address="there:1").trained_on is None
    assert LaunchOptions(launcher="slurm", slurm_cluster="local").trained_on == "auto"
    monkeypatch.setenv("RAY_ADDRESS", "there:1")
    assert LaunchOptions(launcher="ray").trained_on is None
    assert LaunchOptions(device="cpu").trained_on == "cpu"
    assert LaunchOptions(launcher="slurm").trained_on is None
    assert LaunchOptions(launcher="slurm", device="cpu").trained_on == "cpu"
