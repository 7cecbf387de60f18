"""Runs on the features of a frozen backbone: chosen, trained, resumed, saved and used on images."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from acclimate.adapt.classifier import adapt
from acclimate.config import (
    ModelConfig,
    RunConfig,
)
from acclimate.core.errors import ConfigError
from acclimate.core.tensors import save_tensors
from acclimate.data.manifest import Manifest
from acclimate.data.source import Quarantine, open_source, to_float
from acclimate.learn.model import Trained
from acclimate.learn.models import build_backbone
from acclimate.records.folder import RunFolder
from acclimate.rehearse.training import train
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.loop import save_checkpoint
from acclimate.runs.plan import choose_model, make_plan
from acclimate.runs.training import train_embedding
from fixtures.decoding import watch_decoding
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, count_writes, stable

CPU = torch.device("cpu")
Fit = Callable[..., Path]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for pretrained weights."""
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("weights") / "small-cnn.safetensors"
    save_tensors(path, build_backbone("small-cnn").body.state_dict())
    return path


@pytest.fixture
def own(weights: Path) -> dict[str, Any]:
    """Settings of a frozen backbone."""
    return {
        "model.backbone": "small-cnn",
        "model.weights": str(weights),
        "model.freeze": "backbone",
        "test_domains": "west",
    }


@pytest.fixture
def frozen(tiny: Callable[..., RunConfig], own: dict[str, Any]) -> Callable[..., RunConfig]:
    return lambda algorithm="da-erm", **changes: tiny(algorithm, **{**own, **changes})


@pytest.fixture
def fit_frozen(fit: Fit, own: dict[str, Any], tree: Path) -> Fit:
    return partial(fit, data=Manifest.from_folder(tree), device="cpu", **own)


@pytest.mark.parametrize("algorithm", ["da-erm", "erm", "arm"])
def test_images_and_cached_features_give_the_same_scores(
    algorithm: str,
    fit_frozen: Fit,
    tree: Path,
    tmp_path: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases: list[str] = []
    data = Manifest.from_folder(tree)
    run = fit_frozen(algorithm, watch=lambda phase, *rest: phases.append(phase))
    assert phases[0] == "features" and "main" in phases
    trained = Trained.load(run)
    images, _ = open_source(
        data, trained.size, trained.config.data, Quarantine(max_share=0.0)
    ).take(np.arange(40))
    x = to_float(images, CPU)
    extractor, model = trained.predictor.backbone, trained.start(embedding=True)
    assert not any(parameter.requires_grad for parameter in extractor.parameters())
    with torch.no_grad():
        features, predictor = extractor(x), model.at(None)
        torch.testing.assert_close(predictor(x).logits, predictor(features).logits)
        assert model.below_phi is (None if model.embedding is None else extractor)
    for name, value in load_file(weights).items():
        assert torch.equal(extractor.body.state_dict()[name], value)

    def evaluated(*changes: dict[str, Any]) -> list[tuple[str, str, float | None]]:
        found = evaluate_run(run, data, *changes, device="cpu").scores
        return [(s.domain, s.method, s.top1) for s in found]

    finals = [s for s in RunFolder(run).records().scores if s.moment == "final"]
    read = watch_decoding(monkeypatch)
    scores = [(s.domain, s.method, s.top1) for s in finals]
    assert evaluated() == scores
    assert not read, "what training extracted is there"
    small = {"data.cache_gib": 1e-9}  # more features than may be held: images pass again
    assert evaluated(small) == scores
    scored = len(read)
    assert 20 < scored < len(data) / 2, "what was trained on is not scored"
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "another"))
    read.clear()
    assert evaluated() == scores  # extracted anew, and no more
    assert scored <= len(read) < len(data) / 2 + 10
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "file" / "below"))
    read.clear()
    assert evaluated() == scores  # no cache can be made there
    assert read


def test_methods_that_change_the_backbone_see_images(fit_frozen: Fit, tree: Path) -> None:
    data, run = Manifest.from_folder(tree), fit_frozen("erm")
    asked = evaluate_run(run, data, methods=["tent"], device="cpu").scores
    own = evaluate_run(run, data, {"adapt.methods": ["tent"]}, device="cpu").scores
    by = {(s.domain, s.method): s.top1 for s in asked if s.method == "tent"}
    assert by and by == {(s.domain, s.method): s.top1 for s in own if s.method == "tent"}


def test_the_frozen_weights_are_stored_once(fit_frozen: Fit) -> None:
    run = fit_frozen()
    stored = load_file(run / "model.safetensors")
    convolutions = [name for name, value in stored.items() if value.ndim == 4]
    assert convolutions
    assert all(name.startswith("predictor.backbone.body.") for name in convolutions)
    assert not any(t.ndim == 4 for t in load_file(run / "embedding.safetensors").values())
    assert Trained.load(run).digest() == json.loads((run / "model.json").read_text())["digest"]


@pytest.mark.slow
def test_it_is_interrupted_at_every_write_and_ends_the_same(
    fit_frozen: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acclimate.learn.frozen.SHARD", 32)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "first"))
    steps = {"train.steps": 2, "embedding.steps": 1}
    with pytest.MonkeyPatch.context() as patch:
        writes = count_writes(patch)
        whole = fit_frozen(to="whole", **steps)
    assert sum("features" in path.parts for path in writes) == 4  # about.json and three shards
    for die_at in range(1, len(writes) + 1):
        monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / f"cache-{die_at}"))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            count_writes(patch, die_at)
            fit_frozen(to=f"run-{die_at}", **steps)
        out = fit_frozen(to=f"run-{die_at}", **steps)
        assert_same_weights(whole, out)
        assert stable(whole) == stable(out)


def test_a_run_takes_over_a_phi_that_was_learned_on_the_same_features(
    fit_frozen: Fit, frozen: Callable[..., RunConfig], tree: Path, tmp_path: Path
) -> None:
    train_embedding(frozen(), Manifest.from_folder(tree), tmp_path / "phi", device="cpu")
    shared = fit_frozen(to="shared", embedding=tmp_path / "phi")
    assert_same_weights(shared, fit_frozen(to="alone"))


def test_a_new_site_is_adapted_to_from_images(fit_frozen: Fit, tree: Path) -> None:
    trained, images = Trained.load(fit_frozen()), tree / "west" / "red"
    site = adapt(trained, images).predict_proba(images)
    assert site.shape == (12, 2)
    # Methods that change the backbone work on images.
    assert not np.allclose(adapt(trained, images, method="tent").predict_proba(images), site)


LITE = ModelConfig(backbone="efficientnet-lite0")


def choice(model: ModelConfig, side: int | None, device: str | None) -> tuple[ModelConfig, str]:
    return choose_model(RunConfig(model=model), side, device)


class TestTheChoice:
    def test_a_pretrained_backbone_is_frozen_on_a_cpu_alone(self, weights: Path) -> None:
        """Unless it is small, has nothing to keep, or somebody asked."""
        model, why = choice(LITE, 227, "cpu")
        assert model.freeze == "backbone"
        assert "efficientnet-lite0" in why and "227 px" in why and "model.freeze=none" in why
        model, why = choice(LITE, 227, None)
        assert model.freeze == "none" and "model.freeze=backbone" in why
        small = ModelConfig(backbone="small-cnn")
        for asked, side in (
            (LITE, 64),
            (LITE, None),
            (small, 227),
            (replace(LITE, pretrained=False), 227),
            (replace(LITE, freeze="none"), 227),
        ):
            assert choice(asked, side, "cpu") == (replace(asked, freeze="none"), "")
        assert choice(replace(small, weights=str(weights)), 65, "cpu")[0].freeze == "backbone"

    def test_there_must_be_weights_to_keep(self) -> None:
        with refused(ConfigError, "small-cnn", "--weights", "model.freeze=none"):
            choice(ModelConfig(backbone="small-cnn", freeze="backbone"), 32, "cpu")

    def test_a_plan_fits_the_rest_to_it(self, frozen: Callable[..., RunConfig], tree: Path) -> None:
        data = Manifest.from_folder(tree)
        asked = frozen(**{"model.freeze": "auto", "data.image_size": 72})
        plan = make_plan(asked, data, device="cpu")
        assert plan.frozen and "small-cnn is frozen" in plan.decided[0]
        assert plan.config.data.augment == "none"
        assert plan.config.train.optimiser.lr == 1e-4
        assert not make_plan(asked, data, device=None).frozen

    def test_train_says_it_once(
        self, frozen: Callable[..., RunConfig], tree: Path, tmp_path: Path
    ) -> None:
        data, said = Manifest.from_folder(tree), []
        asked = frozen("erm", **{"model.freeze": "auto", "data.image_size": 72})
        for _ in range(2):
            train(asked, data, tmp_path, device="cpu", say=said.append)
        assert len(said) == 1 and "--set model.freeze=none" in said[0]


class TestRunsOnDisk:
    def test_a_run_goes_on_as_it_began_wherever_that_is(
        self,
        frozen: Callable[..., RunConfig],
        tree: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Here: a run that began without freezing, as on a GPU, goes on on a CPU."""
        data, asked = Manifest.from_folder(tree), frozen("erm", **{"model.freeze": "none"})
        asked = replace(asked, data=replace(asked.data, image_size=72))
        open_ended = replace(asked, model=replace(asked.model, freeze="auto"))
        assert make_plan(open_ended, data, device="cpu").frozen
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr("acclimate.runs.loop.save_checkpoint", _saved_and_killed)
            train(asked, data, tmp_path / "run", device="cpu")
        train(open_ended, data, tmp_path / "run", device="cpu")
        assert Trained.load(tmp_path / "run").config.model.freeze == "none"


def _saved_and_killed(*args: object, **kwargs: object) -> None:
    save_checkpoint(*args, **kwargs)  # type: ignore[arg-type]
    raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
@pytest.mark.parametrize("freeze", ["backbone", "none"])
def test_a_network_of_timm_at_another_side(
    name: str, freeze: str, fit: Fit, tree: Path, tmp_path: Path
) -> None:
    """Its weights are from a file of its own side; the run that is loaded has the run's side."""
    torch.manual_seed(3)
    body = build_backbone(name, pretrained=False).body
    save_tensors(tmp_path / "weights.safetensors", body.state_dict())
    run = fit(
        "erm",
        data=Manifest.from_folder(tree),
        device="cpu",
        test_domains="west",
        **{
            "model.backbone": name,
            "model.weights": str(tmp_path / "weights.safetensors"),
            "model.freeze": freeze,
            "data.image_size": 64,
            "train.optimiser.lr": 1e-3,
        },
    )
    trained = Trained.load(run)
    network = trained.predictor.backbone
    assert trained.size == 64
    with torch.no_grad():
        assert network(torch.rand(2, 3, 64, 64)).shape == (2, network.features)
    before, after = body.state_dict(), network.body.state_dict()
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert (moved - {"pos_embed"} == set()) is (freeze == "backbone")
    if name == "test_vit":
        assert after["pos_embed"].shape[1] == 1 + 4 * 4
    found = evaluate_run(run, Manifest.from_folder(tree), device="cpu").scores
    assert any(score.top1 is not None for score in found)


@pytest.mark.slow
def test_a_step_is_as_long_as_its_layers_learning_rate(
    fit: Fit, tree: Path, tmp_path: Path
) -> None:
    """Adam's first step is as long as the rate, wherever there is a slope."""
    torch.manual_seed(3)
    before = build_backbone("test_vit", pretrained=False).body.state_dict()
    save_tensors(tmp_path / "weights.safetensors", before)
    run = fit(
        "erm",
        data=Manifest.from_folder(tree),
        device="cpu",
        test_domains="west",
        **{
            "model.backbone": "test_vit",
            "model.weights": str(tmp_path / "weights.safetensors"),
            "model.freeze": "none",
            "data.image_size": 32,
            "train.steps": 1,
            "train.keep": "last",
            "train.optimiser.lr": 1e-3,
            "train.optimiser.layer_decay": 0.5,
        },
    )
    after = Trained.load(run).predictor.backbone.body.state_dict()
    layers = {"norm.weight": 1, "blocks.5.mlp.fc1.weight": 1, "blocks.0.mlp.fc1.weight": 6}
    for name, depth in {**layers, "patch_embed.proj.weight": 7}.items():
        longest = float((after[name] - before[name]).abs().max())
        assert longest == pytest.approx(1e-3 * 0.5**depth, rel=0.02), name
