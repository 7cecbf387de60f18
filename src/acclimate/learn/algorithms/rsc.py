"""RSC (Huang et al. 2020): the hidden features that count most are muted."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from acclimate.config import setting, uniform
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import widened


@dataclass(frozen=True, kw_only=True)
class RSCConfig:
    features: float = setting(
        1 / 3, "share of the hidden features that is muted", at_least=0, at_most=1,
        search=uniform(0, 0.5),
    )  # fmt: skip
    rows: float = setting(
        1 / 3, "share of the rows whose features are", at_least=0, at_most=1,
        search=uniform(0, 0.5),
    )  # fmt: skip


class RSC(Algorithm):
    """The risk with features muted by which the right class's logit rises most.

    Those have the largest weights of that class in the last layer. Only the rows are muted whose
    probability of the right class then falls most.
    """

    Config = RSCConfig

    def forward(self, batch: Batch, step: int) -> Losses:
        output = self.predict(batch)
        with torch.no_grad():
            weight = widened(self.predictor.last.weight)
            bound = torch.quantile(weight, 1 - self.config.features, dim=1, keepdim=True)
            kept = (weight < bound)[batch.y]
            muted = self.with_hidden(output, output.hidden * kept)
            before, after = (widened(x).softmax(1) for x in (output.logits, muted))
            falls = (before - after).gather(1, batch.y[:, None])
            bound = torch.quantile(self.world.gather(falls), 1 - self.config.rows)
            kept |= falls < bound
        logits = self.with_hidden(output, output.hidden * kept)
        return Losses(risk=F.cross_entropy(logits, batch.y))
