"""What follows from Theorem 1, and Theorem 2, as pure functions of measured quantities."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from acclimate.learn.consistency import mean_radius


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
        known = mean_radius(n, variance, bound, delta=delta)
        return known is not None and known <= radius

    # Rounding can put the formula off by one; `mean_radius` has the last word.
    return next(filter(enough, range(max(formula - 1, 1), formula + 2)), formula)


@dataclass(frozen=True)
class RiskTerms:
    """The two terms of Theorem 2, each up to a constant that the theorem does not give."""

    of_points: float  # (σ² log(N/δ) / n)^(α/2): μ of each domain is known from n points only
    of_domains: float  # √(log(1/δ) / N): the kind of domain is known from N domains only

    def weighted(self, ratio: float) -> float:
        """Their sum when the first term's constant is `ratio` times that of the second."""
        return ratio * self.of_points + self.of_domains


def risk_terms(
    domains: int, points: float, *, variance: float = 1.0, delta: float = 0.05, holder: float = 1.0
) -> RiskTerms:
    """Theorem 2: how far the risk on new domains can lie from that on N domains of n points each.

    For functions of norm at most R, with probability 1 − δ, |L(F) − L̂(F)| is of the order of
    R·((σ² log(N/δ)/n)^(α/2) + √(log(1/δ)/N)). The logarithms are those of the formal theorem; σ²
    (`variance`) is in the informal one and in the proof; α (`holder`) is the kernel's Hölder
    exponent. `points` may be a fraction, so that a budget can be split exactly.
    """
    if domains < 1 or points <= 0:
        raise ValueError(f"need N ≥ 1 and n > 0, got N={domains}, n={points}")
    if variance < 0 or not 0 < delta < 1 or not 0 < holder <= 1:
        raise ValueError(
            f"need σ² ≥ 0, 0 < delta < 1 and 0 < α ≤ 1, got {variance}, {delta} and {holder}"
        )
    return RiskTerms(
        of_points=(variance * math.log(domains / delta) / points) ** (holder / 2),
        of_domains=math.sqrt(math.log(1 / delta) / domains),
    )


def best_split(
    total: int,
    *,
    ratio: float = 1.0,
    variance: float = 1.0,
    delta: float = 0.05,
    holder: float = 1.0,
) -> int:
    """The number of domains N that makes Theorem 2's sum smallest when N·n is `total`.

    With more domains of fewer points the first term grows and the second shrinks; `ratio` is how
    much larger the unknown constant of the first is. Up to delta = 1/e the sum falls to its
    smallest value and then rises, whatever the ratio (its slope changes sign once), so that the
    lowest N can be found by halving; a larger delta is refused.
    """
    if total < 1 or ratio < 0:
        raise ValueError(f"need a budget of 1 or more and a ratio ≥ 0, got {total} and {ratio}")
    if not 0 < delta <= math.exp(-1):
        raise ValueError(f"need 0 < delta ≤ 1/e, got {delta}")

    def at(domains: int) -> float:
        points = total / domains
        terms = risk_terms(domains, points, variance=variance, delta=delta, holder=holder)
        return terms.weighted(ratio)

    return 1 + bisect_left(range(1, total), True, key=lambda n: at(n + 1) >= at(n))
