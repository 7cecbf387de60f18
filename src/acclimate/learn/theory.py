"""Theorem 1 of the paper as a pure function: how well a mean is known from n samples."""

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
