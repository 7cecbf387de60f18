"""MIRO (Cha et al. 2022): features stay near those of the pretrained backbone."""

import copy
import math
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.config import choice, setting
from acclimate.data.batches import Batch
from acclimate.learn.objective import Algorithm, Losses
from acclimate.learn.penalties import widened

START, LEAST = 0.1, 1e-5  # of a variance
FASTER = 10  # its learning rate, in those of the run: Adam moves all parameters equally far


@dataclass(frozen=True, kw_only=True)
class MIROConfig:
    penalty: float = setting(
        0.1, "weight of the distance from the pretrained features (λ)", at_least=0,
        search=choice(1.0, 0.1, 0.01, 0.001),
    )  # fmt: skip


class MIRO(Algorithm):
    """The risk and −λ times a lower bound on the mutual information with pretrained features.

    The bound is the log-density of the pretrained features f₀ under a Gaussian about the features
    f, with a variance for each feature that is learned: the penalty is λ/2 times the mean of
    (f − f₀)²/σ² + log σ². The pretrained backbone is what the run began with, and is saved with the
    other state: where that was random, it says nothing.
    """

    Config = MIROConfig
    fine_tunes = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        backbone = self.predictor.backbone
        self.pretrained = copy.deepcopy(backbone).requires_grad_(False).eval()
        self.spread = nn.Parameter(torch.zeros(backbone.features))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.pretrained.eval()
        return self

    def forward(self, batch: Batch, step: int) -> Losses:
        features = self.predictor.backbone(batch.x)
        output = self.adjusted(self.predictor.head(features, batch.mu), batch)
        with torch.no_grad():
            before = widened(self.pretrained(batch.x))
        variance = self.variance()
        distance = (widened(features) - before).square() / variance + variance.log()
        return Losses(
            risk=F.cross_entropy(output.logits, batch.y),
            penalty=self.config.penalty * distance.mean() / 2,
        )

    def variance(self) -> Tensor:
        """σ² of each feature: [d]"""
        start = math.log(math.expm1(START - LEAST))
        return F.softplus(start + FASTER * self.spread) + LEAST
