"""LAME: images of a batch that look alike are predicted alike (Boudiaf et al. 2022).

It changes predictions and no weights, so that nothing is left to save: a control, which is scored.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from acclimate.adapt.methods.base import Context, Method
from acclimate.core.errors import ConfigError
from acclimate.learn.images import Images
from acclimate.learn.models import Head, Output

LAME = "lame"
NEIGHBOURS, BATCH = 5, 64  # as published
ITERATIONS, CHANGE = 100, 1e-8  # of the objective, as a share of it


def affinity(hidden: Tensor, neighbours: int) -> Tensor:
    """W [n, n]: 1 where the column is among the row's nearest `neighbours` by angle: [n, h]"""
    rows = normalize(hidden.double(), dim=1)
    distance = torch.cdist(rows, rows).fill_diagonal_(float("inf"))
    nearest = distance.topk(min(neighbours, len(rows) - 1), largest=False).indices
    return torch.zeros_like(distance).scatter_(1, nearest, 1.0)


def smooth(logits: Tensor, weights: Tensor) -> Tensor:
    """Log-probabilities [n, C] float64 of the assignments Z that minimise Σ KL(z_i, p_i) −
    Σ w_ij z_i·z_j, by the bound's fixed point z_i ∝ p_i exp(Σ_j w_ij z_j). [n, C], [n, n]"""
    log_p = logits.double().log_softmax(1)
    z, before = log_p, float("nan")
    for _ in range(ITERATIONS):
        pull = weights @ z.exp()
        z = (log_p + pull).log_softmax(1)
        energy = float((z.exp() * (z - log_p - pull)).sum())
        if abs(energy - before) <= CHANGE * abs(before):
            break
        before = energy
    return z


@final
class SmoothedHead(Head):
    """A head whose predictions depend on the batch that they are made in."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head, self.last = head, head.last

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        logits, hidden = self.head(features, mu)
        parts = zip(logits.split(BATCH), hidden.split(BATCH), strict=True)
        smoothed = [smooth(some, affinity(rows, NEIGHBOURS)) for some, rows in parts]
        return Output(torch.cat(smoothed), hidden)


@final
class Lame(Method):
    changes = "head"
    control = True

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        raise ConfigError(
            "method 'lame' changes the predictions of each batch and leaves no classifier to keep "
            "or export; `acclimate evaluate RUN DATA --method lame` scores it"
        )
