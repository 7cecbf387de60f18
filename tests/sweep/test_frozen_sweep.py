"""Sweeps decide once whether backbones learn, and their jobs keep the names they had."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.models import build_backbone
from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.definition import SweepConfig
from acclimate.sweep.estimate import estimate
from acclimate.sweep.jobs import define, notes_on
from acclimate.sweep.launchers import LaunchOptions


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
    assert notes_on(here) == [
        "backbones keep their pretrained weights: features are extracted once and runs are trained "
        "on them; to train all of them, --set model.freeze=none"
    ]
    assert notes_on(there) == []
    asked = {**settings, "model": {**settings["model"], "freeze": "none"}}
    explicit = defined(asked, tree, "cpu")
    assert explicit == there
    assert not {job.id for job in here.jobs} & {job.id for job in there.jobs}


def test_a_sweep_of_an_earlier_version_is_not_frozen(
    settings: dict[str, Any], tree: Path, tmp_path: Path
) -> None:
    sweep = defined(settings, tree, None)
    stripped = [replace(job, config=_before(job.config)) for job in sweep.jobs]
    phis = [replace(phi, config=_before(phi.config)) for phi in sweep.embeddings]
    SweepFolder(tmp_path).write(replace(sweep, jobs=tuple(stripped), embeddings=tuple(phis)))
    assert SweepFolder(tmp_path).read() == sweep


def test_estimates_count_the_extraction_once(settings: dict[str, Any], tree: Path) -> None:
    sweep = defined(settings, tree, "cpu")
    manifests = {"sites": Manifest.from_folder(tree)}
    assert estimate(sweep, manifests, device="cpu").total > 0


def test_machines_out_of_sight_decide_nothing() -> None:
    assert LaunchOptions(device="cpu").trained_on == "cpu"
    assert LaunchOptions(launcher="slurm").trained_on is None
    assert LaunchOptions(launcher="slurm", device="cpu").trained_on == "cpu"


def _before(config: Any) -> dict[str, Any]:
    return {**config, "model": {k: v for k, v in config["model"].items() if k != "freeze"}}
