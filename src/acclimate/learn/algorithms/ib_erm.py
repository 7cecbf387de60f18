"""IB-ERM (Ahuja et al. 2021): the variance of hidden features is penalised, a bottleneck."""

from dataclasses import dataclass

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import variance_within


@dataclass(frozen=True, kw_only=True)
class IBERMConfig:
    penalty: float = setting(
        1e2, "weight of the features' variance once it counts", at_least=0, search=log10(-1, 5)
    )
    anneal: int = setting(
        500, "steps before that, during which its weight is 0", at_least=0, search=log10(0, 4)
    )


class IBERM(Algorithm):
    """The risk and λ times the variance of a hidden feature within a domain, mean over both."""

    Config = IBERMConfig
    least_rows = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        risk = F.cross_entropy(output.logits, batch.y)
        if step < self.config.anneal:
            return Losses(risk=risk)
        hidden, domain = self.world.gather(output.hidden), self.world.whole(batch.domain)
        return Losses(risk=risk, penalty=self.config.penalty * variance_within(hidden, domain))
