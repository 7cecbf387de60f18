"""Align the distributions of hidden features between domains, as in DomainBed: CORAL (Sun and
Saenko 2016) aligns means and covariances, MMD (Li et al. 2018) kernel means."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from acclimate.config import log10, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import coral, mmd2, widened


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig:
    penalty: float = setting(
        1.0, "weight of the domains' distance (γ)", at_least=0, search=log10(-1, 1)
    )


class _Alignment(Algorithm):
    Config = AlignmentConfig
    least_domains = 2
    least_rows = 2
    distance: ClassVar[Callable[[Tensor, Tensor], Tensor]]  # hidden [b, d], domain [b] -> []

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        hidden = self.world.gather(widened(output.hidden))
        gap = type(self).distance(hidden, self.world.whole(batch.domain))
        return Losses(
            risk=F.cross_entropy(output.logits, batch.y), penalty=self.config.penalty * gap
        )


class Coral(_Alignment):
    distance = staticmethod(coral)


class MMD(_Alignment):
    distance = staticmethod(mmd2)
