"""V-REx (Krueger et al. 2021): the variance of the domains' risks is penalised."""

from dataclasses import dataclass

import torch.nn.functional as F

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses, mean_by
from acclimate.learn.penalties import widened


@dataclass(frozen=True, kw_only=True)
class VRExConfig:
    penalty: float = setting(
        1e1, "weight of the risks' variance once it counts", at_least=0, search=log10(-1, 5)
    )
    anneal: int = setting(
        500, "steps before that, during which its weight is 1", at_least=0, search=log10(0, 4)
    )


class VREx(Algorithm):
    """mean_d R_d + λ var_d R_d, where R_d is the risk of a domain."""

    Config = VRExConfig
    least_domains = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        losses = F.cross_entropy(widened(self.predict(batch).logits), batch.y, reduction="none")
        risks = mean_by(self.world.gather(losses), self.world.whole(batch.domain))
        weight = self.config.penalty if step >= self.config.anneal else 1.0
        return Losses(risk=risks.mean(), penalty=weight * risks.var(correction=0))
