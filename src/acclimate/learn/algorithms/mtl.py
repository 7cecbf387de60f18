"""MTL (Blanchard et al. 2021): the classifier also sees the mean features of a row's domain."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.config import choice, setting
from acclimate.core.randomness import derive, own_weights
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import Groups, domain_means


@dataclass(frozen=True, kw_only=True)
class MTLConfig:
    ema: float = setting(
        0.99, "weight of a batch in the running mean of its domain", at_least=0, at_most=1,
        search=choice(0.5, 0.9, 0.99, 1.0),
    )  # fmt: skip


class MTL(Algorithm):
    """The risk of a linear layer on [h, e]: hidden features and their running mean e in the domain.

    W [h, e] + b = V h + U (e − ē) + c, where ē is the mean of e over the training domains. V and c
    are the predictor's last layer; U is learned beside it. The predictor alone, which is what the
    run saves, thus is the classifier at ē: a new domain is not adapted to.
    """

    Config = MTLConfig
    least_domains = 2
    over_mu = False
    means: Tensor
    counts: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        last = self.predictor.last
        with own_weights(derive(self.seed, "mean features")):
            self.of_mean = nn.Linear(last.in_features, self.classes, bias=False)
        self.register_buffer("means", torch.zeros(self.domains, last.in_features))
        self.register_buffer("counts", torch.zeros(self.domains, dtype=torch.int64))

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        hidden, domain = self.world.gather(output.hidden), self.world.whole(batch.domain)
        groups = Groups.of(domain, hidden.device)
        means, centre = self._running(domain_means(hidden, groups), batch.domain)
        added = self.of_mean(means - centre)
        rows = groups.index[self.world.share(len(domain))]
        return Losses(risk=F.cross_entropy(output.logits + added[rows], batch.y))

    def _running(self, new: Tensor, domain: Tensor) -> tuple[Tensor, Tensor]:
        """Running means of the domains present [m, h], and the mean over all seen so far [h]"""
        present = sent(torch.unique(domain), new.device)
        old = torch.where(self.counts[present, None] > 0, self.means[present], new.detach())
        running = torch.lerp(old, new, self.config.ema)
        means, counts = self.means.clone(), self.counts.clone()
        means[present] = running.detach().to(means.dtype)
        counts[present] += 1
        if self.training and torch.is_grad_enabled():
            self.means.copy_(means)
            self.counts.copy_(counts)
        seen = counts > 0  # those that are not hold zeros
        return running, means.sum(0) / seen.sum()
