"""Fish (Shi et al. 2022): gradients of different domains are to point the same way."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from acclimate.config import log10, setting
from acclimate.core.randomness import stream
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import Groups


@dataclass(frozen=True, kw_only=True)
class FishConfig:
    inner_lr: float = setting(
        1e-2, "length of a domain's gradient step (α)", at_least=0, search=log10(-3, -1)
    )


class Fish(Algorithm):
    """A step down one domain after the other, in random order; the total's gradient is their mean.

    From the weights θ = θ₀, domain k of m gives θ_k = θ_{k−1} − α g_k, g_k = ∇R_k(θ_{k−1}). Fish
    then moves θ by ε (θ_m − θ) = −ε α Σ g_k. Here the gradient of the total is Σ g_k / m, so that
    SGD at the rate ε α m takes that very step; Adam, the default, scales it in its own way.

    The inner steps are plain gradient descent, whose length is not the run's learning rate. The
    recorded risk is the mean over k of R_k(θ_{k−1}). A domain is one forward and one backward pass,
    in which batch norm sees that domain alone. Inner gradients are averaged over processes.
    """

    Config = FishConfig
    least_domains = 2
    compilable = False
    divisible = False  # recomputed when the inner weights are gone

    def forward(self, batch: Batch, step: int) -> Losses:
        weights = {name: p for name, p in self.predictor.named_parameters() if p.requires_grad}
        inner = {name: weight.detach() for name, weight in weights.items()}
        total = {name: torch.zeros_like(weight) for name, weight in inner.items()}
        groups, risks = Groups.of(batch.domain), []
        for number in stream(self.seed, "fish", step).permutation(len(groups)):
            domain = batch.take((groups.index == int(number)).nonzero()[:, 0])
            risk, gradients = self._slope(domain, inner)
            inner = {name: w - self.config.inner_lr * gradients[name] for name, w in inner.items()}
            total = {name: g + gradients[name] for name, g in total.items()}
            risks.append(risk)
        # Worth 0, with the mean gradient as its own: no pass is kept for the loop's backward pass.
        pull = torch.stack([(w * total[name]).sum() for name, w in weights.items()]).sum()
        return Losses(risk=torch.stack(risks).mean() + (pull - pull.detach()) / len(groups))

    def _slope(self, batch: Batch, weights: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The risk at `weights`, and its gradient by each of them."""
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        output = functional_call(self.predictor, leaves, (batch.x, batch.mu))
        risk = F.cross_entropy(self.adjusted(output, batch).logits, batch.y)
        gradients = torch.autograd.grad(risk, list(leaves.values()), materialize_grads=True)
        means = [self.world.mean(gradient) for gradient in gradients]
        return risk.detach(), dict(zip(leaves, means, strict=True))
