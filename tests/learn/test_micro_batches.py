"""A batch in pieces is the batch: rows, losses and gradients; what is kept for them is less."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from acclimate.config import EmbeddingConfig
from acclimate.learn.algorithms import choose, names
from acclimate.learn.embeddings import EMBEDDINGS
from acclimate.learn.models.backbones import BATCH, SMALL, Backbone, Preprocess, infer
from acclimate.learn.objective import Objective
from fixtures.gpu import on_gpu
from fixtures.objectives import MU, batch_for, make_algorithm, make_embedding

DIVISIBLE = [name for name in names() if choose(name).build.divisible]


def learned(objective: Objective, parts: int, name: str) -> tuple[list[float], list[Tensor]]:
    """Losses of three steps, two of which are each side's of an adversary, and the weights then."""
    backbones = [part for part in objective.modules() if isinstance(part, Backbone)]
    for backbone in backbones:
        backbone.micro_batches = parts
    optimiser = torch.optim.SGD(objective.parameters(), lr=0.1)
    objective.train()
    losses = []
    for step in range(3):
        optimiser.zero_grad()
        found = objective(batch_for(name, per_domain=8), step)
        found.total.backward()
        optimiser.step()
        losses.append(found.total.item())
    return losses, [value.clone() for value in objective.state_dict().values()]


def assert_parts_do_not_matter(make: Callable[[], Objective], name: str) -> None:
    whole, weights = learned(make(), 1, name)
    for parts in (2, 4):
        losses, found = learned(make(), parts, name)
        assert losses == pytest.approx(whole, rel=1e-4)
        for one, other in zip(weights, found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DIVISIBLE)
def test_losses_and_weights_of_algorithms(name: str) -> None:
    settings = {"penalty": 0.1} if name.endswith("mmd") else {}
    assert_parts_do_not_matter(lambda: make_algorithm(name, **settings), name)


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_losses_and_weights_of_embeddings(name: str) -> None:
    config = EmbeddingConfig(dim=MU)
    assert_parts_do_not_matter(lambda: make_embedding(name, config), "erm")


def test_only_a_step_within_a_step_cannot_be_divided() -> None:
    assert {*names()} - {*DIVISIBLE} == {"mldg", "da-mldg", "fish", "da-fish"}


def seeing(*layers: nn.Module) -> tuple[Backbone, list[int]]:
    """A backbone, and how many images come at a time."""
    body, counts = nn.Sequential(*layers), list[int]()
    body.register_forward_pre_hook(lambda _, given: counts.append(len(given[0])))
    return Backbone(body, 4, Preprocess((0.5,) * 3, (0.25,) * 3, 96)), counts


def test_each_part_is_worked_out_twice_and_counts_once_for_statistics() -> None:
    norm = nn.BatchNorm2d(4)
    first = nn.Conv2d(3, 4, 3)
    backbone, counts = seeing(first, norm, nn.Flatten())
    backbone.micro_batches = 3
    x = torch.rand(8, 3, 5, 5)
    backbone.train()(x).sum().backward()
    assert sorted(counts) == [2, 2, 3, 3, 3, 3]
    assert norm.num_batches_tracked.item() == 3
    with torch.no_grad():
        once = nn.BatchNorm2d(4).train()
        for part in range(3):
            once(first(((x - 0.5) / 0.25)[part::3]))
    torch.testing.assert_close(norm.running_mean, once.running_mean)


def test_rows_stay_where_they_are() -> None:
    backbone, _ = seeing(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.rand(7, 3, 5, 5)
    whole = backbone.train()(x)
    for parts in (2, 3, 9):
        backbone.micro_batches = parts
        torch.testing.assert_close(backbone(x), whole)


@pytest.mark.parametrize(
    ("count", "side", "expected"),
    [
        (BATCH + 1, SMALL + 1, [17, 16]),
        (2 * BATCH, SMALL + 1, [BATCH, BATCH]),
        (BATCH, SMALL + 1, [BATCH]),
        (BATCH + 1, SMALL, [BATCH + 1]),
    ],
)
def test_large_images_come_few_at_a_time(count: int, side: int, expected: list[int]) -> None:
    backbone, counts = seeing(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.rand(count, 3, side, side)
    with torch.no_grad():
        found = backbone.eval()(x)
    assert counts == expected
    torch.testing.assert_close(found, ((x - 0.5) / 0.25).mean((2, 3)))


def test_not_where_they_are_normalised_by_each_other_or_learned_from() -> None:
    norm = nn.BatchNorm2d(3)
    backbone, counts = seeing(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    backbone.eval()
    norm.training = True  # as for statistics of a new domain
    x = torch.rand(BATCH + 1, 3, SMALL + 1, SMALL + 1)
    with torch.no_grad():
        backbone(x)
    norm.training = False
    backbone(x)
    assert counts == [BATCH + 1, BATCH + 1]


class Small(nn.Module):
    """Has room for so many images."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.counts = room, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.counts.append(len(x))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("too much")
        return x.mean((2, 3))


@torch.no_grad()
def test_a_batch_that_runs_out_of_memory_is_halved() -> None:
    body, x = Small(2), torch.rand(7, 3, 5, 5)
    assert torch.equal(infer(body, body.eval(), x), x.mean((2, 3)))
    assert body.counts == [7, 4, 2, 2, 3, 2, 1]
    with pytest.raises(torch.OutOfMemoryError):
        infer(Small(0), Small(0).eval(), x)
    body.counts.clear()
    with pytest.raises(torch.OutOfMemoryError):  # each would be normalised by other ones
        infer(body, body.train(), x)
    assert body.counts == [7]


@on_gpu
def test_a_backbone_on_a_gpu_passes_as_many_as_fit() -> None:
    body, x = Small(2), torch.rand(7, 3, 5, 5, device="cuda")
    backbone, _ = seeing(body)
    with torch.no_grad():
        found = backbone.cuda().eval()(x)
    assert max(body.counts[-2:]) <= 2
    torch.testing.assert_close(found, ((x - 0.5) / 0.25).mean((2, 3)))
