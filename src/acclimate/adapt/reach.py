"""How far from the training domains a new one may lie before a model is said to extrapolate."""

from dataclasses import dataclass
from math import ceil

import numpy as np

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
