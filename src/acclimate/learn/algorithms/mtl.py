"""MTL (Blanchard et al. 2021): the classifier also sees the mean features of a row's domain."""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from acclimate.config import choice, setting
from acclimate.data.source import sent
from acclimate.learn.algorithms.arm import SetConditioned
from acclimate.learn.models import Backbone
from acclimate.learn.models.predictors import identity_backbone


@dataclass(frozen=True, kw_only=True)
class MTLConfig:
    ema: float = setting(
        0.99, "weight of a batch in the running mean of its domain", at_least=0, at_most=1,
        search=choice(0.5, 0.9, 0.99, 1.0),
    )  # fmt: skip


@final
class MTL(SetConditioned):
    """Φ is the features themselves. In training μ is their running mean; for predictions, as of any
    other Φ, that of a domain's images by the finished weights."""

    Config = MTLConfig
    means: Tensor
    counts: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.embedding is not None
        self.register_buffer("means", torch.zeros(self.domains, self.embedding.dim))
        self.register_buffer("counts", torch.zeros(self.domains, dtype=torch.int64))

    @classmethod
    def context(cls, features: int) -> Backbone:
        return identity_backbone(features)

    def contexts(self, means: Tensor, domain: Tensor) -> Tensor:
        present = sent(torch.unique(domain), means.device)
        old = torch.where(self.counts[present, None] > 0, self.means[present], means.detach())
        running = torch.lerp(old, means, self.config.ema)
        if self.training and torch.is_grad_enabled():
            self.means[present] = running.detach().to(self.means.dtype)
            self.counts[present] += 1
        return running
