"""A second opinion on label shift: do the frequencies found explain how predictions changed?

If only label frequencies differ at a new domain, images of a class are predicted there as they
always were: the mean prediction is the mixture of what each class gets, which the confusion matrix
tells, by the domain's frequencies. The black-box estimate solves that for the frequencies (Lipton
et al. 2018); EM finds them another way, from the images one by one. Where the two disagree beyond
sampling error, the shift is not a label shift.
"""

import torch
from torch import Tensor

from acclimate.adapt.methods.prior import em_prior

STRENGTH = 30.0  # of a Dirichlet prior, so that a handful of images does not run away
NOTHING = 2.0  # times what chance alone would change: below, there is nothing to explain


def explained_share(
    posteriors: Tensor, prior: Tensor, target: Tensor, confusion: Tensor
) -> float | None:
    """How much of the change in the mean prediction `target` takes away, beyond sampling error: 1
    where it explains all of it, 0 (never less) where it explains nothing.

    posteriors [n, C] of new images; prior [C] of training and `target` [C], found for these images;
    confusion [C predicted, C true] of new images of the training domains, in any scale. None where
    nothing has changed, or for one image.
    """
    if len(posteriors) < 2:
        return None
    rows, given = posteriors.double(), _given_class(confusion)
    found, chance = rows.mean(0), float(rows.var(0).sum()) / len(rows)
    changed = float((found - given @ prior.double()).square().sum())
    if changed <= NOTHING * chance:
        return None
    left = float((found - given @ target.double()).square().sum())
    return max(1 - max(left - chance, 0.0) / (changed - chance), 0.0)


def explained_by_em(posteriors: Tensor, prior: Tensor, confusion: Tensor) -> float | None:
    """The same for the likeliest frequencies, whatever else is expected of them: so a domain can be
    compared with the domains that were rehearsed."""
    target, _ = em_prior(posteriors, prior, strength=STRENGTH, tolerance=1e-4, most=200)
    return explained_share(posteriors, prior, target, confusion)


def _given_class(confusion: Tensor) -> Tensor:
    """What images of each class are predicted as, on average: columns [C] that sum to 1. A class
    without images counts as always recognised."""
    counts = confusion.double()
    totals = counts.sum(0)
    sure = torch.eye(len(counts), dtype=torch.float64)
    return torch.where(totals > 0, counts / totals.clamp(min=1e-12), sure)
