"""Spectral decoupling (Pezeshki et al. 2021): large logits are penalised."""

from dataclasses import dataclass

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import widened


@dataclass(frozen=True, kw_only=True)
class SDConfig:
    penalty: float = setting(
        0.1, "weight of the mean squared logit", at_least=0, search=log10(-5, -1)
    )


class SD(Algorithm):
    """The risk and λ times the mean squared logit.

    The network's own logits count, before prior-aware training shifts them.
    """

    Config = SDConfig

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predictor(batch.x, batch.mu)
        return Losses(
            risk=F.cross_entropy(self.adjusted(output, batch).logits, batch.y),
            penalty=self.config.penalty * widened(output.logits).square().mean(),
        )
