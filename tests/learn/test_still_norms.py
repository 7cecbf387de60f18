"""Frozen batch norm that keeps the layout: on a GPU itself, elsewhere all but its kernels."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.learn.models import freeze_batch_norm, layout_kept, still_norms
from acclimate.learn.models.still_norms import agrees, still_layers
from fixtures.gpu import on_gpu

GPU = torch.device("cuda")


def network(*, affine: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    norm = made[1]
    for number in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        number.copy_(0.5 + torch.rand(8))
    freeze_batch_norm(made, affine=affine)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    module.train()
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    learned = [p for p in module.parameters() if p.requires_grad]
    found = module(x).float().square().mean()
    return [found.detach(), *torch.autograd.grad(found, [x, *learned])]


def images(device: torch.device | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    made = torch.rand(5, 3, 9, 9, generator=generator).to(device or torch.device("cpu"))
    return made.contiguous(memory_format=torch.channels_last)


@contextmanager
def kernels_in_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """PyTorch's three kernels, which are for GPUs only, written down from their definitions."""
    called: list[str] = []

    def wide(vector: Tensor) -> Tensor:
        return vector[None, :, None, None]

    def elemt(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
        called.append("forward")
        return ((x - wide(mean)) * wide(invstd * w) + wide(b)).to(x.dtype)

    def reduce(
        g: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, w: Tensor, *wanted: bool
    ) -> tuple[Tensor | None, ...]:
        called.append("reduce")
        assert not wanted[0]
        of_scale = (g * (x - wide(mean)) * wide(invstd)).sum((0, 2, 3))
        return None, None, of_scale, g.sum((0, 2, 3))

    def backward(
        g: Tensor,
        x: Tensor,
        mean: Tensor,
        invstd: Tensor,
        w: Tensor,
        sum_dy: Tensor,
        sum_dy_xmu: Tensor,
        count: Tensor,
    ) -> Tensor:
        called.append("backward")
        through = wide(sum_dy) / count.sum()
        through = through + (x - wide(mean)) * wide(invstd**2 * sum_dy_xmu) / count.sum()
        return ((g - through) * wide(invstd * w)).to(g.dtype)

    monkeypatch.setattr(torch, "batch_norm_elemt", elemt)
    monkeypatch.setattr(torch, "batch_norm_backward_reduce", reduce)
    monkeypatch.setattr(torch, "batch_norm_backward_elemt", backward)
    agrees.cache_clear()
    yield called
    agrees.cache_clear()


@pytest.mark.parametrize("affine", [False, True])
def test_gradients_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch, affine: bool) -> None:
    """`affine`: scales and shifts are frozen too."""
    module, x = network(affine=affine), images()
    usual = gradients(module, x)
    with kernels_in_numbers(monkeypatch) as called:
        monkeypatch.setattr(still_norms, "agrees", lambda device: True)
        with layout_kept(module, torch.device("cuda")):
            found = gradients(module, x)
            with torch.no_grad():  # nothing to gain: PyTorch's own way
                module(x)
    for one, other in zip(found, usual, strict=True):
        torch.testing.assert_close(one, other)
    assert called == ["forward", *([] if affine else ["reduce"]), "backward"]
    assert "forward" not in module[1].__dict__
    again = gradients(module, x)
    assert all((one == other).all() for one, other in zip(again, usual, strict=True))


def test_only_frozen_plain_layers_are_taken() -> None:
    class Own(nn.BatchNorm2d):
        pass

    module = nn.ModuleDict(
        {
            "frozen": nn.BatchNorm2d(4),
            "subclass": Own(4),
            "no scales": nn.BatchNorm2d(4, affine=False),
            "vectors": nn.BatchNorm1d(4),
        }
    )
    freeze_batch_norm(module, affine=False)
    module["learns"] = nn.BatchNorm2d(4)
    assert still_layers(module) == [module["frozen"]]
    assert still_layers(copy.deepcopy(module)) != []


def test_it_is_for_gpus_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    module = network()
    with layout_kept(module, torch.device("cpu")):
        assert "forward" not in module[1].__dict__
    agrees.cache_clear()
    assert not agrees(torch.device("cpu")), "whose kernels do not exist"
    with kernels_in_numbers(monkeypatch):
        assert agrees(torch.device("cpu"))
        monkeypatch.setattr(torch, "batch_norm_backward_elemt", lambda g, *others: g.contiguous())
        agrees.cache_clear()
        assert not agrees(torch.device("cpu")), "a wrong gradient is noticed"


def test_gradients_of_gradients_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than wrong: whoever needs them trains without it."""
    module, x = network(), images()
    with kernels_in_numbers(monkeypatch):
        monkeypatch.setattr(still_norms, "agrees", lambda device: True)
        with layout_kept(module, torch.device("cuda")):
            module.train()
            (first,) = torch.autograd.grad(
                module(x).square().sum(), [module[0].weight], create_graph=True
            )
            with pytest.raises(RuntimeError, match="once_differentiable"):
                first.square().sum().backward()


@on_gpu
@pytest.mark.parametrize("bf16", [False, True])
def test_on_a_gpu(bf16: bool) -> None:
    assert agrees(GPU)
    module, x = network().to(GPU), images(GPU)
    layouts: list[bool] = []
    module[1].register_full_backward_hook(
        lambda part, into, out: layouts.append(
            into[0].is_contiguous(memory_format=torch.channels_last)
        )
    )
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16):
        usual = gradients(module, x)
        with layout_kept(module, GPU):
            found = gradients(module, x)
    for one, other in zip(found, usual, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2 if bf16 else 1e-4, atol=1e-4)
    assert layouts[-1]


def test_the_reference_is_pytorchs_own() -> None:
    module, x = network(), images()
    norm = module[1]
    inside = module[0](x)
    expected = F.batch_norm(
        inside, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
    )
    assert (still_norms._usual(norm, inside) == expected).all()
