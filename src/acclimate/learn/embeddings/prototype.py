"""Prototypical domain embeddings: Algorithm 1 of the paper, with domain mixup."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.core.randomness import stream
from acclimate.data.batches import Batch, support_size
from acclimate.data.source import sent
from acclimate.learn.objective import Embedding, Losses


class Prototype(Embedding):
    """Φ = backbone and one linear layer; a domain's images cluster around their mean."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # No bias: it cancels in every distance, so its gradient would be rounding noise.
        self.layer = nn.Linear(self.backbone.features, self.dim, bias=False)
        self.mixup, self.support = self.config.mixup == "on", self.config.support

    def raw(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(self.backbone(x))
        return features

    def forward(self, batch: Batch, step: int) -> Losses:
        x, domains = batch.x, len(torch.unique_consecutive(batch.domain))
        if self.mixup:
            x = torch.cat([x, self._mix(x, domains, step)])
        # Everyone's features, real domains before synthetic ones: [m, k, d].
        parts = self.raw(x).float().chunk(2 if self.mixup else 1)
        phi = torch.cat([_by_domain(self.world.gather(part), domains) for part in parts])
        support = support_size(phi.shape[1], self.support)
        return Losses(risk=prototype_loss(phi[:, :support], phi[:, support:]))

    def _mix(self, x: Tensor, domains: int, step: int) -> Tensor:
        """Mix domains into as many synthetic ones, each r·one + (1−r)·another, r from U(0.2, 0.8).

        Rows of a domain are in order, so support mixes with support and query with query.
        """
        rng = stream(self.seed, "domain-mixup", step)
        pairs = [rng.permutation(domains)[:2] for _ in range(domains)]
        ratios = sent(torch.from_numpy(rng.uniform(0.2, 0.8, domains)).to(x.dtype), x.device)
        ratios = ratios.reshape(-1, 1, *(1 for _ in x.shape[1:]))
        first, second = sent(torch.from_numpy(np.stack(pairs, axis=1)), x.device)
        by_domain = _by_domain(x, domains)
        one, two = by_domain[first], by_domain[second]
        mixed: Tensor = ratios * one + (1 - ratios) * two
        return mixed.flatten(0, 1)


def prototype_loss(support: Tensor, query: Tensor) -> Tensor:
    """Equation 3: −log softmax over −‖μ_d − Φ(x)‖² of the true domain. [m,s,d], [m,q,d] -> []"""
    domain = torch.arange(len(support), device=query.device).repeat_interleave(query.shape[1])
    # bf16 would round the distances; ‖Φ(x)‖² is the same for all domains and cancels in the
    # softmax; centring keeps the remaining terms small.
    with torch.autocast(query.device.type, enabled=False):
        prototypes = support.mean(1)
        centre = prototypes.mean(0)
        prototypes, points = prototypes - centre, query.flatten(0, 1) - centre
        logits = 2 * points @ prototypes.T - prototypes.square().sum(1)
        return F.cross_entropy(logits, domain)


def _by_domain(rows: Tensor, domains: int) -> Tensor:
    """[domains * k, ...] -> [domains, k, ...]"""
    return rows.reshape(domains, -1, *rows.shape[1:])
