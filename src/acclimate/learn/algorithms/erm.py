"""Empirical risk minimisation: the mean cross-entropy over the training domains' images."""

from dataclasses import dataclass

import torch.nn.functional as F

from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses


@dataclass(frozen=True, kw_only=True)
class ERMConfig:
    """ERM has no settings of its own."""


class ERM(Algorithm):
    Config = ERMConfig

    def forward(self, batch: Batch, step: int) -> Losses:
        return Losses(risk=F.cross_entropy(self.predict(batch).logits, batch.y))
