"""One suite for every row of the tables: algorithms over both predictors, and embeddings."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from acclimate.config import EmbeddingConfig, from_dict
from acclimate.core.errors import AcclimateError
from acclimate.learn.algorithms import names
from acclimate.learn.embeddings import EMBEDDINGS, embedding_settings
from fixtures.errors import refused
from fixtures.objectives import (
    CLASSES,
    DOMAINS,
    MU,
    batch_for,
    make_algorithm,
    make_batch,
    make_embedding,
    without_numbers,
)

# On one batch seen again and again an unbiased square has no lower bound, and seven kernels over
# four rows of a domain outweigh the risk.
ON_ONE_BATCH = {
    "irm": {"penalty": 0.01, "anneal": 0},
    "mmd": {"penalty": 0.1},
    "causirl-mmd": {"penalty": 0.1},
}


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
            if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
        ]
        assert missed == []

    def test_one_domain_costs_no_penalty(self, name: str) -> None:
        """But for penalties that do not compare domains."""
        algorithm = make_algorithm(name)
        losses = algorithm(batch_for(name, domains=1), 0)
        assert torch.isfinite(losses.total)
        compares = algorithm.least_domains > 1
        assert not compares or losses.penalty is None or losses.penalty.item() == 0

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


def mixed(mixup: str) -> EmbeddingConfig:
    return EmbeddingConfig(dim=MU, mixup=mixup)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EMBEDDINGS)
@pytest.mark.parametrize("mixup", ["on", "off"])
class TestEmbedding:
    def test_finite_loss_and_gradients(self, name: str, mixup: str) -> None:
        embedding = make_embedding(name, mixed(mixup))
        losses = embedding(make_batch(adaptive=False), 0)
        assert torch.isfinite(losses.total)
        losses.total.backward()
        without = [k for k, p in embedding.named_parameters() if p.grad is None]
        assert without == []

    def test_phi_has_its_dimension_and_ignores_the_batch(self, name: str, mixup: str) -> None:
        embedding = make_embedding(name, mixed(mixup)).eval()
        x = make_batch(adaptive=False).x
        phi = embedding.phi(x)
        assert phi.shape == (len(x), embedding.dim)
        torch.testing.assert_close(phi[:1], embedding.phi(x[:1]))

    def test_saved_and_loaded_it_is_the_same(self, name: str, mixup: str) -> None:
        one, two = (make_embedding(name, mixed(mixup), seed) for seed in (0, 1))
        one.standardise(torch.randn(3, one.dim, dtype=torch.float64))
        two.load_state_dict(one.state_dict())
        x = make_batch(adaptive=False).x
        assert torch.equal(one.phi(x), two.phi(x))

    def test_no_number_is_read_back_from_the_device(self, name: str, mixup: str) -> None:
        embedding = make_embedding(name, mixed(mixup)).to("meta")
        with any_precision():
            embedding(without_numbers(make_batch(adaptive=False)), 0).total.backward()


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
