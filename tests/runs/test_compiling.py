"""Faster steps: where backbones are graphed or compiled, where not and why, and that whatever
fails leaves training as it is."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from acclimate.config import TrainConfig
from acclimate.core.distributed import World
from acclimate.learn.models import Backbone
from acclimate.runs import device
from acclimate.runs.device import COMPILED_FROM, GRAPHED_FROM, accelerated, trained_backbones
from fixtures.gpu import on_gpu
from fixtures.objectives import on_images

GPU = World(device=torch.device("cuda"))
X = torch.rand(4, 3, 16, 16)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way batches took; the ways work on the CPU, and move statistics when they are made."""
    seen: list[str] = []

    def make(way: str) -> Callable[[Backbone, Tensor], Callable[[Tensor], Tensor]]:
        def made(backbone: Backbone, x: Tensor) -> Callable[[Tensor], Tensor]:
            backbone.mean.add_(1)

            def run(x: Tensor) -> Tensor:
                seen.append(way)
                return backbone.normalised_body(x)

            return run

        return made

    monkeypatch.setattr(device, "graphed", make("graphed"))
    monkeypatch.setattr(device, "compiled", make("compiled"))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    return seen


@pytest.mark.parametrize(
    ("setting", "steps", "ways"),
    [
        ("auto", GRAPHED_FROM, ["graphed"] * 2),  # the first pass is eager
        ("auto", COMPILED_FROM, ["compiled"] * 3),
        ("on", 1, ["compiled"] * 3),
    ],
)
def test_it_is_used_in_training_alone_and_only_meanwhile(
    setting: str, steps: int, ways: list[str], passes: list[str]
) -> None:
    learned, lines = on_images(), list[str]()
    (backbone,) = trained_backbones(learned)
    before = {name: value.clone() for name, value in learned.state_dict().items()}
    with accelerated(learned, setting, steps, GPU, lines.append) as faster:
        assert faster is not None
        learned.train()
        for _ in range(3):
            faster.begin_step()
            features = backbone(X)
        with torch.no_grad():
            backbone(X)
        learned.eval()
        backbone(X)
        assert list(before) == list(learned.state_dict())
    assert passes == ways and not lines
    assert backbone.stand_in is None
    assert torch.equal(backbone.train()(X), features) and passes == ways
    assert torch.equal(backbone.mean, before["predictor.backbone.mean"])


def test_a_second_pass_of_a_step_and_other_shapes_are_eager(passes: list[str]) -> None:
    """A graph's memory holds one pass until its gradients are taken."""
    learned = on_images()
    (backbone,) = trained_backbones(learned)
    with accelerated(learned.train(), "auto", GRAPHED_FROM, GPU, print) as faster:
        assert faster is not None
        for _ in range(2):
            faster.begin_step()
            backbone(X)
            backbone(X)
        assert passes == ["graphed", "graphed"]
        faster.begin_step()
        backbone(X[:2])
        assert len(passes) == 2


def test_what_fails_is_done_without(passes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(backbone: Backbone, x: Tensor) -> Callable[[Tensor], Tensor]:
        raise RuntimeError("no C++\ncompiler " + "x" * 300)

    monkeypatch.setattr(device, "compiled", broken)
    learned, lines = on_images(), list[str]()
    with accelerated(learned.train(), "on", 5, GPU, lines.append):
        trained_backbones(learned)[0](X)
        trained_backbones(learned)[0](X)
    assert len(lines) == 1 and "no C++ compiler" in lines[0] and len(lines[0]) < 250


@pytest.mark.parametrize(
    ("algorithm", "world"), [("erm", World()), ("erm", replace(GPU, size=2)), ("mldg", GPU)]
)
def test_where_it_cannot_be(algorithm: str, world: World, passes: list[str]) -> None:
    lines: list[str] = []
    for setting in ("auto", "on", "off"):
        with accelerated(on_images(algorithm), setting, COMPILED_FROM, world, lines.append) as it:
            assert it is None
    assert len(lines) == 1  # only who asked for it is told


def test_short_runs_and_frozen_backbones_are_left_alone() -> None:
    learned, lines = on_images(), list[str]()
    with accelerated(learned, "auto", GRAPHED_FROM - 1, GPU, lines.append) as faster:
        assert faster is None
    for parameter in trained_backbones(learned)[0].parameters():
        parameter.requires_grad_(False)
    with accelerated(learned, "on", 1, GPU, lines.append) as faster:
        assert faster is None
    assert len(lines) == 1


def test_the_setting_says_from_how_many_steps_on() -> None:
    about = TrainConfig.__dataclass_fields__["compile"].metadata["about"]
    assert f" {GRAPHED_FROM} " in about and f" {COMPILED_FROM};" in about


@on_gpu
def test_a_graph_gives_the_eager_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    learned = on_images().cuda().train()
    (backbone,) = trained_backbones(learned)
    x, found = torch.rand(8, 3, 32, 32, device="cuda"), []
    for setting in ("off", "auto"):
        with accelerated(learned, setting, GRAPHED_FROM, GPU, print) as faster:
            for _ in range(3):
                if faster is not None:
                    faster.begin_step()
                learned.zero_grad(set_to_none=True)
                backbone(x).square().sum().backward()
            grads = [p.grad for p in backbone.parameters()]
            found.append([g.clone() for g in grads if g is not None])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
