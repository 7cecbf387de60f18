"""The ablation's embeddings: what each Φ is, what it learns from, and that whole runs use it."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.adapt.classifier import adapt
from acclimate.config import EmbeddingConfig, RunConfig, setting
from acclimate.core.errors import UnknownName
from acclimate.data.batches import Batch, DomainSampler
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import EMBEDDINGS, Embedding, find_embedding
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder
from acclimate.rehearse.training import train
from acclimate.runs.training import train_embedding
from fixtures.errors import refused
from fixtures.objectives import CLASSES, DOMAINS, FEATURES, make_embedding
from fixtures.processes import train_with
from fixtures.settings import TINY, as_flags

Tiny = Callable[..., RunConfig]
WIDTH = 256  # of the backbone
CONFIG = EmbeddingConfig(dim=6, per_domain=8, domains_per_step=3, mixup="off")
BASELINES = ("mean", "softmax", "posterior")


def loud_batch(count: int = 24, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    # Loud inputs, so that losses are far from those of a uniform guess.
    x = 300 * torch.randn(count, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (count,), generator=generator)
    domain = torch.arange(DOMAINS).repeat_interleave(math.ceil(count / DOMAINS))[:count]
    return Batch(x, y, domain)


def reference(embedding: Embedding, x: Tensor) -> dict[str, np.ndarray]:
    """The network in NumPy float64, layer by layer from the state dict: [b, ·] each."""
    weights = {name: value.double().numpy() for name, value in embedding.state_dict().items()}
    features = x.double().numpy()
    for layer in ("backbone.body.0", "backbone.body.2"):
        features = features @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        features = np.maximum(features, 0)
    below = features @ weights["layer.weight"].T if "layer.weight" in weights else features
    last, hidden = "classifier", below
    if "classifier.weight" not in weights:
        last = "head.last"
        hidden = below @ weights["head.project.weight"].T + weights["head.project.bias"]
        hidden = hidden @ weights["head.first.weight"].T + weights["head.first.bias"]
        hidden = np.maximum(hidden, 0)
    logits = hidden @ weights[f"{last}.weight"].T + weights[f"{last}.bias"]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return {
        "features": features,
        "layer": below,
        "probabilities": shifted / shifted.sum(1, keepdims=True),
    }


@pytest.mark.parametrize(
    ("name", "target"), [("mean", "y"), ("posterior", "y"), ("softmax", "domain")]
)
def test_the_loss_is_the_cross_entropy_of_classes_or_domains(name: str, target: str) -> None:
    embedding, batch = make_embedding(name, CONFIG), loud_batch()
    probabilities = reference(embedding, batch.x)["probabilities"]
    truth = getattr(batch, target).tolist()
    by_hand = -sum(math.log(row[k]) for row, k in zip(probabilities, truth, strict=True))
    losses = embedding(batch, 0)
    assert losses.penalty is None
    assert losses.risk.item() == pytest.approx(by_hand / len(batch), rel=1e-5)
    assert abs(losses.risk.item() - math.log(probabilities.shape[1])) > 0.05


@pytest.mark.parametrize("name", ["mean", "posterior"])
def test_a_shift_is_added_to_the_logits_of_classes(name: str) -> None:
    """As prior-aware training of the run `erm` has it: p(y|x) · exp(shift), normalised."""
    embedding, batch = make_embedding(name, CONFIG), loud_batch()
    shift = torch.randn(len(batch), CLASSES, generator=torch.Generator().manual_seed(3))
    told = reference(embedding, batch.x)["probabilities"] * np.exp(shift.double().numpy())
    by_hand = -np.log(told[np.arange(len(batch)), batch.y] / told.sum(1)).mean()
    losses = embedding(replace(batch, shift=shift), 0)
    assert losses.risk.item() == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "part", "dim"),
    [("mean", "features", WIDTH), ("posterior", "probabilities", CLASSES), ("softmax", "layer", 6)],
)
def test_phi_by_definition(name: str, part: str, dim: int) -> None:
    embedding, x = make_embedding(name, CONFIG).eval(), loud_batch().x
    phi = embedding.phi(x)
    assert embedding.dim == dim
    assert phi.shape == (len(x), dim)
    np.testing.assert_allclose(phi.detach(), reference(embedding, x)[part], rtol=1e-4, atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class OwnConfig:
    depth: int = setting(2, "layers")


class Own(find_embedding("softmax").build):  # type: ignore[misc]
    Config = OwnConfig


def test_phi_depends_on_the_settings_that_it_uses() -> None:
    """Those that all embeddings share, less what this one leaves out, and its own under its name;
    not those of others."""
    config = EmbeddingConfig(name="own", dim=7, components={"own": {"depth": 3}, "other": {"a": 1}})
    fields = {field.name for field in dataclasses.fields(EmbeddingConfig)} - {"components"}
    found = Own.identity(config)
    assert found.keys() == fields - {"mixup", "support"} | {"own"}
    assert (found["own"], found["dim"], found["name"]) == ({"depth": 3}, 7, "own")
    assert Own.identity(replace(config, components={}))["own"] == {"depth": 2}
    prototype = EMBEDDINGS["prototype"].build.identity(replace(config, name="prototype"))
    assert prototype.keys() == fields


@pytest.mark.parametrize("name", BASELINES)
def test_bf16_is_left_before_the_loss_and_the_probabilities(name: str) -> None:
    embedding, batch = make_embedding(name, CONFIG), loud_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, phi = embedding(batch, 0).risk, embedding.phi(batch.x)
    assert (loss.dtype, phi.dtype) == (torch.float32, torch.float32)
    assert loss.item() == pytest.approx(embedding(batch, 0).risk.item(), rel=0.05)
    if name == "posterior":
        torch.testing.assert_close(phi.sum(1), torch.ones(len(phi)))


@pytest.mark.parametrize("name", BASELINES)
def test_domains_take_turns(name: str) -> None:
    rows = [np.arange(20), np.arange(20, 50), np.arange(50, 55)]
    config = replace(CONFIG, per_domain=2)
    sampler = make_embedding(name, config).sampler(rows, config, seed=4)
    assert isinstance(sampler, DomainSampler)
    assert (sampler.per_domain, sampler.slots, sampler.seed) == (2, 3, 4)


@pytest.mark.parametrize("name", ["none", "random"])
def test_controls_are_no_embeddings(name: str) -> None:
    with refused(UnknownName, name):
        find_embedding(name)


@pytest.mark.parametrize("name", BASELINES)
def test_a_run_from_training_to_prediction(
    name: str, features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    config = tiny("da-erm", test_domains=["site-4"], **{"embedding.name": name})
    train(config, features, tmp_path / "run")
    records = RunFolder(tmp_path / "run").records()
    steps = [2, 4] if name == "softmax" else [2, 4, 6]  # the others take the steps of `erm`
    assert [loss.step for loss in records.losses if loss.phase == "embedding"] == steps
    methods = {score.method for score in records.scores if score.domain == "site-4"}
    assert {"embedding", "wrong-embedding"} <= methods

    trained = Trained.load(tmp_path / "run")
    dim = {"mean": WIDTH, "softmax": TINY["embedding.dim"], "posterior": 3}[name]
    assert trained.embedding is not None and trained.table is not None
    assert trained.embedding.dim == dim
    assert trained.table.means.mean(0).abs().max() < 1e-5
    X = features.features()[features.rows(domain="site-4")]
    site = adapt(trained, X[:10])
    assert site.state is not None
    phi = trained.embedding.phi(torch.from_numpy(X[:10]))
    torch.testing.assert_close(site.state.mean.float(), phi.mean(0), rtol=1e-4, atol=1e-5)
    probabilities = site.predict_proba(X[10:])
    assert probabilities.shape == (14, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["mean", "posterior"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model.head": "mlp", "model.dropout": 0.5, "train.keep": "last"},
        {"val_domains": ["site-3"], "adapt.points": 3, "train.evaluate_every": 1},
        {"train.average.kind": "ema", "train.optimiser.name": "sgd", "train.per_domain": 3},
        {"train.average.kind": "swad", "train.average.patience": 1},
    ],
)
def test_phi_is_that_of_the_erm_run(
    name: str, settings: dict[str, Any], features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    """Table 4: "we select the ERM baseline model"; Step A's own budget plays no part."""
    settings = {"test_domains": ["site-4"], "train.optimiser.lr": 0.02, **settings}
    train(tiny("erm", **settings), features, tmp_path / "erm")
    budget = {"embedding.steps": 1, "embedding.per_domain": 8, "embedding.optimiser.lr": 0.9}
    config = tiny("da-coral", **settings, **budget, **{"embedding.name": name})
    train(config, features, tmp_path / "own")
    train_embedding(config, features, tmp_path / "phi")
    train(config, features, tmp_path / "shared", embedding=tmp_path / "phi")
    erm = dict(Trained.load(tmp_path / "erm").predictor.head.named_parameters())
    for run in ("own", "shared"):
        phi = Trained.load(tmp_path / run).embedding
        assert phi is not None
        learned = dict(phi.named_parameters())
        assert learned.keys() == erm.keys()
        assert all(torch.equal(learned[key], erm[key]) for key in erm)


def test_phi_is_that_of_the_erm_run_on_images(tree: Path, tiny: Tiny, tmp_path: Path) -> None:
    """Augmentation and batch-norm statistics included."""
    settings = {"test_domains": ["west"], "data.augment": "domainbed"}
    data = Manifest.from_folder(tree)
    train(tiny("erm", **settings), data, tmp_path / "erm")
    train(tiny("da-erm", **settings, **{"embedding.name": "mean"}), data, tmp_path / "run")
    erm, phi = Trained.load(tmp_path / "erm").predictor, Trained.load(tmp_path / "run").embedding
    assert phi is not None
    one, two = erm.state_dict(), phi.state_dict()
    assert all(torch.equal(two[key], value) for key, value in one.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_two_processes_equal_one(name: str, features: Manifest, tmp_path: Path) -> None:
    data = tmp_path / "features.parquet"
    features.write(data)
    # Not Adam: its first steps are the signs of gradients, which blow rounding up.
    sgd = {"optimiser.name": "sgd", "optimiser.lr": 0.05}
    settings = TINY | {f"{step}.{k}": v for step in ("embedding", "train") for k, v in sgd.items()}
    settings |= {"embedding.name": name, "train.keep": "last"}
    flags = ["--test-domains", "site-4", "--algorithm", "da-erm", *as_flags(settings)]
    one, two = (train_with(n, data, tmp_path / f"run-{n}", *flags) for n in (1, 2))
    assert one.keys() == two.keys()
    for key in one:
        if key.endswith("/reach"):  # an upper bound, which merging may only loosen
            assert (two[key] >= one[key] - 1e-4).all()
        else:
            torch.testing.assert_close(two[key], one[key], rtol=1e-4, atol=1e-5, msg=key)
