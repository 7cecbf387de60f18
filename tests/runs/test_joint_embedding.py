"""Algorithms that learn Φ with the predictor: whole runs, what they keep, and what it is worth."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from acclimate.adapt.classifier import adapt, unadapted
from acclimate.config import RunConfig, from_dict
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError
from acclimate.data.batches import Batch
from acclimate.data.manifest import Manifest
from acclimate.data.source import Quarantine, open_source, to_float
from acclimate.learn.algorithms import choose
from acclimate.learn.model import Networks, Trained
from acclimate.records.folder import RunFolder
from acclimate.records.records import Score
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.plan import make_plan
from acclimate.runs.training import train_embedding
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, stable

Fit = Callable[..., Path]
Tiny = Callable[..., RunConfig]
JOINT = ("arm", "mtl")
SENSORS = {
    "test_domains": ["low", "high"],
    "train.steps": 120,
    "train.per_domain": 8,
    "train.evaluate_every": 60,
    "model.width": 32,
    "model.hidden": 32,
    "adapt.points": 30,
}


def sensors() -> Manifest:
    """Two classes, 2 apart, of sensors with an offset of their own of up to 3: what a row shows is
    of either class, unless one knows the sensor."""
    rng = np.random.default_rng(0)
    offsets = {f"site-{i:02}": offset for i, offset in enumerate(np.linspace(-3, 3, 14))}
    offsets |= {"low": -1.5, "high": 1.4}
    names, y = np.repeat([*offsets], 60), np.tile([0, 1], 30 * len(offsets))
    X = rng.normal(scale=0.3, size=(len(y), 3))
    X[:, 0] += 2 * y - 1 + np.repeat([*offsets.values()], 60)
    return Manifest.from_arrays(X.astype(np.float32), np.array(["dark", "light"])[y], names)


def scores_of(run: Path, moment: str) -> list[Score]:
    return [score for score in RunFolder(run).records().scores if score.moment == moment]


@pytest.mark.parametrize("name", JOINT)
def test_a_new_domains_context_decides_and_a_wrong_one_misleads(name: str, fit: Fit) -> None:
    data = sensors()
    run = fit(name, data=data, **SENSORS)
    trained, X, y = Trained.load(run), data.features(), data.label_index
    scored = [s for s in evaluate_run(run, data, methods=["none"]).scores if s.role == "test"]
    means = {
        method: fmean(s.top1 for s in scored if s.method == method and s.top1 is not None)
        for method in ("embedding", "wrong-embedding", "none")
    }
    assert means["embedding"] > 0.9
    assert means["none"] < means["embedding"] - 0.1
    assert means["wrong-embedding"] < 0.65

    low, high = (data.rows(domain=name) for name in ("low", "high"))
    own, other, neither = adapt(trained, X[low]), adapt(trained, X[high]), unadapted(trained)
    answers = [site.predict_proba(X[low]).argmax(1) for site in (own, other, neither)]
    right, wrong, unknown = ((answer == y[low]).mean() for answer in answers)
    assert right > 0.9 and wrong < 0.6 and unknown < 0.9


@pytest.mark.parametrize("name", JOINT)
def test_a_run_of_images_from_training_to_prediction(name: str, fit: Fit, tree: Path) -> None:
    data = Manifest.from_folder(tree)
    run = fit(name, data=data, device="cpu", test_domains=["west"])
    assert not (run / "embedding.safetensors").exists(), "there is no Step A"
    trained = Trained.load(run)
    model = trained.start(embedding=True)
    assert trained.embedding is not None and trained.table is not None
    assert model.below_phi is trained.predictor.backbone, "one backbone serves both"
    assert trained.embedding.dim == {"arm": 256, "mtl": trained.predictor.backbone.features}[name]
    assert float(trained.embedding.spread) == 1, "Φ stays as the predictor knows it"

    source = open_source(data, trained.size, trained.config.data, Quarantine(max_share=0.0))
    domain = trained.train_domains[0]
    x = to_float(source.take(data.rows(domain=domain, split="train"))[0], torch.device("cpu"))
    with torch.no_grad():
        phi = trained.embedding.raw(trained.predictor.backbone(x))
    state = trained.table.states[domain]
    torch.testing.assert_close(state.mean.float(), phi.mean(0), rtol=1e-4, atol=1e-5)
    rows = data.rows(domain="west")
    images = [data.image_source(int(row)) for row in rows]
    site = adapt(trained, images)
    new = to_float(source.take(rows)[0], torch.device("cpu"))
    with torch.no_grad():
        features = trained.predictor.backbone(new)
        mu = trained.embedding.raw(features).mean(0)
        expected = trained.predictor(new, mu).logits.softmax(1)
    np.testing.assert_allclose(site.predict_proba(images), expected.numpy(), atol=1e-5)


def test_validation_goes_by_the_contexts_of_its_weights(fit: Fit) -> None:
    """The scores that chose the weights are those that the same weights have at the end."""
    run = fit("arm", test_domains=["site-4"], **{"train.evaluate_every": 2})
    finished = RunFolder(run).finished
    assert finished is not None
    chosen = {
        s.domain: (s.top1, s.loss)
        for s in scores_of(run, "validation")
        if s.step == finished.kept_step
    }
    final = {s.domain: (s.top1, s.loss) for s in scores_of(run, "final") if s.role == "train"}
    assert chosen == final and len(final) == 4
    losses = {s.loss for s in scores_of(run, "validation") if s.domain == "site-0"}
    assert len(losses) == 3, "μ and weights have changed between validations"


def test_validation_domains_are_adapted_to_anew_each_time(fit: Fit) -> None:
    run = fit("arm", val_domains=["site-3"], test_domains=["site-4"])
    finished = RunFolder(run).finished
    assert finished is not None
    (chosen,) = (
        s.loss
        for s in scores_of(run, "validation")
        if s.domain == "site-3" and s.step == finished.kept_step
    )
    (final,) = (
        s.loss for s in scores_of(run, "final") if s.domain == "site-3" and s.method == "embedding"
    )
    assert chosen == final


@pytest.mark.parametrize(
    ("images", "file"),
    [(False, "consistency.json"), (False, "model.safetensors"), (True, "consistency.json")],
)
def test_killed_between_training_and_the_model_it_goes_on(
    images: bool, file: str, fit: Fit, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {"test_domains": ["site-4"], "device": "cpu"}
    if images:  # no validation has taken the batch norms of the second sitting out of training
        own |= {"data": Manifest.from_folder(tree), "test_domains": ["west"]}
        own |= {"model.backbone": "mobilenetv3_small_050", "model.pretrained": False}
        own |= {"train.steps": 2, "train.keep": "last"}
    whole = fit("arm", to="whole", **own)
    replace = Path.replace

    def die(self: Path, target: Path) -> Path:
        if target.name == file:
            raise Killed
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "replace", die)
        fit("arm", to="killed", **own)
    killed = fit("arm", to="killed", **own)
    assert_same_weights(whole, killed)
    assert stable(whole) == stable(killed)


@pytest.mark.parametrize("name", JOINT)
def test_gradients_reach_the_backbone_through_the_context(name: str) -> None:
    settings = {"algorithm": name, "model": {"backbone": "small-cnn"}}
    config = from_dict(RunConfig, settings, where="test")
    predictor, embedding = Networks(
        config=config, classes=3, domains=2, in_features=None, pretrained=False
    ).build()
    chosen = choose(name)
    algorithm = chosen.build(
        predictor, chosen.settings, domains=2, classes=3, world=World(), seed=0,
        embedding=embedding,
    )  # fmt: skip
    predictor.head.get_parameter("project.weight").data.zero_()  # the image itself is not seen
    batch = Batch(torch.rand(8, 3, 8, 8), torch.arange(8) % 3, torch.arange(8) // 4)
    algorithm(batch, 0).total.backward()
    grad = next(predictor.backbone.parameters()).grad
    assert grad is not None and grad.any()


def test_there_is_no_step_a_to_share_or_rehearse(
    features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    with refused(ConfigError, "arm", "da-erm"):
        train_embedding(tiny("arm"), features, tmp_path)
    with refused(ConfigError, "arm", "adapt.rehearse", "--algorithm erm"):
        make_plan(tiny("arm", **{"adapt.rehearse": True}), features)
