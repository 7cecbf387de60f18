"""SagNet (Nam et al. 2021): features whose style does not give the class away."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from acclimate.config import log10, setting
from acclimate.core.randomness import derive, own_weights, stream
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import widened

EPSILON = 1e-5  # added to a variance


@dataclass(frozen=True, kw_only=True)
class SagNetConfig:
    penalty: float = setting(
        0.1, "weight of misleading the style network", at_least=0, search=log10(-2, 1)
    )


class SagNet(Algorithm):
    """The risk with random styles, and a style network that is misled.

    The style of a row is the mean and variance of its hidden features. The risk is that with
    styles mixed with those of other rows. The style network is a linear layer that learns the
    class from features with the row's style and another row's content; its cross-entropy is by
    those features as they are, so that it moves this layer alone. The features learn that it be
    undecided: λ times its cross-entropy against all classes alike, by the style alone. `penalty`
    records the sum of both.
    """

    Config = SagNetConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with own_weights(derive(self.seed, "style")):
            self.style = nn.Linear(self.predictor.last.in_features, self.classes)

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        hidden = widened(output.hidden)
        other, share = self._partners(len(batch), step, hidden.device)
        mean, variance = hidden.mean(1, keepdim=True), hidden.var(1, keepdim=True)
        content = (hidden - mean) / (variance + EPSILON).sqrt()
        swapped = self._of(other, content.detach()) * (variance + EPSILON).sqrt() + mean
        mixed_mean = share * mean + (1 - share) * self._of(other, mean)
        mixed_variance = share * variance + (1 - share) * self._of(other, variance)
        mixed = content * (mixed_variance + EPSILON).sqrt() + mixed_mean
        risk = F.cross_entropy(self.with_hidden(output, mixed), batch.y)

        learns = F.cross_entropy(self.style(swapped.detach()), batch.y)
        fixed = {name: p.detach() for name, p in self.style.named_parameters()}
        undecided = -functional_call(self.style, fixed, (swapped,)).log_softmax(1).mean()
        return Losses(risk=risk, penalty=learns + self.config.penalty * undecided)

    def _partners(self, rows: int, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Each row's partner in the whole batch [b], and its own share of the mixed style [b, 1]"""
        rng, whole = stream(self.seed, "sagnet", step), rows * self.world.size
        others, shares = rng.permutation(whole), rng.random(whole)
        part = self.world.share(whole)
        other, share = (torch.from_numpy(values[part].copy()) for values in (others, shares))
        return sent(other, device), sent(share.float()[:, None], device)

    def _of(self, other: Tensor, values: Tensor) -> Tensor:
        """The partners' values: [b], [b, ...] -> [b, ...]"""
        return self.world.gather(values)[other]
