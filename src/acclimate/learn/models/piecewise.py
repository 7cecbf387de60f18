"""A batch through a network piece by piece, for the sake of memory.

Where nothing is learned, pieces follow each other. Where gradients are wanted, what a piece would
keep for them is thrown away and worked out again when its turn in the backward pass comes: one more
forward pass, for the memory of one piece. Whoever uses the features sees the whole batch, so that
every loss and penalty is what it is without pieces.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import ceil
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SMALL = 64  # pixels: at or below, what a network makes of an image takes little memory
BATCH = 32  # images at a time: larger batches are no faster on a CPU, and take more memory

REMEMBERED = 60.0  # seconds for which a GPU without enough memory is not asked for it again

# On small GPUs, and those that others use as well: images that fit, and until when that is taken.
_FITTING: WeakKeyDictionary[nn.Module, tuple[int, float]] = WeakKeyDictionary()


def few_at_a_time(pass_on: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> Tensor:
    """[b, ...] -> [b, f], large images on a CPU in pieces of at most `BATCH`, and on a GPU as many
    as fit into its memory.

    EfficientNet-Lite0, 256 images of 224 px on 1 core: 4.4 GiB and 17 images/s at once, 0.5 GiB and
    26 images/s in pieces.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return pass_on(x)
    if x.device.type != "cpu":
        return _as_many_as_fit(pass_on, network, x)
    if x.ndim < 4 or x.shape[-1] <= SMALL or len(x) <= BATCH or _normalises_by_batch(network):
        return pass_on(x)
    return torch.cat([pass_on(piece) for piece in x.tensor_split(ceil(len(x) / BATCH))])


def _as_many_as_fit(pass_on: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> Tensor:
    """At once, unless as many were just found not to fit: then half of them at a time."""
    most, until = _FITTING.get(network, (len(x), 0.0))
    if len(x) <= most or time.monotonic() > until or _normalises_by_batch(network):
        try:
            return pass_on(x)
        except torch.OutOfMemoryError:
            if len(x) <= 1 or _normalises_by_batch(network):
                raise
        # Not before the error, and all that it holds, is gone.
        _FITTING[network] = ceil(len(x) / 2), time.monotonic() + REMEMBERED
    return torch.cat([_as_many_as_fit(pass_on, network, half) for half in x.tensor_split(2)])


def in_parts(
    pass_on: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor, parts: int
) -> Tensor:
    """[b, ...] -> [b, f] in `parts` of every `parts`-th row: each holds every domain in equal
    measure. Batch norm goes by the statistics of each part."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _buffers_stay(network)  # the second time counts for no statistics

    places = range(min(parts, len(x)))
    order = torch.cat([torch.arange(part, len(x), parts) for part in places])
    made = [
        checkpoint(pass_on, x[part::parts], use_reentrant=False, context_fn=contexts)
        for part in places
    ]
    return torch.cat(made)[order.argsort().to(x.device, non_blocking=True)]


def _normalises_by_batch(network: nn.Module) -> bool:
    return any(part.training for part in network.modules())


@contextmanager
def _buffers_stay(network: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in network.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
