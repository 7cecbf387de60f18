"""Tent: normalisation layers trained to make predictions surer (Wang et al. 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import final

import torch
from torch import Tensor, nn

from acclimate.adapt.methods.base import Context, Method, with_tensors
from acclimate.adapt.methods.norms import (
    batch_norms,
    image_statistics,
    norm_layers,
    set_batch_mode,
    without_norms,
)
from acclimate.config import setting
from acclimate.core.errors import ConfigError
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
    log_p = logits.float().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1).mean()


def _scales(network: nn.Module) -> dict[str, Tensor]:
    """Scale and shift of each normalisation layer, by name."""
    return {
        f"{name}.{part}": value.detach()
        for name, layer in norm_layers(network).items()
        for part, value in layer.named_parameters(recurse=False)
    }


@final
class Tent(Method):
    """Minimises the entropy over scale and shift of the normalisation layers, by Adam.

    Batch norm normalises by each batch while it learns, and by the statistics of all images (under
    the new scales) afterwards. Published, it goes on learning while it predicts; here it learns
    once, from the images adapted on. The only method that computes gradients.
    """

    Config = TentConfig
    changes = "backbone"
    gradient_free = False

    def require(self, network: nn.Module) -> None:
        if not _scales(network):
            raise without_norms("tent", "the scales of normalisation layers", network)

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        self.require(classifier)
        affine = _scales(classifier)
        if batch_norms(classifier) and len(images) < 2:
            raise ConfigError("tent with batch norm needs at least 2 images; give more")
        copied = with_tensors(classifier, affine)
        learned = {name: copied.get_parameter(name) for name in affine}
        self._minimise(copied, list(learned.values()), images)
        tensors = {name: value.detach() for name, value in learned.items()}
        return {**tensors, **image_statistics(copied, images)} if batch_norms(copied) else tensors

    def _minimise(self, network: nn.Module, learned: list[nn.Parameter], images: Images) -> None:
        """Leaves batch norm normalising by batches, as who measures their statistics needs it."""
        set_batch_mode(network, on=True)
        for value in learned:
            value.requires_grad_(True)
        optimiser = torch.optim.Adam(learned, lr=self.config.lr)
        endless = chain.from_iterable(images.batches(self.config.batch) for _ in repeat(None))
        for batch in islice(endless, self.config.steps):
            # The CPU's group norm crashes (torch 2.13, channels last) where its input's gradient
            # is not wanted, so the pixels' is asked for as well.
            x = batch.detach().requires_grad_(True)
            loss = mean_entropy(network(x).logits)
            # Not backward(): the parameters that are not learned are the model's own.
            gradients = torch.autograd.grad(loss, [*learned, x], allow_unused=True)
            for value, gradient in zip(learned, gradients, strict=False):
                value.grad = gradient
            optimiser.step()

    def apply(self, classifier: Head, tensors: Mapping[str, Tensor]) -> Head:
        return with_tensors(classifier, tensors)
