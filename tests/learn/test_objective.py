"""The seam between methods and the loop: means by group, parts of a loss, and whose turn it is."""

import pytest
import torch
from torch import nn

from acclimate.config import OptimiserConfig
from acclimate.learn.objective import Adversary, Losses, mean_by


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_means_by_group_keep_order_and_precision(kind: torch.dtype) -> None:
    values = torch.tensor([1.0, 10.0, 2.0, 20.0, 1e-3, 3.0], dtype=kind)
    found = mean_by(values, torch.tensor([7, 2, 7, 2, 4, 7]))
    assert found.dtype == kind
    torch.testing.assert_close(found, torch.tensor([15.0, 1e-3, 2.0], dtype=kind))


def test_a_loss_is_its_parts() -> None:
    weight = torch.tensor(2.0, requires_grad=True)
    whole, alone = Losses(3 * weight, 5 * weight), Losses(3 * weight)
    assert (whole.total.item(), alone.total.item()) == (16.0, 6.0)
    numbers = whole.detached()
    assert numbers.penalty is not None
    assert (numbers.risk.item(), numbers.penalty.item()) == (6.0, 10.0)
    assert not numbers.risk.requires_grad and not numbers.penalty.requires_grad
    assert alone.detached().penalty is None
    assert whole.total.requires_grad  # the parts themselves stay as they were


@pytest.mark.parametrize(("steps", "turns"), [(1, [1, 0, 1, 0, 1, 0]), (2, [1, 1, 0, 1, 1, 0])])
def test_turns_of_an_adversary(steps: int, turns: list[int]) -> None:
    adversary = Adversary(nn.Linear(1, 1), OptimiserConfig(), steps)
    assert [adversary.moves(step) for step in range(6)] == turns
