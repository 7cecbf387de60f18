"""Align the distributions of hidden features between domains, as in DomainBed: CORAL (Sun and
Saenko 2016) aligns means and covariances, MMD (Li et al. 2018) kernel means. CausIRL (Chevalley et
al. 2022) aligns two random halves instead, which mix the domains differently."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.config import log10, setting
from acclimate.core.randomness import stream
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import Groups, coral, mmd2, widened


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
        gap = type(self).distance(hidden, self._parts(self.world.whole(batch.domain), step))
        return Losses(
            risk=F.cross_entropy(output.logits, batch.y), penalty=self.config.penalty * gap
        )

    def _parts(self, domain: Tensor, step: int) -> Tensor:
        """The numbers of the parts that are aligned, which are the domains: [b] -> [b]"""
        return domain


class Coral(_Alignment):
    distance = staticmethod(coral)


class MMD(_Alignment):
    distance = staticmethod(mmd2)


class _CausIRL(_Alignment):
    """The first rows of each domain, a random number, are one part, and the rest is the other."""

    def _parts(self, domain: Tensor, step: int) -> Tensor:
        groups, rng = Groups.of(domain), stream(self.seed, "causirl", step)
        if len(groups) < 2:
            return domain  # its halves would differ by chance alone
        sizes = torch.from_numpy(rng.integers(0, groups.count.numpy()))
        return (groups.rank < sizes[groups.index]).long()


class CausIRLCoral(_CausIRL, Coral):
    """The halves' means and covariances are aligned."""


class CausIRLMMD(_CausIRL, MMD):
    """The halves' kernel means are aligned."""
