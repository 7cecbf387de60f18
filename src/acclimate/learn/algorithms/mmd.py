"""MMD (Li et al. 2018): the same kernel mean of hidden features in every domain."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.algorithms.base import Algorithm
from acclimate.learn.objective import Losses
from acclimate.learn.penalties import mmd2, mmd2_domainbed, widened

KERNELS = {"median": mmd2, "domainbed": mmd2_domainbed}


@dataclass(frozen=True, kw_only=True)
class MMDConfig:
    penalty: float = setting(
        1.0, "weight of the squared discrepancy (γ)", at_least=0, search=log10(-1, 1)
    )
    kernel: Literal["median", "domainbed"] = setting(
        "median",
        "median: widths by the batch's median distance, unbiased; domainbed: fixed, biased",
    )


class MMD(Algorithm):
    Config = MMDConfig
    least_domains = 2
    least_rows = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        hidden, domain = (self.world.gather(r) for r in (widened(output.hidden), batch.domain))
        gap = KERNELS[self.config.kernel](hidden, domain)
        return Losses(
            risk=F.cross_entropy(output.logits, batch.y), penalty=self.config.penalty * gap
        )
