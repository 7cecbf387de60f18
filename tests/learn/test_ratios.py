"""How label frequencies vary between domains, and what that makes of unlabelled images."""

import itertools

import numpy as np
import pytest
import torch

from acclimate.adapt.methods.prior import PriorConfig, em_prior, estimated, learned_prior
from acclimate.core.errors import ConfigError
from acclimate.learn import ratios as module
from acclimate.learn.ratios import OPEN, RATIOS, fit_ratios

PRIOR = np.array([0.5, 0.3, 0.2])


SHARES = [0.8, 0.2]  # of ratios 0.4 and 3.4, whose mean is then 1


def drawn(domains: int, images: int, ratios: list[float], seed: int = 0) -> np.ndarray:
    """Counts of ten equally frequent classes whose ratios are drawn from `ratios`, which come as
    often as `SHARES` say."""
    rng = np.random.default_rng(seed)
    shares = SHARES[: len(ratios)] if len(ratios) > 1 else None
    return rng.poisson(images / 10 * rng.choice(ratios, (domains, 10), p=shares))


def mass_near(weights: np.ndarray, ratio: float) -> float:
    return float(weights[np.abs(np.log(RATIOS / ratio)) < 0.35].sum())


def test_em_against_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUNDS", 3)
    counts = np.array([[4, 0, 6], [9, 3, 0]])
    weights = [1 / len(RATIOS)] * len(RATIOS)
    for _ in range(3):
        total = [0.0] * len(RATIOS)
        for row in counts:
            for count, share in zip(row, PRIOR, strict=True):
                mean = row.sum() * share
                each = [
                    w * np.exp(-mean * r) * (mean * r) ** count
                    for w, r in zip(weights, RATIOS, strict=True)
                ]
                for place, value in enumerate(each):
                    total[place] += value / sum(each) / counts.size
        weights = total
    expected = (1 - OPEN) * np.array(weights) + OPEN / len(RATIOS)
    np.testing.assert_allclose(fit_ratios(counts, PRIOR), expected, rtol=1e-9)


def test_two_kinds_of_class_are_told_apart() -> None:
    found = fit_ratios(drawn(60, 1000, [0.4, 3.4]), np.full(10, 0.1))
    assert found.sum() == pytest.approx(1)
    assert mass_near(found, 0.4) > 0.4 and mass_near(found, 3.4) > 0.1
    assert mass_near(found, 1.2) < 0.2


def test_frequencies_that_stay_are_expected_to_stay() -> None:
    assert mass_near(fit_ratios(drawn(60, 1000, [1.0]), np.full(10, 0.1)), 1.0) > 0.85


def test_a_class_that_no_domain_has_tells_nothing() -> None:
    counts, prior = np.array([[3, 5, 0], [6, 2, 0]]), np.array([0.5, 0.5, 0.0])
    np.testing.assert_allclose(fit_ratios(counts, prior), fit_ratios(counts[:, :2], prior[:2]))


def test_many_cells_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, prior = drawn(200, 1000, [0.4, 3.4]), np.full(10, 0.1)
    whole = fit_ratios(counts, prior)
    monkeypatch.setattr(module, "MOST_CELLS", 500)
    some = fit_ratios(counts, prior)
    assert not np.array_equal(some, whole)
    assert mass_near(some, 0.4) == pytest.approx(mass_near(whole, 0.4), abs=0.1)


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
    weights = fit_ratios(drawn(60, 300, [0.4, 3.4]), np.full(10, 0.1))
    prior, off, off_em = torch.from_numpy(PRIOR), 0.0, 0.0
    for concentration in (0.3, 1.0, 2.0):
        for _ in range(3):
            posteriors = rng.dirichlet(np.full(3, concentration), size=7)
            ratio = exact(posteriors, PRIOR, weights)
            expected = PRIOR * ratio / (PRIOR * ratio).sum()
            rows = torch.from_numpy(posteriors)
            off += np.abs(learned_prior(rows, prior, weights)[0].numpy() - expected).sum()
            off_em += np.abs(em_prior(rows, prior)[0].numpy() - expected).sum()
    assert off / 9 < 0.1
    assert off < 0.25 * off_em


def test_sure_images_give_the_posterior_mean_of_their_counts() -> None:
    weights = fit_ratios(drawn(60, 300, [0.4, 3.4]), np.full(10, 0.1))
    sure = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 0, 1, 1, 2]]
    each = [
        weights * RATIOS**count * np.exp(-7 * share * RATIOS)
        for count, share in zip([4, 2, 1], PRIOR, strict=True)
    ]
    ratio = np.array([(e * RATIOS).sum() / e.sum() for e in each])
    found, _ = learned_prior(sure, torch.from_numpy(PRIOR), weights)
    np.testing.assert_allclose(found.numpy(), PRIOR * ratio / (PRIOR * ratio).sum(), rtol=1e-9)


def test_the_order_of_images_does_not_matter() -> None:
    weights = fit_ratios(drawn(60, 300, [0.4, 3.4]), np.full(10, 0.1))
    rows = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(3, 0.5), size=40))
    one, _ = learned_prior(rows, torch.from_numpy(PRIOR), weights)
    other, _ = learned_prior(rows.flip(0), torch.from_numpy(PRIOR), weights)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_a_class_that_training_lacked_keeps_its_nothing() -> None:
    weights = fit_ratios(drawn(60, 300, [0.4, 3.4]), np.full(10, 0.1))
    rows = torch.tensor([[0.6, 0.4, 0.0], [0.2, 0.8, 0.0]], dtype=torch.float64)
    prior = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    found, _ = learned_prior(rows, prior, weights)
    assert found[2] == 0 and found.isfinite().all()
    # Nor does it take images from the others, whatever the classifier thinks of it.
    doubtful = torch.tensor([[0.6, 0.1, 0.3], [0.2, 0.4, 0.4]], dtype=torch.float64)
    known = doubtful[:, :2] / doubtful[:, :2].sum(1, keepdim=True)
    alone, _ = learned_prior(known, prior[:2], weights)
    torch.testing.assert_close(learned_prior(doubtful, prior, weights)[0][:2], alone)


def test_it_finds_frequencies_better_than_em_where_they_vary_so() -> None:
    """Twenty classes, 100 images: EM takes chance for a shift."""
    rng = np.random.default_rng(1)
    classes, prior = 20, torch.full((20,), 0.05, dtype=torch.float64)
    weights = fit_ratios(drawn(100, 2000, [0.4, 3.4]), np.full(10, 0.1))
    errors = {"learned": 0.0, "em": 0.0}
    for _ in range(20):
        true = rng.choice([0.4, 3.4], classes, p=SHARES) / classes
        true /= true.sum()
        labels = rng.choice(classes, 100, p=true)
        logits = rng.normal(size=(100, classes)) + 2 * np.eye(classes)[labels]
        rows = torch.from_numpy(2 * logits).softmax(1)  # Bayes: the two means lie 2 apart
        for name, estimate in (
            ("learned", learned_prior(rows, prior, weights)[0]),
            ("em", em_prior(rows, prior)[0]),
        ):
            errors[name] += float((estimate - torch.from_numpy(true)).abs().sum())
    assert errors["learned"] < 0.65 * errors["em"]


def test_a_model_that_does_not_know() -> None:
    rows = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    with pytest.raises(ConfigError) as error:
        estimated(rows, torch.from_numpy(PRIOR), PriorConfig(expect="learned"), None)
    assert str(error.value) == (
        "adapt.prior.expect=learned needs a model that knows how its training domains vary, and "
        "this one is of an earlier version; train again, or leave the setting out"
    )
