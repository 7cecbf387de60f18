"""Invariant risk minimisation (Arjovsky et al. 2019), in its practical form IRMv1."""

from dataclasses import dataclass

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import irm, widened


@dataclass(frozen=True, kw_only=True)
class IRMConfig:
    penalty: float = setting(
        1e2, "weight of the invariance penalty once it counts", at_least=0, search=log10(-1, 5)
    )
    anneal: int = setting(
        500, "steps before that, during which its weight is 1", at_least=0, search=log10(0, 4)
    )


class IRM(Algorithm):
    """The risk and the squared gradient by a scale of the logits, domain by domain.

    As in DomainBed the square is unbiased and can fall below 0: without end, where the same few
    rows come again and again.

    The optimiser is not reset when the penalty comes to count. Adam's running squares are then
    still those of smaller gradients, so for some hundred steps its steps are longer than usual, 7
    times at most; `anneal` = 0 avoids it.
    """

    Config = IRMConfig
    least_domains = 2
    least_rows = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        logits = self.predict(batch).logits
        weight = self.config.penalty if step >= self.config.anneal else 1.0
        gap = irm(
            self.world.gather(widened(logits)),
            self.world.gather(batch.y),
            self.world.whole(batch.domain),
        )
        return Losses(risk=F.cross_entropy(logits, batch.y), penalty=weight * gap)
