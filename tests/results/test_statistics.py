"""How sure a number is: by hand, with points of Student's t from a printed table."""

import math

import pytest

from acclimate.results.statistics import (
    ENOUGH_SEEDS,
    Estimate,
    difference_p,
    holm,
    in_words,
    paired_p,
    ratio,
)

# Two-sided 5 % points of Student's t, as tables print them, by degrees of freedom.
T = {2: 4.3027, 3: 3.1824, 9: 2.2622}


@pytest.mark.parametrize("freedom", T)
@pytest.mark.parametrize(("sign", "beyond"), [(1, "better"), (-1, "worse")])
def test_the_interval_over_seeds_is_students(freedom: int, sign: int, beyond: str) -> None:
    inside = Estimate(sign * (T[freedom] - 0.001) * 0.01, 0.01, freedom + 1)
    outside = Estimate(sign * (T[freedom] + 0.001) * 0.01, 0.01, freedom + 1)
    assert (inside.verdict, inside.clear) == ("noise", False)
    assert (outside.verdict, outside.clear) == (beyond, True)


def test_without_seeds_enough_there_is_no_interval() -> None:
    one, two = Estimate(0.5, None, 1), Estimate(0.5, 1e-6, ENOUGH_SEEDS - 1)
    assert (one.verdict, one.clear) == ("one seed", False)
    assert (two.verdict, two.clear) == ("few seeds", False)
    assert Estimate(0.5, 1e-6, ENOUGH_SEEDS).clear


@pytest.mark.parametrize(("mean", "verdict"), [(0.0, "noise"), (1e-9, "noise"), (2e-9, "better")])
def test_seeds_that_agree_to_the_last_digit(mean: float, verdict: str) -> None:
    """A difference as small as rounding is none, however well seeds agree on it."""
    assert Estimate(mean, 0.0, 3).verdict == verdict


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


def test_pairs_whose_gaps_differ_by_rounding_alone_have_no_chance() -> None:
    """Nine gaps of a standard deviation of 0.8e-12, and of 2e-12, which is no more rounding."""

    def p(spread: float) -> float | None:
        # Four above and four below by as much, one at their mean: 8 squares, 8 degrees of freedom.
        return paired_p([(0.1 + sign * spread, 0.1) for sign in (1, -1) * 4] + [(0.1, 0.1)])

    assert p(0.8e-12) is None
    assert p(2e-12) == pytest.approx(1, abs=1e-3)


def test_with_too_few_seeds_nothing_is_said_of_a_difference() -> None:
    assert difference_p(Estimate(0.1, None, 1)) is None
    assert difference_p(Estimate(0.1, 0.01, ENOUGH_SEEDS - 1)) is None
    assert difference_p(Estimate(0.1, 0.01, ENOUGH_SEEDS)) is not None
    assert difference_p(Estimate(0.1, None, 8)) is None


def test_a_chance_is_said_with_three_digits() -> None:
    assert [in_words(p) for p in (0.00099, 0.001, 0.0449)] == ["<0.001", "0.001", "0.045"]


def test_a_corrected_chance_is_no_more_than_certain() -> None:
    assert holm([0.8, 0.9, 0.01]) == [1.0, 1.0, pytest.approx(0.03)]
