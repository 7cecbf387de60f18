"""The paper's guarantees as pure functions of measured quantities."""

import math


def mean_radius(n: int, variance: float, bound: float, *, delta: float = 0.05) -> float | None:
    """Theorem 1: with probability 1 − delta, ‖mean of n samples − μ‖₂ is at most this.

    `variance` is E‖Φ(x) − μ‖², `bound` the largest ‖Φ(x) − μ‖. The vector Bernstein inequality
    behind it, P(‖mean − μ‖ ≥ ε) ≤ exp(−nε²/(8σ²) + ¼), holds for 0 < ε < σ²/B only; `None` where
    the radius would lie outside, that is, where n is too small for the theorem to say anything.
    """
    if n < 1 or not 0 < delta < 1:
        raise ValueError(f"need n ≥ 1 and 0 < delta < 1, got n={n}, delta={delta}")
    if variance == 0:
        return 0.0
    radius = math.sqrt(8 * variance * (math.log(1 / delta) + 0.25) / n)
    return radius if radius * bound < variance else None


def images_needed(radius: float, variance: float, bound: float, *, delta: float = 0.05) -> int:
    """The fewest images that make Theorem 1's radius at most `radius`, and valid."""
    if radius <= 0:
        raise ValueError(f"need a radius above 0, got {radius}")
    if not 0 < delta < 1:
        raise ValueError(f"need 0 < delta < 1, got {delta}")
    if variance == 0:
        return 1
    constant = 8 * variance * (math.log(1 / delta) + 0.25)
    for_radius = math.ceil(constant / radius**2)
    for_validity = math.floor(constant * bound**2 / variance**2) + 1
    formula = max(for_radius, for_validity, 1)

    def enough(n: int) -> bool:
        found = mean_radius(n, variance, bound, delta=delta)
        return found is not None and found <= radius

    # Rounding can put the formula off by one; `mean_radius` has the last word.
    return next(filter(enough, range(max(formula - 1, 1), formula + 2)), formula)
