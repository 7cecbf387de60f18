"""Fishr (Rame et al. 2022): gradients vary as much in every domain."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.config import log10, setting, uniform
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.models import Output
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import Groups, gradient_variances, widened


@dataclass(frozen=True, kw_only=True)
class FishrConfig:
    penalty: float = setting(
        1e3, "weight of the variances' differences once they count", at_least=0, search=log10(1, 4)
    )
    anneal: int = setting(
        1500, "steps before that, during which it is 0", at_least=0, search=uniform(0, 5000)
    )
    ema: float = setting(
        0.95, "decay of a domain's variances (γ)", at_least=0, at_most=0.999,
        search=uniform(0.9, 0.99),
    )  # fmt: skip


class Fishr(Algorithm):
    """The mean squared difference between a domain's gradient variances and all domains'.

    A variance is that over the domain's rows of the gradient by one weight of the last layer. Of
    earlier steps' variances v̄ ← γ v̄ + (1 − γ) v remains, by domain; v̄ / (1 − γ) is compared, so
    that a batch's own gradient does not depend on γ.
    """

    Config = FishrConfig
    least_domains = 2
    least_rows = 2
    variances: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        last = self.predictor.last
        shape = [self.domains, last.out_features, last.in_features + 1]
        self.register_buffer("variances", torch.zeros(shape))

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        risk = F.cross_entropy(output.logits, batch.y)
        variances = self._smoothed(self._variances(output, batch), batch.domain)
        gap = (variances - variances.mean(0)).square().mean()
        weight = self.config.penalty if step >= self.config.anneal else 0.0
        return Losses(risk=risk, penalty=weight * gap)

    def _variances(self, output: Output, batch: Batch) -> Tensor:
        """Of the gradients by the last layer's weights and biases: [domains present, C, h + 1]"""
        p = widened(output.logits).softmax(1)
        residual = self.world.gather(p - F.one_hot(batch.y, self.classes))
        inputs = self.world.gather(F.pad(widened(output.hidden), (0, 1), value=1.0))
        groups = Groups.of(self.world.whole(batch.domain), residual.device)
        return gradient_variances(residual, inputs, groups)

    def _smoothed(self, new: Tensor, domain: Tensor) -> Tensor:
        """The moving averages of the domains present, over 1 − γ; they are kept in training."""
        present, decay = sent(torch.unique(domain), new.device), self.config.ema
        total: Tensor = new + decay / (1 - decay) * self.variances[present]
        if self.training and torch.is_grad_enabled():
            self.variances[present] = (1 - decay) * total.detach().to(self.variances.dtype)
        return total
