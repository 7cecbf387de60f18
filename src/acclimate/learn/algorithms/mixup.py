"""Inter-domain mixup (Yan et al. 2020): images and labels between those of two domains."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.config import log10, setting
from acclimate.core.randomness import stream
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import Groups


@dataclass(frozen=True, kw_only=True)
class MixupConfig:
    alpha: float = setting(
        0.2, "ratios are drawn from Beta(α, α)", at_least=1e-3, search=log10(-1, 1)
    )


class Mixup(Algorithm):
    """Each domain is mixed with the next of a random circle, at one ratio; μ as the images.

    Circle and ratios are the same in every process, whose shares of a batch are laid out alike.
    """

    Config = MixupConfig
    least_domains = 2

    def forward(self, batch: Batch, step: int) -> Losses:
        partner, ratio = (sent(one, batch.x.device) for one in self._pairs(batch.domain, step))
        mixed = {
            name: _mix(value, partner, ratio)
            for name in ("x", "mu", "shift")
            if (value := getattr(batch, name)) is not None
        }
        both = replace(batch, **mixed)
        logits = self.predict(both).logits
        losses = F.cross_entropy(logits, batch.y, reduction="none")
        partner_losses = F.cross_entropy(logits, batch.y[partner], reduction="none")
        return Losses(risk=(ratio * losses + (1 - ratio) * partner_losses).mean())

    def _pairs(self, domain: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Each row's partner in another domain, and its own share of the mixture: [b], [b]"""
        rng = stream(self.seed, "mixup", step)
        groups = Groups.of(domain)
        circle = torch.from_numpy(rng.permutation(len(groups)))
        after = torch.empty_like(circle).index_copy(0, circle, circle.roll(-1))
        ratios = torch.from_numpy(rng.beta(self.config.alpha, self.config.alpha, len(groups)))
        return groups.row(after[groups.index], groups.rank), ratios.float()[groups.index]


def _mix(values: Tensor, partner: Tensor, ratio: Tensor) -> Tensor:
    """ratio·values + (1 − ratio)·partners' values: [b, ...], [b], [b] -> [b, ...]"""
    share = ratio.to(values.dtype).view(-1, *(1 for _ in values.shape[1:]))
    return share * values + (1 - share) * values[partner]
