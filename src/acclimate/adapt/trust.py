"""How far to trust an adaptation, from its unlabelled images alone."""

import math
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch

from acclimate.core.text import count
from acclimate.learn.embeddings import DomainState, DomainTable
from acclimate.records.doubt import Forecast

USUAL = 0.95  # of domains like those in training, the share that should pass without a warning


@dataclass(frozen=True)
class Reach:
    """Leave each training domain out in turn, and see how far it lies from its nearest other.

    A new domain of their kind is as likely to fall on any rank among those N distances, so beyond
    the k-th smallest fall (N + 1 − k) of N + 1 (split conformal prediction). `distance` is the one
    of rank k = ⌈0.95 (N + 1)⌉, or the largest where there are too few domains for that; `beyond`
    is the share of such domains that lie farther.
    """

    distance: float
    beyond: float

    @classmethod
    def of(cls, nearest: np.ndarray) -> "Reach":
        """`nearest` [N]: of each training domain, the distance to its nearest other."""
        count = len(nearest)
        # Rounded first: ranks are whole, and a product in floating point may be a hair above one.
        rank = min(ceil(round(USUAL * (count + 1), 9)), count)
        return cls(float(np.sort(nearest)[rank - 1]), (count + 1 - rank) / (count + 1))

    def warning(self) -> str:
        return (
            f"this domain lies farther from its nearest training domain than "
            f"{100 * (1 - self.beyond):.0f} % of domains like those would: the model extrapolates"
        )


FEW_IMAGES = 20


@dataclass(frozen=True)
class Trust:
    """What is known of an adaptation without a single label.

    Distances are root mean squares per dimension: with a standardised Φ, 1 is the training domains'
    typical distance from their centre. They are None without an embedding, and what rehearsal tells
    is None without a rehearsal.
    """

    n: int
    warnings: tuple[str, ...]
    expected_accuracy: Forecast | None = None
    explained_by_labels: float | None = None  # of how predictions change here, by label shift
    radius95: float | None = None  # Theorem 1
    expected_error: float | None = None  # σ/√n; one image tells nothing
    nearest_domain: str | None = None
    nearest_distance: float | None = None
    typical_distance: float | None = None  # how far a domain like those may lie: see `Reach`
    warned_share: float | None = None  # of domains like those, how many lie farther

    @property
    def beyond_chance(self) -> float | None:
        """How far off the domain lies, as far as μ of a few images tells: their scatter, σ²/n, is
        in the square of the distance on average, and is taken off."""
        if self.nearest_distance is None:
            return None
        return math.sqrt(max(self.nearest_distance**2 - (self.expected_error or 0.0) ** 2, 0.0))


def judge(state: DomainState, table: DomainTable | None) -> Trust:
    """`table` is of the training domains, None where the state has no μ."""
    warnings = []
    if state.count < FEW_IMAGES:
        few = count(state.count, "image")
        warnings.append(f"only {few}: with {FEW_IMAGES} or more the adaptation is steadier")
    if table is None:
        return Trust(state.count, tuple(warnings))
    unit = len(state.total) ** 0.5
    means = table.means
    distances = (means - state.mean).norm(dim=1) / unit
    nearest = int(distances.argmin())
    between = torch.cdist(means, means) / unit
    reach = Reach.of(between.fill_diagonal_(float("inf")).min(dim=1).values.numpy())
    radius, variance = state.radius(), state.sampling_variance
    trust = Trust(
        n=state.count,
        warnings=(),
        radius95=None if radius is None else radius / unit,
        expected_error=None if variance is None else (variance / state.count) ** 0.5 / unit,
        nearest_domain=table.names[nearest],
        nearest_distance=float(distances[nearest]),
        typical_distance=reach.distance,
        warned_share=reach.beyond,
    )
    if (trust.beyond_chance or 0.0) > reach.distance:
        warnings.append(reach.warning())
    return replace(trust, warnings=tuple(warnings))
