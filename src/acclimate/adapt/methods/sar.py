"""SAR: Tent on sure images alone, towards flat minima, with a way back (Niu et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import final

import torch
from torch import Tensor

from acclimate.adapt.methods.gradients import ScaleMethod, batches, entropies, set_gradients
from acclimate.config import setting
from acclimate.learn.images import Images
from acclimate.learn.models import Head

MOMENTUM = 0.9  # of SGD,
MEMORY = 0.9  # and of the running entropy


@dataclass(frozen=True, kw_only=True)
class SARConfig:
    steps: int = setting(10, "steps of SGD", at_least=0)
    lr: float = setting(1e-3, "its learning rate", at_least=0)
    batch: int = setting(64, "images in a step", at_least=2)
    margin: float = setting(
        0.4, "images count whose entropy is below this share of log C (E_0)", at_least=0
    )
    radius: float = setting(
        0.05, "how far uphill the gradient is taken (ρ of sharpness-aware minimisation)", at_least=0
    )
    collapse: float = setting(
        0.2, "running entropy below which the scales are reset (e_0)", at_least=0
    )


@final
class SAR(ScaleMethod):
    """Minimises the mean entropy of images that are sure before and after a step of length
    `radius` uphill, by the gradient at that place.

    All normalisation layers learn; the authors leave out those of the last stage.
    """

    Config = SARConfig
    name = "sar"

    def learn(self, network: Head, learned: Sequence[Tensor], images: Images) -> None:
        config, running = self.config, None
        start = [value.detach().clone() for value in learned]
        optimiser = torch.optim.SGD(learned, lr=config.lr, momentum=MOMENTUM)
        for x in batches(images, config.batch, config.steps):
            logits = network(x).logits
            entropy, limit = entropies(logits), config.margin * log(logits.shape[1])
            sure = entropy < limit
            if not sure.any():
                continue
            set_gradients(entropy[sure].mean(), learned, x)
            uphill = climb(learned, config.radius)
            entropy = entropies(network(x).logits)
            sure = sure & (entropy < limit)
            if sure.any():
                loss = entropy[sure].mean()
                set_gradients(loss, learned, x)
                now = float(loss.detach())
                running = now if running is None else MEMORY * running + (1 - MEMORY) * now
            move(learned, uphill, -1)
            if sure.any():
                optimiser.step()
            if running is not None and running < config.collapse:
                move(learned, [a - b.detach() for a, b in zip(start, learned, strict=True)], 1)
                optimiser = torch.optim.SGD(learned, lr=config.lr, momentum=MOMENTUM)


def climb(learned: Sequence[Tensor], radius: float) -> list[Tensor]:
    """Take a step of length `radius` along the stored gradients, and return it."""
    slopes = [torch.zeros_like(v) if v.grad is None else v.grad for v in learned]
    length = torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt()
    steps = [slope * (radius / (length + 1e-12)) for slope in slopes]
    move(learned, steps, 1)
    return steps


@torch.no_grad()
def move(values: Sequence[Tensor], steps: Sequence[Tensor], sign: int) -> None:
    """Add `sign` times the steps to the values."""
    for value, step in zip(values, steps, strict=True):
        value.add_(step, alpha=sign)
