"""How sure a number is: by hand, with points of Student's t from a printed table."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from acclimate.results.statistics import (
    CONFIDENCE,
    ENOUGH_DOMAINS,
    ENOUGH_SEEDS,
    Estimate,
    bootstrap,
    difference_p,
    holm,
    in_words,
    ratio,
    verdict_of,
)

# Two-sided 5 % points of Student's t, as tables print them, by degrees of freedom.
T = {2: 4.3027, 3: 3.1824, 9: 2.2622}


def judged(mean: float, se: float | None, n: int) -> str:
    gap = Estimate(mean, se, n)
    return verdict_of(gap, difference_p(gap))


@pytest.mark.parametrize("freedom", T)
@pytest.mark.parametrize(("sign", "beyond"), [(1, "better"), (-1, "worse")])
def test_the_interval_over_seeds_is_students(freedom: int, sign: int, beyond: str) -> None:
    inside = Estimate(sign * (T[freedom] - 0.001) * 0.01, 0.01, freedom + 1)
    outside = Estimate(sign * (T[freedom] + 0.001) * 0.01, 0.01, freedom + 1)
    assert judged(inside.mean, 0.01, inside.n) == "noise" and not inside.clear
    assert judged(outside.mean, 0.01, outside.n) == beyond and outside.clear
    low, high = inside.interval or (0, 0)
    assert (high - low, (high + low) / 2) == pytest.approx(
        (2 * T[freedom] * 0.01, inside.mean), abs=1e-5
    )


def test_without_seeds_enough_there_is_no_interval() -> None:
    one, two = Estimate(0.5, None, 1), Estimate(0.5, 1e-6, ENOUGH_SEEDS - 1)
    assert (judged(0.5, None, 1), one.clear, one.interval) == ("one seed", False, None)
    assert (judged(0.5, 1e-6, two.n), two.clear, two.interval) == ("few seeds", False, None)
    assert Estimate(0.5, 1e-6, ENOUGH_SEEDS).clear


@pytest.mark.parametrize(("mean", "verdict"), [(0.0, "noise"), (1e-9, "noise"), (2e-9, "better")])
def test_seeds_that_agree_to_the_last_digit(mean: float, verdict: str) -> None:
    """A difference as small as rounding is none, however well seeds agree on it."""
    assert judged(mean, 0.0, 3) == verdict


def test_a_corrected_p_decides_what_is_said() -> None:
    gap = Estimate(-0.05, 0.01, 3)
    said = [verdict_of(gap, p) for p in (0.049, 1 - CONFIDENCE, None)]
    assert said == ["worse", "noise", "few seeds"]


def test_a_share_of_the_wholes_by_hand() -> None:
    """Parts 0.2, 0.1, 0.3 of wholes 0.4, 0.3, 0.5: half. Left over are 0, −0.05 and 0.05, whose
    error is 0.05 / √3; a share of a mean whole of 0.4."""
    found = ratio([0.2, 0.1, 0.3], [0.4, 0.3, 0.5])
    assert found is not None
    assert found.mean == pytest.approx(0.5)
    assert found.se == pytest.approx(0.05 / math.sqrt(3) / 0.4)
    assert found.n == 3


def test_a_share_of_nothing_sure_is_none() -> None:
    assert ratio([0.2, 0.1], [0.4, 0.3]) is None  # two seeds
    assert ratio([0.2, 0.1, 0.3], [0.1, -0.1, 0.05]) is None  # a whole within noise
    assert ratio([0.2, 0.1, 0.3], [-0.4, -0.3, -0.5]) is None  # a whole below 0
    assert ratio([], []) is None
    with pytest.raises(ValueError, match=r"zip\(\)"):
        ratio([0.2, 0.1], [0.4, 0.3, 0.5])


def test_the_chance_of_a_difference_by_hand() -> None:
    """With two degrees of freedom, P(|T| > t) = 1 − t / √(t² + 2)."""
    t = 3.0
    for mean in (0.03, -0.03):
        assert difference_p(Estimate(mean, 0.01, 3)) == pytest.approx(1 - t / math.sqrt(t * t + 2))
    # At the table's points it is 5 %.
    for freedom, point in T.items():
        found = difference_p(Estimate(point * 0.01, 0.01, freedom + 1))
        assert found == pytest.approx(0.05, abs=1e-4)


def test_differences_that_are_all_alike_leave_no_doubt() -> None:
    assert difference_p(Estimate(0.1, 0.0, 3)) == 0.0
    assert difference_p(Estimate(-0.1, 1e-13, 3)) == 0.0
    assert difference_p(Estimate(1e-9, 0.0, 3)) == 1.0
    assert difference_p(Estimate(0.0, 0.0, 3)) == 1.0
    # Beside an error that is more than rounding, the test is the usual one.
    assert 0 < (difference_p(Estimate(1e-11, 1e-12, 3)) or 0) < 0.05


def test_with_too_few_seeds_nothing_is_said_of_a_difference() -> None:
    assert difference_p(Estimate(0.1, None, 1)) is None
    assert difference_p(Estimate(0.1, 0.01, ENOUGH_SEEDS - 1)) is None
    assert difference_p(Estimate(0.1, 0.01, ENOUGH_SEEDS)) is not None
    assert difference_p(Estimate(0.1, None, 8)) is None


def test_a_chance_is_said_with_three_digits() -> None:
    assert [in_words(p) for p in (0.00099, 0.001, 0.0449)] == ["<0.001", "0.001", "0.045"]


def test_holm_by_hand() -> None:
    """Sorted: 0.01·4, 0.02·3, 0.03·2, 0.04·1, each at least the one before and at most 1."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.8, 0.9, 0.01]) == [1.0, 1.0, pytest.approx(0.03)]
    assert holm([]) == []


def test_the_bootstrap_is_that_of_every_resample() -> None:
    """Of five domains there are 5^5 resamples, all equally likely; the interval has the expanded
    percentiles of their means, up to the noise of those that were drawn."""
    gains = [0.05, -0.01, 0.02, 0.08, 0.03]
    means = np.array([np.mean(one) for one in product(gains, repeat=5)])
    tail = norm.cdf(-math.sqrt(5 / 4) * student.ppf(0.975, 4))
    expected = np.quantile(means, [tail, 1 - tail])
    found = bootstrap([gains])
    assert found == bootstrap([gains]) == pytest.approx(tuple(expected), abs=2e-3)
    plain = np.quantile(means, [0.025, 0.975])
    assert found[0] < plain[0] < np.mean(gains) < plain[1] < found[1]


def test_the_bootstrap_resamples_domains_within_data_sets_that_count_equally() -> None:
    """Gains that are equal within each data set leave no doubt, however many domains each has."""
    assert bootstrap([[0.1] * 5]) == pytest.approx((0.1, 0.1))
    assert bootstrap([[0.1] * 3, [0.3] * 20]) == pytest.approx((0.2, 0.2))
    assert bootstrap([[0.1] * (ENOUGH_DOMAINS - 1)]) is None
    assert bootstrap([[0.1] * 3, [0.2] * 2]) is None and bootstrap([]) is None


def test_the_bootstrap_of_many_domains_is_nearly_students() -> None:
    gains = np.random.default_rng(0).normal(0.02, 0.05, 200)
    reach = student.ppf(0.975, 199) * gains.std(ddof=1) / math.sqrt(200)
    found = bootstrap([gains.tolist()])
    assert found == pytest.approx((gains.mean() - reach, gains.mean() + reach), abs=6e-4)
