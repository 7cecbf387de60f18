"""Sweeps decide once whether backbones are trained, by the device their jobs run on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acclimate.config import flat
from acclimate.core.errors import UnknownName
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.algorithms import names
from acclimate.learn.models import build_backbone
from acclimate.results.protocol import Sweep
from acclimate.sweep.contenders import contenders, with_all
from acclimate.sweep.jobs import define, notes
from acclimate.sweep.settings import LaunchOptions, SweepConfig
from fixtures.errors import refused


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


def test_all_algorithms_that_have_a_meaning(
    settings: dict[str, Any], tree: Path, features: Manifest
) -> None:
    config = SweepConfig(algorithms=("all",), trials=1, settings=settings)
    images = {"sites": Manifest.from_folder(tree)}
    whole, left_out = with_all(config, images, None)  # its weights are tuned there
    assert whole.algorithms == tuple(names()) and left_out == []
    frozen, left_out = with_all(config, images, "cpu")
    assert set(names()) - set(frozen.algorithms) == {"miro", "da-miro"}
    assert [line.split()[0] for line in left_out] == ["miro", "da-miro"]
    assert all("pretrained" in line and "sites" in line for line in left_out)
    config = SweepConfig(algorithms=("all", "miro"), features=True)
    rows, left_out = with_all(config, {"rows": features}, "cpu")
    assert set(names()) - set(rows.algorithms) == {"da-miro"} and len(left_out) == 1
    some = SweepConfig(algorithms=("erm", "coral"))
    assert with_all(some, {"rows": features}, "cpu") == (some, [])
    with refused(UnknownName, "'corall'", "coral"):
        contenders(
            with_all(SweepConfig(algorithms=("all", "corall")), {"r": features}, "cpu")[0], {}
        )


def test_what_compares_domains_needs_some(features: Manifest) -> None:
    both = features.select(np.flatnonzero(np.isin(features.domain_names, ["site-0", "site-1"])))
    config, left_out = with_all(SweepConfig(algorithms=("all",)), {"two": both}, "cpu")
    assert "erm" in config.algorithms and "coral" not in config.algorithms
    assert not any(name.startswith("da-") for name in config.algorithms)
    (said,) = (line for line in left_out if line.startswith("coral "))
    assert "2 training domains" in said and "1 training domain" in said


def test_features_set_what_the_user_does_not(features: Manifest) -> None:
    """Runs of seconds, in which late penalties begin; draws leave alone what is set."""
    given = {"train": {"steps": 7}}
    config = SweepConfig(
        algorithms=("erm", "irm", "da-erm"), features=True, trials=1, settings=given,
        preset="domainbed", draws=2, test_domains=("site-0",),
    )  # fmt: skip
    jobs = define(config, {"rows": features}, device="cpu").jobs
    found = {(job.algorithm, job.draw): flat(job.config) for job in jobs}
    assert len(found) == 6
    for (algorithm, _), one in found.items():
        assert (one["train.steps"], one["model.width"], one["embedding.dim"]) == (7, 256, 256)
        assert one["model.freeze"] == "none"  # features as they are
        assert one["model.head"] == "linear"  # the preset's
        assert one.get("hparams.anneal") == (100 if algorithm == "irm" else None)
    assert "hparams.penalty" not in found["irm", 0] and "hparams.penalty" in found["irm", 1]
