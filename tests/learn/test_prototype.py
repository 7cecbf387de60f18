"""Algorithm 1: Equation 3 against a plain loop, and domain mixup row by row."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.config import EmbeddingConfig
from acclimate.core.randomness import stream
from acclimate.data.batches import Batch, EpisodeSampler, support_size
from acclimate.learn.embeddings.prototype import Prototype, prototype_loss
from fixtures.objectives import make_embedding

CONFIG = EmbeddingConfig(dim=6, per_domain=8, support=0.5, domains_per_step=3, mixup="off")


def build(config: EmbeddingConfig = CONFIG) -> Prototype:
    return make_embedding("prototype", config)


def episode(domains: int = 3, per_domain: int = 8, features: int = 5, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    # Wide apart, so that losses are far from log(domains) and tell support from query.
    x = 10 * torch.randn(domains * per_domain, features, generator=generator)
    y = torch.randint(0, 4, (len(x),), generator=generator)
    return Batch(x, y, torch.arange(domains).flip(0).repeat_interleave(per_domain))


def by_loop(support: np.ndarray, query: np.ndarray) -> float:
    """Equation 3 written out in float64: [m,s,d], [m,q,d]."""
    prototypes = [sum(points) / len(points) for points in support]
    losses = []
    for domain, points in enumerate(query):
        for point in points:
            scores = [-sum((p - x) ** 2 for p, x in zip(m, point, strict=True)) for m in prototypes]
            largest = max(scores)
            log_sum = largest + math.log(sum(math.exp(score - largest) for score in scores))
            losses.append(log_sum - scores[domain])
    return float(sum(losses) / len(losses))


def test_two_domains_by_hand() -> None:
    support = torch.tensor([[[0.0, 1.0], [0.0, -1.0]], [[1.0, 0.0], [3.0, 0.0]]])
    query = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]])
    # Prototypes (0,0) and (2,0). First query: 0 and 4; second: 2 and 2.
    expected = (math.log(1 + math.exp(-4)) + math.log(2)) / 2
    assert float(prototype_loss(support, query)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("m", "s", "q", "d"), [(2, 1, 1, 1), (3, 4, 5, 6), (8, 2, 1, 3)])
def test_against_a_plain_loop(m: int, s: int, q: int, d: int) -> None:
    rng = np.random.default_rng(m)
    support, query = rng.normal(size=(m, s, d)), rng.normal(size=(m, q, d))
    found = prototype_loss(torch.from_numpy(support), torch.from_numpy(query))
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(by_loop(support, query), rel=1e-12)


def test_an_offset_of_each_dimension_costs_no_digits() -> None:
    """float32 features far from 0, in one dimension on this side and in the other on that."""
    rng = np.random.default_rng(0)
    support, query = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 5, 2))
    far = [
        (torch.from_numpy(part) + torch.tensor([3e3, -3e3])).float() for part in (support, query)
    ]
    expected = by_loop(*(part.double().numpy() for part in far))
    assert float(prototype_loss(*far)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_a_batch_scores_as_its_features_do(share: float) -> None:
    objective, batch = build(replace(CONFIG, support=share)), episode()
    phi = objective.raw(batch.x).detach().double().reshape(3, 8, -1).numpy()
    cut = support_size(8, share)
    assert cut == {0.25: 2, 0.5: 4, 0.8: 6}[share]
    losses = objective(batch, 0)
    assert losses.risk.item() == pytest.approx(by_loop(phi[:, :cut], phi[:, cut:]), rel=1e-5)
    assert losses.penalty is None
    assert abs(losses.risk.item() - math.log(3)) > 0.1


def seen_by_backbone(objective: Prototype, batch: Batch, step: int) -> tuple[Tensor, float]:
    """What the backbone saw, and the loss."""
    seen: list[Tensor] = []
    hook = objective.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    loss = objective(batch, step).risk.item()
    hook.remove()
    assert len(seen) == 1  # one pass, so that batch norm sees all of it
    return seen[0], loss


def ratio_of(mixed: Tensor, one: Tensor, two: Tensor) -> float | None:
    """r with mixed = r·one + (1−r)·two in every number, or None."""
    apart = (one - two).flatten()
    r = float(((mixed - two).flatten() @ apart) / (apart @ apart))
    return r if torch.allclose(mixed, r * one + (1 - r) * two, atol=1e-4) else None


def mixtures(domains: Tensor, synthetic: Tensor) -> list[tuple[frozenset[int], float]]:
    """The pair and the ratio (of the lower-numbered one) that made each synthetic domain."""
    found = []
    for mixed in synthetic:
        pairs = [(a, b) for b in range(len(domains)) for a in range(b)]
        ratios = {pair: ratio_of(mixed, domains[pair[0]], domains[pair[1]]) for pair in pairs}
        fitting = {pair: r for pair, r in ratios.items() if r is not None}
        assert len(fitting) == 1, "each synthetic domain mixes one pair with one ratio"
        found += [(frozenset(pair), r) for pair, r in fitting.items()]
    return found


def test_domain_mixup_row_by_row() -> None:
    objective = build(replace(CONFIG, mixup="on"))
    all_ratios: list[float] = []
    all_pairs = set()
    for step in range(25):
        batch = episode(domains=4, seed=step)
        x, _ = seen_by_backbone(objective, batch, step)
        assert torch.equal(x[:32], batch.x)
        assert len(x) == 64  # as many synthetic domains as real ones
        # Row j is made of rows j of both: support of support, query of query.
        found = mixtures(x[:32].reshape(4, 8, -1), x[32:].reshape(4, 8, -1))
        assert len({round(r, 4) for _, r in found}) == 4  # a ratio for each
        drawn = stream(objective.seed, "domain-mixup", step)
        pairs = [drawn.permutation(4)[:2].tolist() for _ in range(4)]
        ratios = drawn.uniform(0.2, 0.8, 4)
        assert [pair for pair, _ in found] == [frozenset(pair) for pair in pairs]
        first = [r if a < b else 1 - r for (a, b), r in zip(pairs, ratios, strict=True)]
        assert [r for _, r in found] == pytest.approx(first, abs=1e-4)
        all_ratios += [r for _, r in found]
        all_pairs |= {pair for pair, _ in found}
    assert 0.2 - 1e-4 <= min(all_ratios) < 0.25
    assert 0.75 < max(all_ratios) <= 0.8 + 1e-4
    assert np.mean(all_ratios) == pytest.approx(0.5, abs=0.06)
    assert len(all_pairs) == 6


def test_synthetic_domains_count_as_domains() -> None:
    objective, batch = build(replace(CONFIG, mixup="on")), episode()
    x, loss = seen_by_backbone(objective, batch, step=3)
    phi = objective.raw(x).detach().double().reshape(6, 8, -1).numpy()
    assert loss == pytest.approx(by_loop(phi[:, :4], phi[:, 4:]), rel=1e-5)
    plain = build()
    plain.load_state_dict(objective.state_dict())
    assert loss > plain(batch, 3).risk.item()  # six to choose from, not three


@pytest.mark.parametrize("mixup", ["on", "off"])
def test_labels_play_no_part(mixup: str) -> None:
    objective = build(replace(CONFIG, mixup=mixup))  # type: ignore[arg-type]
    batch = episode()
    relabelled = replace(batch, y=batch.y.flip(0) + 1)
    assert torch.equal(objective(batch, 0).risk, objective(relabelled, 0).risk)


def test_the_layer_has_no_bias_which_no_distance_would_see() -> None:
    own = {name for name, _ in build().named_parameters() if not name.startswith("backbone")}
    assert own == {"layer.weight"}


def test_it_asks_for_episodes() -> None:
    config = replace(CONFIG, per_domain=10, support=0.8, domains_per_step=9)
    rows, pictures = [np.arange(20), np.arange(20, 50)], np.arange(50) // 2
    sampler = build(config).sampler(rows, config, 4, pictures)
    assert isinstance(sampler, EpisodeSampler)
    assert [own.tolist() for own in sampler.domains] == [
        list(range(0, 20, 2)),
        list(range(20, 50, 2)),
    ]
    assert (sampler.per_domain, sampler.support, sampler.slots, sampler.seed) == (10, 8, 2, 4)
    assert Prototype.least_domains == 2
