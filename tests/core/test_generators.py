"""Generators of our own: the numbers of torch's, and none of torch's taken."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acclimate.core.generators import (
    Dropout,
    dropout,
    own_generator,
    own_weights,
    turns,
    weights_to_come,
)
from acclimate.learn.models import backbones, build_backbone, list_backbones, may_draw
from acclimate.learn.models.weights import import_timm


@contextmanager
def untouched() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("share", (0.0, 0.3, 0.5))
@pytest.mark.parametrize("kind", (torch.float32, torch.bfloat16))
def test_dropout_is_torchs_own(share: float, kind: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 700).view(70, 10).to(kind)
    torch.manual_seed(3)
    expected = F.dropout(x, share)
    with untouched(), own_generator(3):
        layer = Dropout(share)
        assert torch.equal(layer(x), expected)
        assert torch.equal(layer.eval()(x), x)
    assert torch.equal(dropout(x, share, training=False), x)


def test_dropout_outside_draws_as_torch_does() -> None:
    torch.manual_seed(3)
    expected = F.dropout(torch.ones(50), 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(torch.ones(50), 0.5, training=True), expected)


def _several() -> nn.Module:
    network = nn.Sequential(
        nn.Linear(5, 7), nn.Conv2d(3, 4, 3), nn.Embedding(4, 3), nn.LSTM(3, 4), nn.Bilinear(2, 3, 4)
    )
    network.register_buffer("noise", torch.rand(3) + torch.randn(3) + torch.randperm(3))
    fills: tuple[Callable[[Tensor], object], ...] = (
        nn.init.trunc_normal_,
        nn.init.xavier_normal_,
        nn.init.kaiming_normal_,
        nn.init.orthogonal_,
        lambda weights: weights.bernoulli_(0.5),
        lambda weights: weights.exponential_(),
    )
    for number, fill in enumerate(fills):
        weights = torch.empty(4, 5)
        fill(weights)
        network.register_buffer(f"filled_{number}", weights)
    return network


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "layers": _several,
    "small-cnn": lambda: build_backbone("small-cnn"),
    "mlp": lambda: build_backbone("mlp", in_features=3),
    "efficientnet-lite0": lambda: build_backbone("efficientnet-lite0", pretrained=False),
    "resnet50-v1": lambda: build_backbone("resnet50-v1", pretrained=False),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_weights_are_those_that_torch_would_draw(name: str) -> None:
    build = BUILDERS[name]
    torch.manual_seed(4)
    expected, after = build().state_dict(), torch.rand(3)
    torch.manual_seed(99)
    with untouched(), own_weights(4):
        found = build().state_dict()
        assert torch.equal(torch.rand(3), after)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize("row", list_backbones(), ids=lambda row: row["name"])
def test_our_backbones_draw_nothing_in_a_step(row: dict[str, str]) -> None:
    network = BUILDERS[row["name"]]().train()
    x = torch.rand(2, 3) if row["name"] == "mlp" else torch.rand(2, 3, 64, 64)
    with untouched():
        network(x)
    assert not may_draw(network)


TIMM = [
    "test_vit",
    "test_resnet",
    "test_efficientnet",
    "test_convnext",
    "resnet18",
    "tiny_vit_5m_224",
]


@pytest.mark.parametrize("name", TIMM)
def test_networks_of_timm_draw_only_where_they_drop(name: str) -> None:
    side = 224 if "tiny" in name else 160
    x = torch.rand(2, 3, side, side)
    network = build_backbone(name, pretrained=False).train()
    if not may_draw(network):
        with untouched():
            network(x)
    else:
        assert name == "tiny_vit_5m_224", "which drops paths unless told otherwise"
    dropping = import_timm().create_model(name, num_classes=0, drop_path_rate=0.5).train()
    assert backbones._drops(dropping)


@pytest.mark.parametrize(
    ("layer", "draws"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout2d(0.0), False),
        (nn.RReLU(), True),
        (nn.BatchNorm2d(3), False),
    ],
    ids=str,
)
def test_layers_that_draw_are_known(layer: nn.Module, draws: bool) -> None:
    body = nn.Sequential(nn.Conv2d(3, 3, 1), layer)
    assert backbones._drops(body) == draws
    body.drop_rate = 0.3  # by a function of its own
    assert backbones._drops(body)


class Layers(nn.Module):
    """Parameters by each way of drawing them, and what no file has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.token = nn.Parameter(torch.zeros(5))
        nn.init.normal_(self.token)
        nn.init.xavier_uniform_(self.linear.weight)
        self.register_buffer("drawn", torch.empty(6).normal_(), persistent=False)
        self.register_buffer("places", torch.arange(7), persistent=False)
        self.norm = nn.BatchNorm1d(2)


def test_weights_to_come_are_not_drawn_and_all_else_is_as_ever() -> None:
    nothing = mock.Mock(side_effect=AssertionError("a parameter was drawn"))
    with untouched(), own_weights(4), weights_to_come():
        into = torch.empty(6).normal_()
    with untouched(), own_weights(4), weights_to_come():
        found = Layers()
        with mock.patch.object(torch.Tensor, "uniform_", nothing):
            nn.Conv2d(3, 4, 3)
    assert torch.equal(found.token, torch.zeros(5))
    assert torch.equal(found.drawn, into)
    assert torch.equal(found.places, torch.arange(7))
    assert torch.equal(found.norm.weight, torch.ones(2))
    assert not torch.equal(Layers().token, torch.zeros(5))  # outside they draw


@pytest.mark.parametrize("name", [*BUILDERS, "test_vit"])
def test_a_network_that_is_filled_is_the_one_that_was(name: str) -> None:
    build = BUILDERS.get(name, lambda: build_backbone(name, pretrained=False))
    with own_weights(4):
        expected = build()
    with own_weights(0), weights_to_come():
        found = build()
    found.load_state_dict(expected.state_dict())
    for kind in ("named_parameters", "named_buffers"):
        of_both = zip(getattr(found, kind)(), getattr(expected, kind)(), strict=True)
        for (key, value), (same, other) in of_both:
            assert key == same
            assert torch.equal(value, other), key


def test_layers_of_others_draw_in_turn() -> None:
    """Whatever they draw by, it goes on from the thread's own generator."""
    torch.manual_seed(4)
    expected, after = import_timm().create_model("test_vit", num_classes=0), torch.rand(3)
    with untouched(), own_weights(4):
        found = build_backbone("test_vit", pretrained=False)
        assert torch.equal(torch.rand(3), after)
    assert not may_draw(nn.Sequential(found))
    for key, value in expected.state_dict().items():
        assert torch.equal(found.body.state_dict()[key], value), key


def test_in_a_turn_torchs_generator_is_one_threads_alone() -> None:
    def draw(seed: int) -> list[float]:
        found = []
        for _ in range(200):
            with turns(seed):
                found += [float(torch.rand(())) for _ in range(3)]
        return found

    alone = [draw(seed) for seed in range(4)]
    with untouched(), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, range(4))) == alone


def test_a_turn_goes_on_from_the_threads_own_generator() -> None:
    torch.manual_seed(6)
    expected = torch.rand(6)
    with untouched(), own_weights(6):
        first = torch.rand(2)
        with turns():
            middle = torch.rand(2)
        assert torch.equal(torch.cat([first, middle, torch.rand(2)]), expected)
