"""MMD (Li et al. 2018), as in DomainBed: the same kernel mean of features in every domain."""

from dataclasses import dataclass

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import mmd2, widened


@dataclass(frozen=True, kw_only=True)
class MMDConfig:
    penalty: float = setting(
        1.0, "weight of the squared discrepancy (γ)", at_least=0, search=log10(-1, 1)
    )


class MMD(Algorithm):
    Config = MMDConfig
    least_domains = 2
    least_rows = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        hidden = self.world.gather(widened(output.hidden))
        gap = mmd2(hidden, self.world.whole(batch.domain))
        return Losses(
            risk=F.cross_entropy(output.logits, batch.y), penalty=self.config.penalty * gap
        )
