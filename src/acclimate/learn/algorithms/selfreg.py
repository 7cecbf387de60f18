"""SelfReg (Kim et al. 2021): rows of a class get alike logits and features."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.core.randomness import derive, own_weights, stream
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import widened

FEATURES = 0.3  # weight of the features' differences beside the logits'
WIDE = 2048  # features from which the projection's layers are no wider than those


class SelfReg(Algorithm):
    """The risk and the mean squared difference between rows and others of their class.

    Logits are compared with logits, hidden features with what a projection makes of the other
    row's: with one other row, and with a mixture of two; the two distances are weighted as that is
    mixed. The sum is scaled by the risk, by 1 at most. A domain plays no part.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with own_weights(derive(self.seed, "projection")):
            self.projection = _projection(self.predictor.last.in_features)

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predictor(batch.x, batch.mu)
        risk = F.cross_entropy(self.adjusted(output, batch).logits, batch.y)
        y, logits, hidden = (
            self.world.gather(part) for part in (batch.y, output.logits, output.hidden)
        )
        rng = stream(self.seed, "selfreg", step)
        one, two = (_same_class(y, torch.from_numpy(rng.random(len(y)))) for _ in range(2))
        ratio = float(rng.beta(0.5, 0.5))
        gap = sum(
            weight * _distance(values, others, one, two, ratio)
            for weight, values, others in (
                (1, logits, logits),
                (FEATURES, hidden, self.projection(hidden)),
            )
        )
        scale = self.world.mean(risk.detach()).clamp_max(1)
        return Losses(risk=risk, penalty=scale * gap)


def _projection(features: int) -> nn.Module:
    """Three layers with batch norm, which makes their biases superfluous."""
    width = features if features >= WIDE else 2 * features
    return nn.Sequential(
        *(nn.Linear(features, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Linear(width, features, bias=False), nn.BatchNorm1d(features)),
    )


def _same_class(y: Tensor, noise: Tensor) -> Tensor:
    """A permutation of the rows within their classes, by noise in 0..1: [b], [b] -> [b]"""
    by_class = torch.argsort(y, stable=True)
    shuffled = torch.argsort(y + sent(noise, y.device))
    return torch.empty_like(by_class).index_copy(0, by_class, shuffled)


def _distance(values: Tensor, others: Tensor, one: Tensor, two: Tensor, ratio: float) -> Tensor:
    """Mean squared distances of `values` from `others` in row `one`, and from their mixture with
    those in row `two`, at `ratio`: [b, d], [b, d], [b], [b] -> []"""
    values, others = widened(values), widened(others)
    mixed = ratio * others[one] + (1 - ratio) * others[two]
    to_one: Tensor = F.mse_loss(values, others[one])
    return ratio * to_one + (1 - ratio) * F.mse_loss(values, mixed)
