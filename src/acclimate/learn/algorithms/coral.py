"""CORAL (Sun and Saenko 2016): the same covariance of hidden features in every domain."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.algorithms.base import Algorithm
from acclimate.learn.objective import Losses
from acclimate.learn.penalties import coral, coral_domainbed, widened

FORMS = {"paper": coral, "domainbed": coral_domainbed}


@dataclass(frozen=True, kw_only=True)
class CoralConfig:
    penalty: float = setting(
        1.0, "weight of the covariances' distance (γ)", at_least=0, search=log10(-1, 1)
    )
    form: Literal["paper", "domainbed"] = setting(
        "paper", "paper: ‖C_i − C_j‖²/(4d²); domainbed: means too, and mean squares"
    )


class Coral(Algorithm):
    Config = CoralConfig
    least_domains = 2
    least_rows = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        hidden, domain = (self.world.gather(r) for r in (widened(output.hidden), batch.domain))
        gap = FORMS[self.config.form](hidden, domain)
        return Losses(
            risk=F.cross_entropy(output.logits, batch.y), penalty=self.config.penalty * gap
        )
