"""MLDG (Li et al. 2018): a step on some domains must also help on the others."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from acclimate.config import choice, log10, setting
from acclimate.core.randomness import stream
from acclimate.data.batches import Batch
from acclimate.learn.models import Output
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import Groups


@dataclass(frozen=True, kw_only=True)
class MLDGConfig:
    beta: float = setting(
        1.0, "weight of the risk after the inner step", at_least=0, search=log10(-1, 1)
    )
    meta_test: int = setting(
        2, "domains left out of the inner step, at most half of a batch's",
        at_least=1, search=choice(1, 2),
    )  # fmt: skip
    inner_lr: float = setting(
        1e-2, "length of the inner gradient step", at_least=0, search=log10(-3, -1)
    )
    first_order: bool = setting(
        False, "leave out second derivatives: cheaper, and some backbones have none"
    )


class MLDG(Algorithm):
    """R_train(θ) + β R_test(θ − a ∇R_train(θ)), by a random split of the batch's domains.

    The inner step is plain gradient descent of length a, differentiated through; it is not the
    run's learning rate, which belongs to Adam. `penalty` records the second term; a batch of one
    domain has none. The meta-test images see the inner weights and copies of the buffers, so that
    running statistics of batch norm stay those of the outer weights. Inner gradients are averaged
    over processes, so that all take the same inner step.
    """

    Config = MLDGConfig
    least_domains = 2
    compilable = False
    divisible = False  # recomputed when the inner weights are gone

    def forward(self, batch: Batch, step: int) -> Losses:
        groups = Groups.of(batch.domain)
        if len(groups) < 2:
            return Losses(risk=F.cross_entropy(self.predict(batch).logits, batch.y))
        held_out = self._held_out(groups, step)
        train, test = (batch.take(rows.nonzero()[:, 0]) for rows in (~held_out, held_out))
        risk = F.cross_entropy(self.predict(train).logits, train.y)
        inner: Output = functional_call(self.predictor, self._step(risk), (test.x, test.mu))
        after = F.cross_entropy(self.adjusted(inner, test).logits, test.y)
        return Losses(risk=risk, penalty=self.config.beta * after)

    def _held_out(self, groups: Groups, step: int) -> Tensor:
        """Which rows are of meta-test domains: [b], the same split in every process."""
        order = stream(self.seed, "mldg", step).permutation(len(groups))
        chosen = order[: min(self.config.meta_test, len(groups) // 2)]
        return torch.isin(groups.index, torch.from_numpy(chosen).to(groups.index))

    def _step(self, risk: Tensor) -> dict[str, Tensor]:
        """The predictor's weights after one step down `risk`, and copies of its buffers."""
        weights = {name: p for name, p in self.predictor.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(
            risk,
            list(weights.values()),
            create_graph=not self.config.first_order,
            retain_graph=True,
            materialize_grads=True,  # 0 for what this batch does not use
        )
        stepped: dict[str, Tensor] = {n: b.clone() for n, b in self.predictor.named_buffers()}
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            stepped[name] = weight - self.config.inner_lr * self.world.mean(gradient)
        return stepped
