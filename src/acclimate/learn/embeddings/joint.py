"""Φ that an algorithm learns with the predictor, instead of by a loss of its own."""

from typing import final

from torch import Tensor

from acclimate.data.batches import Batch
from acclimate.learn.objective import Embedding, Losses


@final
class JointEmbedding(Embedding):
    """Φ = a network on the features of the predictor's backbone, as learned: neither its dimensions
    nor anything else but `points` is taken from the settings of Step A."""

    def dimensions(self) -> int:
        return self.backbone.features

    def raw(self, x: Tensor) -> Tensor:
        features: Tensor = self.backbone(x)
        return features

    def forward(self, batch: Batch, step: int) -> Losses:
        raise NotImplementedError("an algorithm learns it with the predictor")
