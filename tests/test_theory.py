"""Theorem 1: by hand, at its edge of validity, and against chance."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.theory import images_needed, mean_radius


def test_radius_by_hand() -> None:
    # 8 · 2 · (1 + 1/4) / 80 = 1/4
    assert mean_radius(80, 2.0, 3.0, delta=math.exp(-1)) == pytest.approx(0.5, rel=1e-15)
    # The default delta is 5 %, log 20 = 2.9957322736: 8 · 0.5 · 3.2457322736 / 1000
    radius = mean_radius(1000, 0.5, 1.0)
    assert radius is not None
    assert radius**2 == pytest.approx(0.0129829290944, rel=1e-10)


def test_radius_shrinks_with_the_root_of_n() -> None:
    one, four = mean_radius(1000, 0.5, 1.0), mean_radius(4000, 0.5, 1.0)
    assert one is not None
    assert four == pytest.approx(one / 2)


def test_the_theorem_is_silent_where_it_does_not_hold() -> None:
    # The radius of the first case, 1/2, must stay below σ²/B = 2/B.
    delta = math.exp(-1)
    assert mean_radius(80, 2.0, 3.99, delta=delta) is not None
    assert mean_radius(80, 2.0, 4.01, delta=delta) is None
    assert mean_radius(1, 1.0, 1.0) is None


def test_no_spread_no_radius() -> None:
    assert mean_radius(1, 0.0, 0.0) == 0.0
    assert images_needed(1e-3, 0.0, 0.0) == 1


@pytest.mark.parametrize(("n", "delta"), [(0, 0.05), (-1, 0.05), (5, 0.0), (5, 1.0), (5, -1.0)])
def test_arguments_that_mean_nothing(n: int, delta: float) -> None:
    with pytest.raises(ValueError, match=f"need n ≥ 1 and 0 < delta < 1, got n={n}, delta={delta}"):
        mean_radius(n, 1.0, 1.0, delta=delta)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0])
def test_images_needed_wants_a_probability(delta: float) -> None:
    with pytest.raises(ValueError, match=f"need 0 < delta < 1, got {delta}"):
        images_needed(0.1, 1.0, 1.0, delta=delta)


@pytest.mark.parametrize("radius", [0.0, -1.0])
def test_images_needed_wants_a_radius(radius: float) -> None:
    with pytest.raises(ValueError, match=f"need a radius above 0, got {radius}"):
        images_needed(radius, 1.0, 1.0)


def test_images_needed_by_hand() -> None:
    delta = math.exp(-1)
    # 8 · 2 · 5/4 = 20: 20 / n ≤ 1/4 from n = 80 on, and validity, 20 / n < 4/9, from n = 46 on.
    assert images_needed(0.5 + 1e-9, 2.0, 3.0, delta=delta) == 80
    # A generous radius: validity decides.
    assert images_needed(100.0, 2.0, 3.0, delta=delta) == 46


@settings(deadline=None, max_examples=300)
@given(
    radius=st.floats(1e-3, 1e2),
    bound=st.floats(1e-2, 1e2),
    share=st.floats(1e-3, 1.0),
    delta=st.sampled_from([0.01, 0.05, 0.1, 0.5, math.exp(-1)]),
)
def test_images_needed_is_the_least(
    radius: float, bound: float, share: float, delta: float
) -> None:
    variance = share * bound**2  # σ² is at most B²

    def works(n: int) -> bool:
        found = mean_radius(n, variance, bound, delta=delta)
        return found is not None and found <= radius

    n = images_needed(radius, variance, bound, delta=delta)
    assert works(n)
    assert n == 1 or not works(n - 1)


@pytest.mark.parametrize("n", [3, 10, 49, 1000, 99_991])
def test_images_needed_turns_the_radius_round(n: int) -> None:
    # σ² = B², so the theorem holds from 26 images on.
    radius = math.sqrt(8 * (math.log(20) + 0.25) / n)
    assert images_needed(radius, 1.0, 1.0) == max(n, 26)


def on_sphere(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    points = rng.normal(size=shape)
    scaled: np.ndarray = points / np.linalg.norm(points, axis=-1, keepdims=True)
    return scaled


def in_cube(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-1, 1, shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each coordinate 0.8 with probability 1/5, else −0.2."""
    return np.where(rng.random(shape) < 0.2, 0.8, -0.2)


@pytest.mark.parametrize("dim", [1, 2, 10, 40])
@pytest.mark.parametrize(
    ("draw", "variance", "bound"),
    [
        (on_sphere, lambda d: 1.0, lambda d: 1.0),
        (in_cube, lambda d: d / 3, lambda d: math.sqrt(d)),
        (skewed, lambda d: 0.16 * d, lambda d: 0.8 * math.sqrt(d)),
    ],
)
def test_the_theorem_holds(draw, variance, bound, dim) -> None:  # type: ignore[no-untyped-def]
    """All have mean 0, and the given σ² and B are exact. 2,000 trials for each delta."""
    rng = np.random.default_rng(dim)
    for delta in (0.5, 0.05):
        n = images_needed(1e9, variance(dim), bound(dim), delta=delta)
        radius = mean_radius(n, variance(dim), bound(dim), delta=delta)
        assert radius is not None
        errors = np.linalg.norm(draw(rng, (2000, n, dim)).mean(1), axis=1)
        assert np.mean(errors < radius) >= 1 - delta
        # Not by being absurdly wide: the typical error is a tenth of the radius and more.
        assert np.median(errors) > radius / 12
