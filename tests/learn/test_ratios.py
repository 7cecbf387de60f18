"""How label frequencies vary between domains."""

import numpy as np
import pytest

from acclimate.data import batches as module
from acclimate.data.batches import OPEN, RATIOS, fit_ratios

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
