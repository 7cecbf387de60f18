"""Empirical risk minimisation: the mean cross-entropy over the training domains' images."""

import torch.nn.functional as F

from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses


class ERM(Algorithm):
    def forward(self, batch: Batch, step: int) -> Losses:
        return Losses(risk=F.cross_entropy(self.predict(batch).logits, batch.y))
