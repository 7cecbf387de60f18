"""Sweeps decide once whether backbones learn, and their jobs keep the names they had."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.config import RunConfig, from_dict
from acclimate.core.errors import WeightsError
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.models import build_backbone
from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder
from acclimate.runs.forecast import ToExtract, to_extract
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.training import train
from acclimate.sweep.definition import SweepConfig
from acclimate.sweep.estimate import estimate, expected_time
from acclimate.sweep.jobs import define, notes_on
from acclimate.sweep.launchers import LaunchOptions
from acclimate.sweep.queue import Queue


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


def test_estimates_count_the_extraction_once(
    settings: dict[str, Any], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = defined(settings, tree, "cpu")
    manifests = {"sites": Manifest.from_folder(tree)}
    asked = []

    def lacking(plan: Plan, device: torch.device, *, beside: Path) -> ToExtract:
        asked.append(beside)
        return ToExtract(images=96, seconds=1000.0, width=64, size=72)

    with monkeypatch.context() as patch:
        patch.setattr("acclimate.sweep.estimate.to_extract", lacking)
        assert 1000 < estimate(sweep, manifests, device="cpu").total < 1100
    assert len(asked) == 1


def test_features_that_are_there_take_no_time(
    settings: dict[str, Any], tree: Path, tmp_path: Path
) -> None:
    data = Manifest.from_folder(tree)
    config = from_dict(RunConfig, defined(settings, tree, "cpu").jobs[0].config, where="a job")
    plan = make_plan(config, data, check_files=False)
    before = to_extract(plan, torch.device("cpu"), beside=tmp_path)
    assert before.images == 96 and before.seconds > 0
    train(config, data, tmp_path / "run", device="cpu")
    after = to_extract(plan, torch.device("cpu"), beside=tmp_path)
    assert (after.images, after.seconds, after.width, after.size) == (0, 0, before.width, 72)


def test_weights_that_are_not_there_are_missed_before_jobs_start(
    settings: dict[str, Any], tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, data = defined(settings, tree, "cpu"), {"sites": Manifest.from_folder(tree)}
    queue = Queue(sweep, dict.fromkeys((j.id for j in (*sweep.jobs, *sweep.embeddings)), "waiting"))

    def missing(plan: Plan, device: torch.device, *, beside: Path) -> ToExtract:
        raise WeightsError("no weights")

    monkeypatch.setattr("acclimate.sweep.estimate.to_extract", missing)
    with pytest.raises(WeightsError):
        expected_time(tmp_path, sweep, data, LaunchOptions(device="cpu"), queue)
    elsewhere = LaunchOptions(launcher="slurm", device="cpu")
    told = expected_time(tmp_path, sweep, data, elsewhere, queue)
    assert told == "the weights that features are extracted with are not here"


def test_machines_out_of_sight_decide_nothing() -> None:
    assert LaunchOptions(device="cpu").trained_on == "cpu"
    assert LaunchOptions(launcher="slurm").trained_on is None
    assert LaunchOptions(launcher="slurm", device="cpu").trained_on == "cpu"


def _before(config: Any) -> dict[str, Any]:
    return {**config, "model": {k: v for k, v in config["model"].items() if k != "freeze"}}
