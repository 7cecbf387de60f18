"""CORAL (Sun and Saenko 2016), as in DomainBed: the same mean and covariance of hidden features in
every domain."""

from dataclasses import dataclass

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import coral, widened


@dataclass(frozen=True, kw_only=True)
class CoralConfig:
    penalty: float = setting(
        1.0, "weight of the moments' distance (γ)", at_least=0, search=log10(-1, 1)
    )


class Coral(Algorithm):
    Config = CoralConfig
    least_domains = 2
    least_rows = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        hidden = self.world.gather(widened(output.hidden))
        gap = coral(hidden, self.world.whole(batch.domain))
        return Losses(
            risk=F.cross_entropy(output.logits, batch.y), penalty=self.config.penalty * gap
        )
