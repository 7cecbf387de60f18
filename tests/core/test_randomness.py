"""Seeds for torch: the numbers are its own generator's, and none of the caller's is taken."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from acclimate.core.randomness import own_generator
from acclimate.learn.models import backbones, build_backbone, may_draw
from acclimate.learn.models.weights import import_timm


@contextmanager
def untouched() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "small-cnn": lambda: build_backbone("small-cnn"),
    "mlp": lambda: build_backbone("mlp", in_features=3),
    "efficientnet-lite0": lambda: build_backbone("efficientnet-lite0", pretrained=False),
    "resnet50-v1": lambda: build_backbone("resnet50-v1", pretrained=False),
}


@pytest.mark.parametrize("name", ["small-cnn", "mlp"])
def test_weights_and_dropout_come_from_the_seed_alone(name: str) -> None:
    torch.manual_seed(4)
    expected, dropped = BUILDERS[name]().state_dict(), F.dropout(torch.ones(50))
    torch.manual_seed(99)
    with untouched(), own_generator(4):
        weights = BUILDERS[name]().state_dict()
        assert torch.equal(F.dropout(torch.ones(50)), dropped)
    for key, value in expected.items():
        assert torch.equal(weights[key], value), key


def test_threads_take_turns() -> None:
    def draw(seed: int) -> list[float]:
        numbers = []
        for _ in range(200):
            with own_generator(seed):
                numbers += [float(torch.rand(())) for _ in range(3)]
        return numbers

    alone = [draw(seed) for seed in range(4)]
    with untouched(), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, range(4))) == alone


@pytest.mark.parametrize("name", backbones._TABLE)
def test_our_backbones_draw_nothing_in_a_step(name: str) -> None:
    network = BUILDERS[name]().train()
    x = torch.rand(2, 3) if name == "mlp" else torch.rand(2, 3, 64, 64)
    with untouched():
        network(x)
    assert not may_draw(network)


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet", "tiny_vit_5m_224"])
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
    [(nn.Dropout(0.1), True), (nn.Dropout2d(0.0), False), (nn.RReLU(), True)],
    ids=str,
)
def test_layers_that_draw_are_known(layer: nn.Module, draws: bool) -> None:
    body = nn.Sequential(nn.Conv2d(3, 3, 1), layer)
    assert backbones._drops(body) == draws
    body.drop_rate = 0.3  # by a function of its own
    assert backbones._drops(body)
