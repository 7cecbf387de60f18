"""Runs on the features of a frozen backbone: chosen, trained, resumed, saved and used on images."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for pretrained weights."""
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("weights") / "small-cnn.safetensors"
    save_tensors(path, build_backbone("small-cnn").body.state_dict())
    return path


@pytest.fixture
def frozen(tiny: Callable[..., RunConfig], weights: Path) -> Callable[..., RunConfig]:
    def make(algorithm: str = "da-erm", **changes: object) -> RunConfig:
        own = {"model.backbone": "small-cnn", "model.weights": str(weights), "test_domains": "west"}
        return tiny(algorithm, **{**own, "model.freeze": "backbone", **changes})

    return make


@pytest.mark.parametrize("algorithm", ["da-erm", "erm"])
def test_images_and_cached_features_give_the_same_scores(
    algorithm: str,
    frozen: Callable[..., RunConfig],
    tree: Path,
    tmp_path: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    data = Manifest.from_folder(tree)
    train(
        frozen(algorithm),
        data,
        tmp_path,
        device="cpu",
        watch=lambda phase, *rest: told.append(phase),
    )
    assert told[0] == "features" and "main" in told
    trained = Trained.load(tmp_path)
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
    finals = [s for s in RunFolder(tmp_path).records().scores if s.moment == "final"]
    read = watch_decoding(monkeypatch)
    scores = [(s.domain, s.method, s.top1) for s in finals]
    found = evaluate_run(tmp_path, data, device="cpu").scores
    assert [(s.domain, s.method, s.top1) for s in found] == scores
    assert not read, "what training extracted is there"
    small = {"data.cache_gib": 1e-9}  # more features than may be held: images pass again
    found = evaluate_run(tmp_path, data, small, device="cpu").scores
    assert [(s.domain, s.method, s.top1) for s in found] == scores
    scored = len(read)
    assert 20 < scored < len(data) / 2, "what was trained on is not scored"
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "another"))
    read.clear()
    found = evaluate_run(tmp_path, data, device="cpu").scores  # extracted anew, and no more
    assert [(s.domain, s.method, s.top1) for s in found] == scores
    assert scored <= len(read) < len(data) / 2 + 10
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "file" / "below"))
    read.clear()
    found = evaluate_run(tmp_path, data, device="cpu").scores  # no cache can be made there
    assert [(s.domain, s.method, s.top1) for s in found] == scores
    assert read


def test_methods_that_change_the_backbone_see_images(
    frozen: Callable[..., RunConfig], tree: Path, tmp_path: Path
) -> None:
    data = Manifest.from_folder(tree)
    train(frozen("erm"), data, tmp_path, device="cpu")
    asked = evaluate_run(tmp_path, data, methods=["tent"], device="cpu").scores
    own = evaluate_run(tmp_path, data, {"adapt.methods": ["tent"]}, device="cpu").scores
    by = {(s.domain, s.method): s.top1 for s in asked if s.method == "tent"}
    assert by and by == {(s.domain, s.method): s.top1 for s in own if s.method == "tent"}


def test_the_frozen_weights_are_stored_once(
    frozen: Callable[..., RunConfig], tree: Path, tmp_path: Path
) -> None:
    train(frozen(), Manifest.from_folder(tree), tmp_path, device="cpu")
    stored = load_file(tmp_path / "model.safetensors")
    convolutions = [name for name, value in stored.items() if value.ndim == 4]
    assert convolutions
    assert all(name.startswith("predictor.backbone.body.") for name in convolutions)
    assert not any(t.ndim == 4 for t in load_file(tmp_path / "embedding.safetensors").values())
    trained = Trained.load(tmp_path)
    assert trained.digest() == json.loads((tmp_path / "model.json").read_text())["digest"]


@pytest.mark.slow
def test_it_is_interrupted_at_every_write_and_ends_the_same(
    frozen: Callable[..., RunConfig],
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("acclimate.learn.frozen.SHARD", 32)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "first"))
    data, config = Manifest.from_folder(tree), frozen(**{"train.steps": 2, "embedding.steps": 1})
    with pytest.MonkeyPatch.context() as patch:
        writes = count_writes(patch)
        train(config, data, tmp_path / "whole", device="cpu")
    assert sum("features" in path.parts for path in writes) == 4  # about.json and three shards
    for die_at in range(1, len(writes) + 1):
        monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / f"cache-{die_at}"))
        out = tmp_path / f"run-{die_at}"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            count_writes(patch, die_at)
            train(config, data, out, device="cpu")
        train(config, data, out, device="cpu")
        assert_same_weights(tmp_path / "whole", out)
        assert stable(tmp_path / "whole") == stable(out)


def test_a_run_takes_over_a_phi_that_was_learned_on_the_same_features(
    frozen: Callable[..., RunConfig], tree: Path, tmp_path: Path
) -> None:
    data, config = Manifest.from_folder(tree), frozen()
    train_embedding(config, data, tmp_path / "phi", device="cpu")
    train(config, data, tmp_path / "shared", device="cpu", embedding=tmp_path / "phi")
    train(config, data, tmp_path / "alone", device="cpu")
    assert_same_weights(tmp_path / "shared", tmp_path / "alone")


def test_penalties_change_what_is_learned_on_frozen_features(
    frozen: Callable[..., RunConfig], tree: Path, tmp_path: Path
) -> None:
    data, outs = Manifest.from_folder(tree), []
    for penalty in (0.0, 10.0):
        outs.append(tmp_path / f"{penalty}")
        config = frozen("coral", **{"hparams.penalty": penalty, "train.keep": "last"})
        train(config, data, outs[-1], device="cpu")
    one, two = (load_file(out / "model.safetensors") for out in outs)
    name = "predictor.head.backbone.body.0.weight"
    assert not torch.equal(one[name], two[name])


def test_a_new_site_is_adapted_to_from_images(
    frozen: Callable[..., RunConfig], tree: Path, tmp_path: Path
) -> None:
    train(frozen(), Manifest.from_folder(tree), tmp_path, device="cpu")
    trained = Trained.load(tmp_path)
    site = adapt(trained, tree / "west" / "red")
    assert site.predict_proba(tree / "west" / "red").shape == (12, 2)
    # Methods that change the backbone work on images.
    tent = adapt(trained, tree / "west" / "red", method="tent")
    assert not np.allclose(
        tent.predict_proba(tree / "west" / "red"), site.predict_proba(tree / "west" / "red")
    )


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
        assert plan.frozen and "small-cnn keeps its pretrained weights" in plan.decided[0]
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
