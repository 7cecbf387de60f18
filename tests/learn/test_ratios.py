"""How label frequencies vary between domains."""

import numpy as np
import pytest

from acclimate.data import batches as module
from acclimate.data.batches import OPEN, RATIOS, fit_ratios

PRIOR = np.array([0.5, 0.3, 0.2])


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


def test_a_class_that_no_domain_has_tells_nothing() -> None:
    counts, prior = np.array([[3, 5, 0], [6, 2, 0]]), np.array([0.5, 0.5, 0.0])
    np.testing.assert_allclose(fit_ratios(counts, prior), fit_ratios(counts[:, :2], prior[:2]))


def test_many_cells_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten equally frequent classes whose ratios are 0.4 or 3.4, with a mean of 1."""
    rng, prior = np.random.default_rng(0), np.full(10, 0.1)
    counts = rng.poisson(100 * rng.choice([0.4, 3.4], (200, 10), p=[0.8, 0.2]))
    whole = fit_ratios(counts, prior)
    monkeypatch.setattr(module, "MOST_CELLS", 500)
    some = fit_ratios(counts, prior)
    assert not np.array_equal(some, whole)
    near = np.abs(np.log(RATIOS / 0.4)) < 0.35
    assert some[near].sum() == pytest.approx(whole[near].sum(), abs=0.1)
    assert whole[near].sum() > 0.4
