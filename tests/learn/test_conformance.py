"""One suite for every row of the tables: algorithms over both predictors, and embeddings."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.config import EmbeddingConfig, RunConfig, from_dict, setting
from acclimate.core.distributed import World
from acclimate.core.errors import AcclimateError
from acclimate.data.batches import Batch
from acclimate.data.manifest import Manifest
from acclimate.learn.algorithms import ALGORITHMS, Algorithm, names
from acclimate.learn.embeddings import (
    EMBEDDINGS,
    Embedding,
    embedding_settings,
    find_embedding,
)
from acclimate.learn.embeddings.prototype import Prototype
from acclimate.learn.models import build_backbone
from acclimate.learn.objective import Losses
from acclimate.records.folder import RunFolder
from acclimate.rehearse.training import train
from acclimate.sweep.contenders import ranges
from fixtures.errors import refused
from fixtures.objectives import (
    CLASSES,
    DOMAINS,
    FEATURES,
    MU,
    batch_for,
    make_algorithm,
    make_batch,
    without_numbers,
)

# On one batch seen again and again an unbiased square has no lower bound, and seven kernels over
# four rows of a domain outweigh the risk.
ON_ONE_BATCH = {"irm": {"form": "square"}, "mmd": {"penalty": 0.1}}


def any_precision() -> AbstractContextManager[object]:
    """A device without numbers has none of lower precision to switch off."""
    return mock.patch.object(torch, "autocast", lambda *_, **__: nullcontext())


@pytest.mark.parametrize("name", names())
class TestAlgorithm:
    def test_gradients_reach_every_parameter(self, name: str) -> None:
        algorithm = make_algorithm(name)
        for step in range(2 if algorithm.adversary else 1):  # each side's turn
            algorithm(batch_for(name), step).total.backward()
        missed = [
            key
            for key, parameter in algorithm.named_parameters()
            if parameter.grad is None or not parameter.grad.any()
        ]
        assert missed == []

    def test_one_domain_costs_no_penalty(self, name: str) -> None:
        losses = make_algorithm(name)(batch_for(name, domains=1), 0)
        assert torch.isfinite(losses.total)
        assert losses.penalty is None or losses.penalty.item() == 0

    def test_known_frequencies_enter_the_logits(self, name: str) -> None:
        """A shift that rules a class out costs dearly where that class is the right one."""
        batch, algorithm = batch_for(name), make_algorithm(name)
        even = replace(batch, shift=torch.zeros(len(batch), CLASSES))
        assert torch.equal(algorithm(even, 0).total, make_algorithm(name)(batch, 0).total)
        against = replace(batch, shift=-9.0 * F.one_hot(batch.y, CLASSES).float())
        assert make_algorithm(name)(against, 0).risk > make_algorithm(name)(batch, 0).risk + 1

    def test_one_class(self, name: str) -> None:
        batch = batch_for(name)
        losses = make_algorithm(name)(replace(batch, y=torch.zeros_like(batch.y)), 0)
        assert losses.total.shape == () and torch.isfinite(losses.total)

    def test_saved_and_loaded_it_scores_the_same(self, name: str) -> None:
        one, two = make_algorithm(name, seed=0), make_algorithm(name, seed=1)
        batch = batch_for(name)
        assert not torch.equal(one(batch, 0).total, two(batch, 0).total)
        two.load_state_dict(one.state_dict())
        assert torch.equal(one(batch, 0).total, two(batch, 0).total)

    def test_no_number_is_read_back_from_the_device(self, name: str) -> None:
        settings = {"gradient_penalty": 0.1} if name.endswith("dann") else {}
        algorithm = make_algorithm(name, **settings).to("meta")
        for domains in (DOMAINS, 1):
            batch = without_numbers(batch_for(name, domains=domains))
            for step in range(2 if algorithm.adversary else 1):
                with any_precision():
                    algorithm(batch, step).total.backward()

    def test_it_learns(self, name: str) -> None:
        settings = ON_ONE_BATCH.get(name.removeprefix("da-"), {})
        algorithm, batch = make_algorithm(name, **settings), batch_for(name)
        optimiser = torch.optim.Adam(algorithm.parameters(), lr=1e-2)
        first = algorithm(batch, 0).risk.item()
        for step in range(40):
            optimiser.zero_grad()
            algorithm(batch, step).total.backward()
            optimiser.step()
        assert algorithm(batch, 40).risk.item() < 0.7 * first


@dataclass(frozen=True, kw_only=True)
class SmoothedConfig:
    smoothing: float = setting(0.1, "share of the target that all classes get", at_least=0)


class Smoothed(Algorithm):
    """Label smoothing, and each class of a batch counts equally: losses without a penalty."""

    Config = SmoothedConfig

    def forward(self, batch: Batch, step: int) -> Losses:
        count = F.one_hot(batch.y, self.classes).sum(0)  # bincount would wait for a GPU
        weight = 1 / count.clamp(min=1).float()
        logits, smoothing = self.predict(batch).logits, self.config.smoothing
        risk = F.cross_entropy(logits, batch.y, weight=weight, label_smoothing=smoothing)
        return Losses(risk=risk)


CHECKS = [name for name in vars(TestAlgorithm) if name.startswith("test_")]


@pytest.mark.parametrize("name", ["smoothed", "da-smoothed"])
@pytest.mark.parametrize("check", CHECKS)
def test_an_algorithm_without_a_penalty_passes(
    name: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "smoothed", (Smoothed, "label smoothing"))
    getattr(TestAlgorithm(), check)(name)


@pytest.mark.parametrize("name", ["smoothed", "da-smoothed"])
def test_an_algorithm_without_a_penalty_trains_and_is_drawn(
    name: str,
    tiny: Callable[..., RunConfig],
    features: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one with a penalty does; its records have none, and a sweep finds nothing to draw of it
    that others have not."""
    monkeypatch.setitem(ALGORITHMS, "smoothed", (Smoothed, "label smoothing"))
    config = tiny(name, hparams={"smoothing": 0.2}, test_domains=("site-0",))
    train(config, features, tmp_path / "run", device="cpu")
    losses = RunFolder(tmp_path / "run").records().losses
    assert losses and {loss.penalty for loss in losses} == {None}
    erm = name.replace("smoothed", "erm")
    assert ranges(name) == ranges(erm)


@pytest.mark.parametrize("name", EMBEDDINGS)
@pytest.mark.parametrize("mixup", ["on", "off"])
class TestEmbedding:
    def make(self, name: str, mixup: str, seed: int = 0):  # type: ignore[no-untyped-def]
        torch.manual_seed(seed)
        config = EmbeddingConfig(dim=MU, mixup=mixup)  # type: ignore[arg-type]
        backbone = build_backbone("mlp", in_features=FEATURES)
        return EMBEDDINGS[name].build(
            backbone, config, domains=DOMAINS, classes=CLASSES, world=World(), seed=0
        )

    def test_finite_loss_and_gradients(self, name: str, mixup: str) -> None:
        embedding = self.make(name, mixup)
        losses = embedding(make_batch(adaptive=False), 0)
        assert torch.isfinite(losses.total)
        losses.total.backward()
        without = [k for k, p in embedding.named_parameters() if p.grad is None]
        assert without == []

    def test_phi_has_its_dimension_and_ignores_the_batch(self, name: str, mixup: str) -> None:
        embedding = self.make(name, mixup).eval()
        x = make_batch(adaptive=False).x
        phi = embedding.phi(x)
        assert phi.shape == (len(x), embedding.dim)
        torch.testing.assert_close(phi[:1], embedding.phi(x[:1]))

    def test_saved_and_loaded_it_is_the_same(self, name: str, mixup: str) -> None:
        one, two = self.make(name, mixup, seed=0), self.make(name, mixup, seed=1)
        one.standardise(torch.randn(3, one.dim, dtype=torch.float64))
        two.load_state_dict(one.state_dict())
        x = make_batch(adaptive=False).x
        assert torch.equal(one.phi(x), two.phi(x))

    def test_no_number_is_read_back_from_the_device(self, name: str, mixup: str) -> None:
        embedding = self.make(name, mixup).to("meta")
        with any_precision():
            embedding(without_numbers(make_batch(adaptive=False)), 0).total.backward()

    def test_same_seed_same_loss(self, name: str, mixup: str) -> None:
        batch = make_batch(adaptive=False)
        one, two = (self.make(name, mixup)(batch, 2).total for _ in range(2))
        assert torch.equal(one, two)


def test_a_new_embedding_is_one_class_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class SharpConfig:
        scale: float = setting(2.0, "what the features are multiplied by", at_least=0)

    class Sharp(Prototype):
        Config = SharpConfig

        def raw(self, x: Tensor) -> Tensor:
            return self.own.scale * super().raw(x)

    def built(**values: Any) -> Embedding:
        config = from_dict(EmbeddingConfig, {"dim": MU, "mixup": "off", **values}, where="test")
        torch.manual_seed(0)
        return find_embedding(config.name).build(
            build_backbone("mlp", in_features=FEATURES),
            config, domains=DOMAINS, classes=CLASSES, world=World(), seed=0,
        )  # fmt: skip

    monkeypatch.setitem(EMBEDDINGS, "sharp", replace(EMBEDDINGS["prototype"], build=Sharp))
    x = make_batch(adaptive=False).x
    once = built().raw(x)
    torch.testing.assert_close(built(name="sharp").raw(x), 2 * once)
    torch.testing.assert_close(built(name="sharp", sharp={"scale": 3.0}).raw(x), 3 * once)
    assert torch.equal(built(name="prototype", sharp={"scale": 3.0}).raw(x), once)


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        ("prototpe", ["embedding.prototpe", "'embedding.prototype'"]),
        ("optimizer", ["embedding.optimizer", "'embedding.optimiser'"]),
        ("prototype", ["embedding.prototype.scale"]),
    ],
)
def test_settings_of_embeddings_that_are_none(table: str, facts: list[str]) -> None:
    with refused(AcclimateError, *facts):
        embedding_settings(from_dict(EmbeddingConfig, {table: {"scale": 1}}, where="test"))
