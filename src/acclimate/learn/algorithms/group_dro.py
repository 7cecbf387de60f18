"""Group DRO (Sagawa et al. 2020): the domain with the largest risk counts most."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.objective import Algorithm, Losses, mean_by
from acclimate.learn.penalties import widened


@dataclass(frozen=True, kw_only=True)
class GroupDROConfig:
    eta: float = setting(
        1e-2, "how fast weights follow risks", at_least=0, search=log10(-3, -1)
    )  # fmt: skip


class GroupDRO(Algorithm):
    """Σ_d q_d R_d, where q_d grows by exp(η R_d) whenever domain d is in a training batch.

    q sums to 1 over all training domains and is saved with the other state, as logarithms: a weight
    that fell below the smallest number could never rise again. In a batch, the weights of the
    domains present are scaled to sum to 1.
    """

    Config = GroupDROConfig
    least_domains = 2
    log_q: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("log_q", torch.full([self.domains], 1 / self.domains).log())

    def forward(self, batch: Batch, step: int) -> Losses:
        losses = F.cross_entropy(widened(self.predict(batch).logits), batch.y, reduction="none")
        # Everyone's rows, so that every process has the same risks and weights.
        risks = mean_by(self.world.gather(losses), self.world.whole(batch.domain))
        present = sent(torch.unique(batch.domain), risks.device)
        if self.training and torch.is_grad_enabled():
            self._follow(present, risks.detach())
        weights = self.log_q[present].softmax(0)
        return Losses(risk=(weights * risks).sum())

    def _follow(self, present: Tensor, risks: Tensor) -> None:
        grown = self.log_q.index_add(0, present, self.config.eta * risks.to(self.log_q.dtype))
        self.log_q.copy_(grown.log_softmax(0))
