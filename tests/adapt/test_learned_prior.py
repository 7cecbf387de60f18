"""The frequencies behind unlabelled images, where frequencies vary as between training domains."""

import itertools

import numpy as np
import torch

from acclimate.adapt.methods.prior import PriorConfig, em_prior, estimate, learned_prior
from acclimate.core.errors import ConfigError
from acclimate.data.batches import RATIOS, fit_ratios
from fixtures.errors import refused

PRIOR = np.array([0.5, 0.3, 0.2])
SHARES = [0.8, 0.2]  # of ratios 0.4 and 3.4, whose mean is then 1
_rng = np.random.default_rng(0)
_TRUE = _rng.choice([0.4, 3.4], (60, 10), p=SHARES)
WEIGHTS = fit_ratios(_rng.poisson(30 * _TRUE), np.full(10, 0.1))  # of 60 domains of 300 images

# Gauss and Hermite's five points of the normal distribution, and what they weigh.
POINTS = {
    0.0: 8 / 15,
    1.3556261799742659: 0.2220759220056126,
    -1.3556261799742659: 0.2220759220056126,
    2.8569700138728056: 0.0112574113277207,
    -2.8569700138728056: 0.0112574113277207,
}


def expected_ratio(count: float, variance: float, expected: float) -> float:
    """E[r | count] where as many images are `expected`, over a count known up to a variance."""
    total = 0.0
    for point, weight in POINTS.items():
        images = max(count + point * max(variance, 0.0) ** 0.5, 0.0)
        each = [w * r**images * np.exp(-expected * r) for w, r in zip(WEIGHTS, RATIOS, strict=True)]
        total += weight * sum(e * r for e, r in zip(each, RATIOS, strict=True)) / sum(each)
    return total


def by_loop(posteriors: np.ndarray, train: np.ndarray, rounds: int) -> list[np.ndarray]:
    """Frequencies after each round: an image's shares from what the others say of each class."""
    n, classes = posteriors.shape
    rows = np.where(train > 0, posteriors, 0)
    shares, found = rows / rows.sum(1, keepdims=True), []
    for _ in range(rounds):
        new, ratio = np.zeros_like(shares), np.zeros(classes)
        for c in range(classes):
            count = sum(shares[i, c] for i in range(n))
            variance = sum(shares[i, c] * (1 - shares[i, c]) for i in range(n))
            ratio[c] = expected_ratio(count, variance, n * train[c])
            others = expected_ratio(max(count - 1, 0.0), variance, n * train[c])
            for i in range(n):
                mixed = (1 - shares[i, c]) * ratio[c] + shares[i, c] * others
                new[i, c] = rows[i, c] * mixed
        shares = new / new.sum(1, keepdims=True)
        found.append(train * ratio / (train * ratio).sum())
    return found


def test_against_a_loop() -> None:
    """Few images, some of them sure, of four classes, one of which training lacked; round by round,
    and when it ends."""
    train = np.array([0.5, 0.3, 0.0, 0.2])
    rows = np.random.default_rng(4).dirichlet([0.4, 0.3, 0.2, 0.3], size=6)
    expected = by_loop(rows, train, 30)
    given = torch.from_numpy(rows), torch.from_numpy(train), WEIGHTS
    for rounds in (1, 2, 3, 30):
        found, taken = learned_prior(*given, tolerance=0, most=rounds)
        assert taken == rounds
        np.testing.assert_allclose(found.numpy(), expected[rounds - 1], rtol=1e-10)
    found, taken = learned_prior(*given)
    np.testing.assert_array_equal(found.numpy(), learned_prior(*given, most=taken)[0].numpy())
    before, last = (learned_prior(*given, tolerance=tolerance)[1] for tolerance in (1e-2, 1e-4))
    assert 1 < before < taken < last


def test_it_ends_where_nothing_moves_or_after_200_rounds() -> None:
    """Of one class there is nothing to find out: the second round is the first again."""
    sure, whole = torch.ones(5, 1), torch.ones(1)
    assert learned_prior(sure, whole, WEIGHTS, tolerance=0)[1] == 2
    assert learned_prior(sure, whole, WEIGHTS, tolerance=-1)[1] == 200


def exact(posteriors: np.ndarray, prior: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """E[r_c | images] summed over every labelling of the images and every ratio."""
    n, classes = posteriors.shape
    total, moments = 0.0, np.zeros(classes)
    for labels in itertools.product(range(classes), repeat=n):
        counts = np.bincount(labels, minlength=classes)
        likelihood = np.prod(posteriors[np.arange(n), labels])
        means = np.zeros(classes)
        for c in range(classes):
            each = weights * RATIOS ** counts[c] * np.exp(-n * prior[c] * RATIOS)
            likelihood *= each.sum()
            means[c] = (each * RATIOS).sum() / each.sum()
        total += likelihood
        moments += likelihood * means
    return moments / total


def test_beside_the_exact_posterior() -> None:
    rng = np.random.default_rng(3)
    prior, off, off_em = torch.from_numpy(PRIOR), 0.0, 0.0
    for concentration in (0.3, 1.0, 2.0):
        for _ in range(3):
            posteriors = rng.dirichlet(np.full(3, concentration), size=7)
            ratio = exact(posteriors, PRIOR, WEIGHTS)
            expected = PRIOR * ratio / (PRIOR * ratio).sum()
            rows = torch.from_numpy(posteriors)
            off += np.abs(learned_prior(rows, prior, WEIGHTS)[0].numpy() - expected).sum()
            off_em += np.abs(em_prior(rows, prior)[0].numpy() - expected).sum()
    assert off / 9 < 0.1
    assert off < 0.25 * off_em


def test_sure_images_give_the_posterior_mean_of_their_counts() -> None:
    sure = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 0, 1, 1, 2]]
    each = [
        WEIGHTS * RATIOS**count * np.exp(-7 * share * RATIOS)
        for count, share in zip([4, 2, 1], PRIOR, strict=True)
    ]
    ratio = np.array([(e * RATIOS).sum() / e.sum() for e in each])
    found, _ = learned_prior(sure, torch.from_numpy(PRIOR), WEIGHTS)
    np.testing.assert_allclose(found.numpy(), PRIOR * ratio / (PRIOR * ratio).sum(), rtol=1e-9)


def test_a_class_that_training_lacked_keeps_its_nothing() -> None:
    rows = torch.tensor([[0.6, 0.4, 0.0], [0.2, 0.8, 0.0]], dtype=torch.float64)
    prior = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    found, _ = learned_prior(rows, prior, WEIGHTS)
    assert found[2] == 0 and found.isfinite().all()
    # Nor does it take images from the others, whatever the classifier thinks of it.
    doubtful = torch.tensor([[0.6, 0.1, 0.3], [0.2, 0.4, 0.4]], dtype=torch.float64)
    known = doubtful[:, :2] / doubtful[:, :2].sum(1, keepdim=True)
    alone, _ = learned_prior(known, prior[:2], WEIGHTS)
    torch.testing.assert_close(learned_prior(doubtful, prior, WEIGHTS)[0][:2], alone)


def test_a_model_that_does_not_know() -> None:
    rows = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    with refused(ConfigError, "adapt.prior.expect"):
        estimate(rows, torch.from_numpy(PRIOR), PriorConfig(expect="learned"), None)
