"""Tent: normalisation layers trained to make predictions surer (Wang et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from acclimate.adapt.methods.gradients import ScaleMethod, batches, entropies, set_gradients
from acclimate.config import setting
from acclimate.learn.images import Images
from acclimate.learn.models import Head


@dataclass(frozen=True, kw_only=True)
class TentConfig:
    steps: int = setting(10, "steps of Adam", at_least=0)
    lr: float = setting(1e-3, "its learning rate", at_least=0)
    batch: int = setting(
        64, "images in a step: gradients need memory that inference does not", at_least=2
    )


def mean_entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the predicted distributions, in nats: [b, C] -> []."""
    return entropies(logits).mean()


@final
class Tent(ScaleMethod):
    """Minimises the mean entropy by Adam."""

    Config = TentConfig
    name = "tent"

    def learn(self, network: Head, learned: Sequence[Tensor], images: Images) -> None:
        optimiser = torch.optim.Adam(learned, lr=self.config.lr)
        for x in batches(images, self.config.batch, self.config.steps):
            set_gradients(mean_entropy(network(x).logits), learned, x)
            optimiser.step()
