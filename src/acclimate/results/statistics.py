"""How surely one method differs from another, and what many comparisons do to that."""

from collections.abc import Sequence
from statistics import stdev


def paired_p(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Two-sided paired t-test; `None` for fewer than two pairs or for equal differences."""
    if len(pairs) < 2 or stdev(a - b for a, b in pairs) < 1e-12:
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel(*zip(*pairs, strict=True)).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the chance of any false claim among all stays below p."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, largest = [0.0] * len(ps), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[i]))
        corrected[i] = largest
    return corrected
