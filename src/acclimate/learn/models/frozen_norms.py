"""Frozen batch norm whose gradient keeps the channels-last layout, on a GPU.

PyTorch (2.14 and before) writes the gradient of a batch norm in eval mode in NCHW order, whatever
the layout of its input, and the convolution before it copies all of it back: 10 of the 28 ms of a
graphed ResNet-50 step on an H200. The kernels of `nn.SyncBatchNorm` keep the layout. They give the
same gradient if the terms that flow through the statistics are zero, as they are here. There is no
second derivative.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class FrozenNorm(torch.autograd.Function):
    """x [b, c, h, w], weight, bias, mean and 1 / deviation [c] -> normalised x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        return torch.batch_norm_elemt(x, weight, bias, mean, inverse, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if any(ctx.needs_input_grad[1:3]):
            _, _, of_weight, of_bias = torch.batch_norm_backward_reduce(
                gradient, x, mean, inverse, weight, False, *ctx.needs_input_grad[1:3]
            )
        if ctx.needs_input_grad[0]:
            none, count = torch.zeros_like(mean), torch.ones_like(mean[:1], dtype=torch.int32)
            of_x = torch.batch_norm_backward_elemt(
                gradient, x, mean, inverse, weight, none, none, count
            )
        return of_x, of_weight, of_bias, None, None


@contextmanager
def keep_layout(module: nn.Module) -> Iterator[None]:
    """Use `FrozenNorm` in the frozen batch norms of `module`, on a GPU, while it is trained."""
    # `freeze_batch_norm` has replaced the `train` of those that are frozen.
    norms = [m for m in module.modules() if type(m) is nn.BatchNorm2d and "train" in m.__dict__]
    layers = [layer for layer in norms if layer.affine and layer.weight.is_cuda]
    for layer in layers:
        assert layer.running_mean is not None and layer.running_var is not None
        inverse = (layer.running_var + layer.eps).rsqrt()
        layer.__dict__["forward"] = partial(_forward, layer, layer.running_mean.clone(), inverse)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward(layer: nn.BatchNorm2d, mean: Tensor, inverse: Tensor, x: Tensor) -> Tensor:
    if torch.is_grad_enabled() and x.is_contiguous(memory_format=torch.channels_last):
        y: Tensor = FrozenNorm.apply(x, layer.weight, layer.bias, mean, inverse)  # type: ignore[no-untyped-call]
        return y
    return nn.BatchNorm2d.forward(layer, x)
