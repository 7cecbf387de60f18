"""Frozen batch norm on a GPU: PyTorch's own numbers, in the layout of the input."""

import copy

import pytest
import torch
from torch import nn

from acclimate.learn.models.backbones import freeze_batch_norm, keep_layout


def frozen(device: str, *, affine: bool) -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm2d(16), nn.Flatten()).to(device)
    for number in network.state_dict().values():
        if number.is_floating_point():
            number.uniform_(0.5, 1.5)
    freeze_batch_norm(network, affine=affine)
    return network.train()


def test_a_cpu_keeps_pytorchs_own() -> None:
    network = frozen("cpu", affine=False)
    with keep_layout(network):
        assert "forward" not in network[0].__dict__


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("affine", [False, True], ids=["scales learned", "all frozen"])
@pytest.mark.parametrize(("kind", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_equals_pytorchs_own(affine: bool, kind: torch.dtype, near: float) -> None:
    network = frozen("cuda", affine=affine)
    before = copy.deepcopy(network.state_dict())
    start = torch.rand(4, 16, 6, 6, device="cuda").to(kind, memory_format=torch.channels_last)
    outcomes = []
    for way in (False, True):
        x = start.clone().requires_grad_()
        wanted = [x, *(p for p in network.parameters() if p.requires_grad)]
        if way:
            with keep_layout(network):
                y = network(x)
        else:
            y = network(x)
        gradients = torch.autograd.grad(y, wanted, torch.linspace(0, 1, y.numel()).view_as(y).to(y))
        outcomes.append((y, *gradients))
    assert gradients[0].is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, rtol=near, atol=near)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert "forward" not in network[0].__dict__
