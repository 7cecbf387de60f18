"""How sure a number is: means with errors, Student's t, Holm's correction.

Every mean ± error and every "beyond noise" of a table, a sentence or a figure comes from here.
SciPy takes a quarter of a second to import, which only a verdict or a test pays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from acclimate.core.grid import Cell
from acclimate.core.randomness import stream
from acclimate.core.text import DASH
from acclimate.records.metrics import METRICS, TOP_1, Metric
from acclimate.records.rehearsal import quantile

CONFIDENCE = 0.95
ENOUGH_SEEDS = 3  # two may agree by chance, and their interval is then next to nothing
ENOUGH_DOMAINS = 5  # of four, no resample reaches far enough for `CONFIDENCE`
RESAMPLES = 10_000
_ROUNDING = 1e-9  # a difference of shares that is none


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `se` is sample standard deviation / √n, `None` for one seed."""

    mean: float
    se: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Estimate | None":
        """The estimate from the known values; `None` without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        se = stdev(known) / len(known) ** 0.5 if len(known) > 1 else None
        return cls(fmean(known), se, len(known))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's interval over seeds; `None` where they are too few to tell."""
        if self.se is None or self.n < ENOUGH_SEEDS:
            return None
        reach = quantile(self.n, 0.5 + CONFIDENCE / 2) * self.se
        return self.mean - reach, self.mean + reach

    @property
    def clear(self) -> bool:
        """Whether a difference is beyond noise by its own test, uncorrected."""
        return verdict_of(self, difference_p(self)) in ("better", "worse")


def verdict_of(gap: Estimate, p: float | None) -> str:
    """What may be said of a difference whose p is this: "better" or "worse" where p is below 1 -
    `CONFIDENCE`, else "noise"; "one seed" or "few seeds" where seeds are too few to tell."""
    if gap.se is None:
        return "one seed"
    if gap.n < ENOUGH_SEEDS or p is None:
        return "few seeds"
    if p >= 1 - CONFIDENCE:
        return "noise"
    return "better" if gap.mean > 0 else "worse"


def bootstrap(gains: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The interval of the mean over data sets of their domains' mean gains, from resampled domains;
    `None` for fewer domains than can carry it.

    Percentiles of few domains lie too close. They are moved apart as Student's quantile is from the
    normal one (the expanded percentile interval: Hesterberg, 2015).
    """
    domains = sum(map(len, gains))
    free = domains - len(gains)
    if free < ENOUGH_DOMAINS - 1:
        return None
    from scipy.special import ndtr

    rng, means = stream(0, "bootstrap over domains"), np.zeros(RESAMPLES)
    for own in map(np.asarray, gains):
        means += own[rng.integers(len(own), size=(RESAMPLES, len(own)))].mean(1) / len(gains)
    tail = ndtr(-((domains / free) ** 0.5) * quantile(free + 1, 0.5 + CONFIDENCE / 2))
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Estimate | None:
    """What share of the wholes the parts are, seed by seed; `None` where the wholes are not above 0
    beyond noise, as a share of nothing would be anything.

    The mean of the parts over that of the wholes, with the usual error of a ratio estimator: a seed
    with a small whole does not weigh more, as it would in a mean of ratios.
    """
    whole = Estimate.of(wholes)
    if whole is None or verdict_of(whole, difference_p(whole)) != "better":
        return None
    share = fmean(parts) / whole.mean
    left = Estimate.of(a - share * b for a, b in zip(parts, wholes, strict=True))
    assert left is not None and left.se is not None  # there are seeds enough for a verdict
    return Estimate(share, left.se / whole.mean, whole.n)


def difference_p(gap: Estimate) -> float | None:
    """Two-sided t-test that a mean difference is 0; `None` where seeds are too few to say.

    Differences that are all alike leave no doubt: 0, or 1 where they are none.
    """
    if gap.se is None or gap.n < ENOUGH_SEEDS:
        return None
    if gap.se < 1e-12:
        return 1.0 if abs(gap.mean) <= _ROUNDING else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(gap.n - 1, -abs(gap.mean / gap.se)))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the chance of any false claim among all stays below p."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, largest = [0.0] * len(ps), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[i]))
        corrected[i] = largest
    return corrected


def in_percent(value: Estimate | None, metric: Metric = METRICS[TOP_1]) -> str:
    """`61.5 ± 0.4`; without the error for one seed; a dash for none."""
    return DASH if value is None else metric.write(value.mean) + _error(value, metric)


def in_points(value: Estimate | None, metric: Metric = METRICS[TOP_1]) -> str:
    """A difference with its sign: `+5.9 ± 0.4`, `−0.3`."""
    return DASH if value is None else metric.write_gap(value.mean) + _error(value, metric)


def _error(value: Estimate, metric: Metric) -> str:
    return "" if value.se is None else f" ± {metric.write(value.se)}"


def accuracy(
    value: Estimate | None, *, best: bool = False, metric: Metric = METRICS[TOP_1]
) -> Cell:
    """A cell of a table."""
    return Cell(in_percent(value, metric), None if value is None else value.mean, best=best)


def difference(value: Estimate | None, metric: Metric = METRICS[TOP_1]) -> Cell:
    return Cell(in_points(value, metric), None if value is None else value.mean)


def in_words(p: float | None) -> str:
    return DASH if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
