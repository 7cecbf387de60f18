"""Adversarial features: DANN (Ganin et al. 2016) and, given the class, CDANN (Li et al. 2018)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from acclimate.config import OptimiserConfig, choice, log2, log10, setting
from acclimate.core.randomness import derive, own_weights
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.objective import Adversary, Algorithm, Losses
from acclimate.learn.penalties import widened


@dataclass(frozen=True, kw_only=True)
class DANNConfig:
    penalty: float = setting(
        1.0, "weight of misleading the discriminator (λ)", at_least=0, search=log10(-2, 2)
    )
    discriminator_lr: float | None = setting(
        None, "its learning rate; unset: the run's", at_least=0, search=log10(-5, -3.5)
    )
    discriminator_weight_decay: float = setting(
        0.0, "its weight decay", at_least=0, search=log10(-6, -2)
    )
    discriminator_steps: int = setting(
        1, "its steps for each of the model's", at_least=1, search=log2(0, 3)
    )
    gradient_penalty: float = setting(
        0.0, "weight of its squared gradient by the features", at_least=0, search=log10(-2, 1)
    )
    beta1: float = setting(
        0.5, "its first moment's decay, under adam", at_least=0, at_most=1, search=choice(0.0, 0.5)
    )
    width: int = setting(256, "its hidden layers' width", at_least=1, search=log2(6, 10))
    depth: int = setting(3, "its layers", at_least=1, search=choice(3, 4, 5))
    dropout: float = setting(
        0.0, "its dropout", at_least=0, at_most=0.99, search=choice(0.0, 0.1, 0.5)
    )


@final
class Discriminator(nn.Module):
    """An MLP from features [b, features] to scores of domains [b, domains].

    Given `classes`, it also knows the class: an embedding of it is added to the features.
    """

    def __init__(
        self, features: int, domains: int, config: DANNConfig, classes: int | None = None
    ) -> None:
        super().__init__()
        self.embedding = None if classes is None else nn.Embedding(classes, features)
        sizes = [features, *[config.width] * (config.depth - 1)]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.Dropout(config.dropout), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], domains))

    def forward(self, features: Tensor, y: Tensor) -> Tensor:
        if self.embedding is not None:
            features = features + self.embedding(y)
        scores: Tensor = self.layers(features)
        return scores


class DANN(Algorithm):
    """A discriminator learns to tell domains apart by hidden features; the model, to mislead it.

    In the discriminator's turns the total's gradient is that of its cross-entropy (and gradient
    penalty) alone, in the model's turns that of risk − λ·cross-entropy with the discriminator
    fixed. `risk` is the model's in both.
    """

    Config = DANNConfig
    least_domains = 2
    conditional: ClassVar[bool] = False
    adversary: Adversary

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: DANNConfig = self.config
        last = self.predictor.last
        # Seeded by name: what was drawn before, and on resuming was not, must not matter.
        with own_weights(derive(self.seed, "discriminator")):
            classes = self.classes if self.conditional else None
            self.discriminator = Discriminator(last.in_features, self.domains, config, classes)
        against = OptimiserConfig(
            lr=config.discriminator_lr,
            weight_decay=config.discriminator_weight_decay,
            beta1=config.beta1,
        )
        self.adversary = Adversary(self.discriminator, against, config.discriminator_steps)

    def forward(self, batch: Batch, step: int) -> Losses:
        weight, adversarys_turn = self.config.gradient_penalty, self.adversary.moves(step)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not adversarys_turn):
            output = self.predict(batch)
            risk = F.cross_entropy(output.logits, batch.y)
        hidden = widened(output.hidden)
        scores: Tensor
        if adversarys_turn:
            hidden = hidden.detach().requires_grad_(weight > 0)
            scores = self.discriminator(hidden, batch.y)
        else:
            fixed = {name: p.detach() for name, p in self.discriminator.named_parameters()}
            scores = functional_call(self.discriminator, fixed, (hidden, batch.y))
        if len(torch.unique(batch.domain)) < 2:
            return Losses(risk=risk, penalty=scores[:0].sum())  # there is nothing to tell apart
        domain = sent(batch.domain, scores.device)
        losses = F.cross_entropy(widened(scores), domain, reduction="none")
        loss = self._balance(losses, batch.y) if self.conditional else losses.mean()
        if not adversarys_turn:
            return Losses(risk=risk, penalty=-self.config.penalty * loss)
        if weight > 0:
            (slope,) = torch.autograd.grad(losses.sum(), hidden, create_graph=True)
            loss = loss + weight * slope.square().sum(1).mean()
        return Losses(risk=risk, penalty=loss)

    def _balance(self, losses: Tensor, y: Tensor) -> Tensor:
        """The mean over the classes present of their means: [b], [b] -> []

        Classes are counted over all processes, whose mean of this is the whole batch's.
        """
        whole = self.world.gather(y)
        count = whole.new_zeros(self.classes).index_add(0, whole, torch.ones_like(whole))
        weights = 1 / (count[whole] * (count > 0).sum())
        share = weights[self.world.share(len(weights))]
        return self.world.size * (share * losses).sum()


class CDANN(DANN):
    """The discriminator also sees the class, and each class of a batch counts equally."""

    conditional = True
