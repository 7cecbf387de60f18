"""Scale and shift of normalisation layers, learned by gradients: what Tent and SAR have in common.

Batch norm normalises by each batch while they learn, and by the statistics of all images (under
the new scales) afterwards. As published, both go on learning while they predict; here they learn
once, from the images adapted on.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import ClassVar

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
from acclimate.core.errors import ConfigError
from acclimate.learn.images import Images
from acclimate.learn.models import Head


def entropies(logits: Tensor) -> Tensor:
    """Entropy of each predicted distribution, in nats: [b, C] -> [b]"""
    log_p = logits.float().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def set_gradients(loss: Tensor, learned: Sequence[Tensor], x: Tensor | None = None) -> None:
    """Store the gradients of `loss` by what is learned, and of nothing else: all other parameters
    are the model's own. `x`, a batch of `batches`, is asked for as well."""
    wanted = [*learned] if x is None else [*learned, x]
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    for value, gradient in zip(learned, gradients, strict=False):
        value.grad = gradient


def batches(images: Images, size: int, steps: int) -> Iterator[Tensor]:
    """One batch of at most `size` images for each step, over and over."""
    endless = chain.from_iterable(images.batches(size) for _ in repeat(None))
    # The CPU's group norm crashes (torch 2.13, channels last) where its input's gradient is not
    # wanted, so it is.
    return (batch.detach().requires_grad_(True) for batch in islice(endless, steps))


def _scales(network: nn.Module) -> dict[str, Tensor]:
    """Scale and shift of each normalisation layer, by name."""
    return {
        f"{name}.{part}": value.detach()
        for name, layer in norm_layers(network).items()
        for part, value in layer.named_parameters(recurse=False)
    }


class ScaleMethod(Method):
    """A method that learns the scales and shifts, each by its own `learn`."""

    name: ClassVar[str]
    changes = "backbone"
    gradient_free = False

    @abstractmethod
    def learn(self, network: Head, learned: Sequence[Tensor], images: Images) -> None:
        """Change the scales and shifts that are `learned`, parameters of `network`, in place."""

    def require(self, network: nn.Module) -> None:
        if not _scales(network):
            raise without_norms(self.name, "the scales of normalisation layers", network)

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        self.require(classifier)
        affine = _scales(classifier)
        if batch_norms(classifier) and len(images) < 2:
            raise ConfigError(f"{self.name} with batch norm needs at least 2 images; give more")
        copied = with_tensors(classifier, affine)
        learned = {name: copied.get_parameter(name).requires_grad_(True) for name in affine}
        set_batch_mode(copied, on=True)
        self.learn(copied, list(learned.values()), images)
        tensors = {name: value.detach() for name, value in learned.items()}
        return {**tensors, **image_statistics(copied, images)} if batch_norms(copied) else tensors

    def apply(self, classifier: Head, tensors: Mapping[str, Tensor]) -> Head:
        return with_tensors(classifier, tensors)
