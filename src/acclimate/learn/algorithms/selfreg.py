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

    Compared are logits and hidden features behind a projection, with those of one other row and
    with a mixture of two, which are weighted as they are mixed. The sum is scaled by the risk, by 1
    at most. A domain plays no part.
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
            weight * _differences(values, one, two, ratio)
            for weight, values in ((1, logits), (FEATURES, self.projection(hidden)))
        )
        scale = self.world.mean(risk.detach()).clamp_max(1)
        return Losses(risk=risk, penalty=scale * gap)


def _projection(features: int) -> nn.Module:
    """Three layers with batch norm, which makes biases superfluous; differences have no use for
    the last one either."""
    width = features if features >= WIDE else 2 * features
    last = nn.BatchNorm1d(features)
    last.bias.requires_grad_(False)
    return nn.Sequential(
        *(nn.Linear(features, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Linear(width, features, bias=False), last),
    )


def _same_class(y: Tensor, noise: Tensor) -> Tensor:
    """A permutation of the rows within their classes, by noise in 0..1: [b], [b] -> [b]"""
    by_class = torch.argsort(y, stable=True)
    shuffled = torch.argsort(y + sent(noise, y.device))
    return torch.empty_like(by_class).index_copy(0, by_class, shuffled)


def _differences(values: Tensor, one: Tensor, two: Tensor, ratio: float) -> Tensor:
    """Mean squared differences from row `one`, and from its mixture with `two`, at `ratio`:
    [b, d], [b], [b] -> []"""
    values = widened(values)
    mixed = ratio * values[one] + (1 - ratio) * values[two]
    differences: Tensor = ratio * F.mse_loss(values, values[one])
    return differences + (1 - ratio) * F.mse_loss(values, mixed)
