"""A discriminator: which domain do these features come from?"""

from itertools import pairwise
from typing import final

from torch import Tensor, nn


@final
class Discriminator(nn.Module):
    """An MLP of `depth` layers from features [b, features] to scores of domains [b, domains].

    Given `classes`, it also knows the class: an embedding of it is added to the features.
    """

    def __init__(
        self,
        features: int,
        domains: int,
        *,
        classes: int | None = None,
        width: int = 256,
        depth: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = None if classes is None else nn.Embedding(classes, features)
        sizes = [features, *[width] * (depth - 1)]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.Dropout(dropout), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], domains))

    def forward(self, features: Tensor, y: Tensor) -> Tensor:
        if self.embedding is not None:
            features = features + self.embedding(y)
        scores: Tensor = self.layers(features)
        return scores
