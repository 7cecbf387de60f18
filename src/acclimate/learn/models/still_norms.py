"""Batch norm whose statistics stay as they are, trained through on a GPU in the layout of images.

There PyTorch (2.13 and before) writes the gradient of such a layer in the order in which images do
not lie, whatever order they came in: slowly, and the convolution before it copies all of it back.
Of a step of ResNet-50 that is a third. The kernels for statistics shared between processes keep the
order, and give the same gradient where nothing flows through the statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from acclimate.learn.models.backbones import is_frozen


@dataclass(frozen=True)
class Still:
    """A layer's statistics, and the sums through which nothing flows."""

    mean: Tensor
    invstd: Tensor
    nothing: Tensor
    count: Tensor
    eps: float

    @classmethod
    def of(cls, layer: nn.BatchNorm2d) -> "Still":
        assert layer.running_mean is not None and layer.running_var is not None
        mean = layer.running_mean.detach().clone()
        invstd = (layer.running_var.detach() + layer.eps).rsqrt()
        count = torch.ones(1, dtype=torch.int32, device=mean.device)
        return cls(mean, invstd, torch.zeros_like(mean), count, layer.eps)


class Through(torch.autograd.Function):
    """x [b, c, h, w], scale and shift [c] -> (x - mean) · invstd · scale + shift."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, still: Still) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.still = still
        return torch.batch_norm_elemt(x, scale, shift, still.mean, still.invstd, still.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        still: Still = ctx.still
        of_x = of_scale = of_shift = None
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if any(ctx.needs_input_grad[1:3]):
            _, _, of_scale, of_shift = torch.batch_norm_backward_reduce(
                gradient, x, still.mean, still.invstd, scale, False, *ctx.needs_input_grad[1:3]
            )
        if ctx.needs_input_grad[0]:
            of_x = torch.batch_norm_backward_elemt(
                gradient,
                x,
                still.mean,
                still.invstd,
                scale,
                still.nothing,
                still.nothing,
                still.count,
            )
        return of_x, of_scale, of_shift, None


@contextmanager
def layout_kept(module: nn.Module, device: torch.device) -> Iterator[None]:
    """While `module` is trained, which changes no statistics of those layers that are still."""
    layers = still_layers(module) if device.type == "cuda" and agrees(device) else []
    for layer in layers:
        layer.__dict__["forward"] = partial(_forward, layer, Still.of(layer))
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def still_layers(module: nn.Module) -> list[nn.BatchNorm2d]:
    """Those of whose statistics training makes nothing, with scales and shifts."""
    return [
        part
        for part in module.modules()
        if type(part) is nn.BatchNorm2d  # a subclass may do more
        and is_frozen(part)
        and part.affine
        and part.running_mean is not None
    ]


def _forward(layer: nn.BatchNorm2d, still: Still, x: Tensor) -> Tensor:
    if torch.is_grad_enabled() and x.is_contiguous(memory_format=torch.channels_last):
        found: Tensor = Through.apply(x, layer.weight, layer.bias, still)  # type: ignore[no-untyped-call]
        return found
    return nn.BatchNorm2d.forward(layer, x)


@lru_cache(maxsize=8)
def agrees(device: torch.device) -> bool:
    """Whether it gives there what PyTorch's own way does: these kernels are meant for others."""
    generator = torch.Generator(device).manual_seed(0)
    layer = nn.BatchNorm2d(16, device=device).eval()
    draw = partial(torch.rand, generator=generator, device=device)
    with torch.no_grad():
        for number in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
            number.copy_(0.5 + draw(16))  # type: ignore[union-attr]
    try:
        return all(
            _agrees_for(layer, draw(4, 16, 6, 6), kind) for kind in (torch.float32, torch.bfloat16)
        )
    except (RuntimeError, AttributeError, TypeError):  # a PyTorch that has them no more
        return False


def _agrees_for(layer: nn.BatchNorm2d, values: Tensor, kind: torch.dtype) -> bool:
    still, learned = Still.of(layer), (layer.weight, layer.bias)
    gradient = values.flip(0).to(kind, memory_format=torch.channels_last)
    found = []
    for way in (partial(_forward, layer, still), partial(_usual, layer)):
        x = values.to(kind, memory_format=torch.channels_last).requires_grad_()
        with torch.enable_grad():
            y = way(x)
            found.append((y, *torch.autograd.grad(y, (x, *learned), gradient)))
    near = 1e-4 if kind is torch.float32 else 2e-2
    return all(
        one.dtype == other.dtype and torch.allclose(one, other, rtol=near, atol=near)
        for one, other in zip(*found, strict=True)
    )


def _usual(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    mean, var = layer.running_mean, layer.running_var
    return F.batch_norm(x, mean, var, layer.weight, layer.bias, eps=layer.eps)
