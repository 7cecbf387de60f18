"""Floors of the accuracy and thresholds of confidence, on held-out sites made by hand."""

import math

import numpy as np
import pytest

from acclimate.records.doubt import (
    THRESHOLDS,
    Forecast,
    answer_for,
    answers,
    best_score,
    count_answers,
    forecasts,
    logits_of,
    scores_of,
)

T3, T4 = 1.637744, 1.533206  # Student's t below which 90 % lie, by freedom


def shares(*logits: float) -> list[float]:
    return [1 / (1 + math.exp(-one)) for one in logits]


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def test_logits_count_half_an_image_more_on_either_side() -> None:
    y, noise = logits_of([0.9, 1.0], [10, 4])
    np.testing.assert_allclose(y, [math.log(9.5 / 1.5), math.log(4.5 / 0.5)])
    np.testing.assert_allclose(noise, [1 / 9.5 + 1 / 1.5, 1 / 4.5 + 1 / 0.5])


def test_a_floor_over_large_sites_is_students() -> None:
    """Logits 1, 2, 3, 4 vary by 5/3; the next one by that and by the error of their mean."""
    (found,) = forecasts(shares(1, 2, 3, 4), [0] * 4, {})
    assert logit(found.accuracy) == pytest.approx(2.5, abs=1e-4)
    assert logit(found.floor) == pytest.approx(2.5 - T3 * math.sqrt(5 / 3 * 1.25), abs=1e-4)


def test_sampling_error_is_no_difference_between_sites() -> None:
    """Four sites of 20 images, 15 or 17 right: as far apart as chance has them. What is left is
    the error of their mean, each weighted by its images."""
    y, noise = np.log([15.5 / 5.5, 17.5 / 3.5]), np.array([1 / 15.5 + 1 / 5.5, 1 / 17.5 + 1 / 3.5])
    assert np.repeat(y, 2).var(ddof=1) < noise.mean()
    (found,) = forecasts([0.75, 0.75, 0.85, 0.85], [20] * 4, {})
    centre = (y / noise).sum() / (1 / noise).sum()
    assert logit(found.accuracy) == pytest.approx(centre)
    below = T3 / math.sqrt(2 * (1 / noise).sum())
    assert logit(found.floor) == pytest.approx(centre - below, abs=1e-6)


def test_a_larger_site_counts_more() -> None:
    """Between variance: that of the logits, 0.5 d², less the mean of their noise."""
    y, noise = logits_of([0.5, 0.8], [1000, 40])
    between = (y[1] - y[0]) ** 2 / 2 - noise.mean()
    weights = 1 / (between + noise)
    (found,) = forecasts([0.5, 0.8], [1000, 40], {})
    assert logit(found.accuracy) == pytest.approx((weights * y).sum() / weights.sum())
    assert logit(found.accuracy) < y.mean()


def test_one_site_says_nothing() -> None:
    assert forecasts([0.9], [100], {"mean confidence": [0.9]}) == ()


def test_nine_of_ten_new_sites_lie_above_the_floor() -> None:
    """Sites of 60 images whose logits vary by a known amount, against the true accuracy of one
    more; the two-sided interval of before covered as many, from twice as far."""
    rng = np.random.default_rng(0)
    for spread, least, most in ((0.7, 0.86, 0.94), (0.3, 0.88, 0.97)):
        held, wide = [], []
        for _ in range(600):
            true = 1 / (1 + np.exp(-rng.normal(2.0, spread, 9)))
            accuracies = rng.binomial(60, true[:8]) / 60
            (found,) = forecasts(accuracies, [60] * 8, {})
            held.append(true[8] >= found.floor)
            student = 1.894579 * accuracies.std(ddof=1) * math.sqrt(9 / 8)
            wide.append(2 * student / (found.accuracy - found.floor))
        assert least < np.mean(held) < most
        assert np.mean(wide) > 2


def test_scores_by_hand() -> None:
    """Confidences 0.8 and 0.6; predicted 0.5, 0.5 where training has 0.7, 0.3."""
    rows = np.array([[0.8, 0.2], [0.2, 0.8], [0.6, 0.4], [0.4, 0.6]])
    assert scores_of(rows, [0.7, 0.3]) == pytest.approx(
        {"mean confidence": 0.7, "predicted class frequencies": 0.8}
    )


SCORE = (-1.0, 0.0, 0.5, 1.0, 1.5, 4.0)


def test_a_score_that_predicts_the_sites_narrows_the_floor() -> None:
    """Accuracies half a logit above the score, give or take 0.1: slope 1, shrunken by 6/7 for six
    sites. What is left varies with four degrees of freedom."""
    x, off = np.array(SCORE), np.array([0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    y = x + 0.5 + off
    scores = {"mean confidence": shares(*x), "noise": shares(*x[[3, 1, 5, 0, 4, 2]])}
    anywhere, found = forecasts(shares(*y), [0] * 6, scores)
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred)) * 6 / 7
    rest = y - slope * centred
    assert (found.by, found.slope) == ("mean confidence", pytest.approx(slope, abs=1e-3))
    assert logit(found.score) == pytest.approx(x.mean())
    variance = ((rest - rest.mean()) ** 2).sum() / 4
    below = T4 * math.sqrt(variance * (1 + 1 / 6))
    assert logit(found.floor) == pytest.approx(y.mean() - below, abs=1e-3)
    assert anywhere.by == "" and anywhere.accuracy - anywhere.floor > 0.2
    here = found.at(1 / (1 + math.exp(-2.0)))
    assert logit(here.accuracy) - logit(found.accuracy) == pytest.approx(
        slope * (2 - x.mean()), abs=1e-4
    )
    assert logit(here.accuracy) - logit(here.floor) == pytest.approx(below, abs=1e-3)
    assert found.at(found.score).accuracy == pytest.approx(found.accuracy)


def test_a_score_counts_only_where_it_beats_none_by_more_than_its_error() -> None:
    x = np.array(SCORE)
    told = {"a": shares(*x)}
    assert best_score(x + 0.5, told) == "a"
    assert best_score((x + 0.5)[:4], {"a": shares(*x[:4])}) is None  # too few sites to tell
    assert best_score(-x, told) is None  # sure where it is wrong: no slope below 0
    assert best_score(np.array([0.3, -0.2, 0.1, -0.3, 0.2, 0.0]), told) is None
    assert best_score(x + 0.5, {}) is None


def test_a_slope_is_not_steeper_than_one() -> None:
    _, found = forecasts(shares(*(3 * np.array(SCORE))), [0] * 6, {"a": shares(*SCORE)})
    assert found.slope == 1.0


def test_a_score_at_its_end_stays_finite() -> None:
    found = Forecast(accuracy=0.9, floor=0.8, by="a", slope=1.0, score=0.9)
    assert 0.9 < found.at(1.0).accuracy < 1 and 0 < found.at(0.0).floor < 0.1


def test_answers_are_counted_at_each_threshold() -> None:
    sure, right = np.array([0.2, 0.5, 0.9, 0.999]), np.array([False, True, False, True])
    counts = dict(zip(THRESHOLDS, count_answers(sure, right), strict=True))
    assert THRESHOLDS[0] == 0 and 0.9 in THRESHOLDS and THRESHOLDS[-1] == 0.999
    assert (counts[0.0], counts[0.9], counts[0.99], counts[0.999]) == (
        (4, 2),
        (2, 1),
        (1, 1),
        (1, 1),
    )


def test_a_promise_is_the_mean_over_sites_less_its_error() -> None:
    """Of 9 answers each 9, 9 and 8 are right, with half of one more on either side; then 3 of 3 at
    two sites, and none at the third: too few sites for a promise."""
    counts = np.zeros((3, len(THRESHOLDS), 2), dtype=int)
    counts[:, 0] = [[18, 9], [18, 9], [9, 5]]
    counts[:, 1] = [[9, 9], [9, 9], [9, 8]]
    counts[:2, 2] = 3
    first, second = answers(counts)
    assert (first.threshold, first.share) == (0.0, 1.0)
    assert (second.threshold, second.share) == (THRESHOLDS[1], pytest.approx(2 / 3, abs=1e-4))
    mean, error = (0.95 + 0.95 + 0.85) / 3, 0.1 / math.sqrt(3) / math.sqrt(3)
    assert second.right == pytest.approx(mean - error, abs=1e-4)
    assert answer_for((first, second), 0.88) == second
    assert answer_for((first, second), 0.4) == first
    assert answer_for((first, second), 0.89) is None


def test_half_of_the_sites_must_answer() -> None:
    """Three of eight sites are too few of them, three of five are not."""
    for sites, known in ((8, 1), (5, 2)):
        counts = np.zeros((sites, len(THRESHOLDS), 2), dtype=int)
        counts[:, 0], counts[:3, 1] = 10, 5
        assert len(answers(counts)) == known
