"""Compiled backbones: where they are used, where not and why, and that trying leaves no trace."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.learn.models import Backbone
from acclimate.runs import compiling
from acclimate.runs.compiling import Wish, compiled
from fixtures.objectives import on_images

GPU = World(device=torch.device("cuda"))
WISH = Wish("auto", compiling.LEAST_STEPS, rows=4, parts=2, size=16, bf16=False)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def wish(lines: list[str]) -> Wish:
    return replace(WISH, say=lines.append)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Images that a compiled backbone saw; it works on the CPU, and compiles nothing."""
    seen: list[int] = []

    def make(backbone: Backbone) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            seen.append(len(x))
            return backbone.normalised_body(x)

        return run

    tried = compiling._tried
    monkeypatch.setattr(compiling, "compile_body", make)
    monkeypatch.setattr(compiling, "next_step", lambda: None)
    monkeypatch.setattr(
        compiling,
        "_tried",
        lambda backbone, wish, device: tried(backbone, wish, torch.device("cpu")),
    )
    return seen


def test_it_is_used_in_training_alone_and_only_meanwhile(
    passes: list[int], wish: Wish, lines: list[str]
) -> None:
    learned = on_images()
    (backbone,) = compiling.trained_backbones(learned)
    x = torch.rand(4, 3, 16, 16)
    with compiled(learned, wish, GPU) as faster:
        assert faster
        assert passes == [2, 2, 2]  # the trial: parts of a batch
        learned.train()
        found = backbone(x)
        assert passes[3:] == [4]
        with torch.no_grad():
            backbone(x)
        learned.eval()
        backbone(x)
        assert passes[3:] == [4]
    learned.train()
    assert torch.equal(backbone(x), found)
    assert passes[3:] == [4]
    assert backbone.stand_in is None and not lines


def test_trying_leaves_no_trace(passes: list[int], wish: Wish) -> None:
    learned = on_images()
    learned.eval()
    before = {name: value.clone() for name, value in learned.state_dict().items()}
    random = torch.get_rng_state()
    with compiled(learned, wish, GPU):
        assert list(before) == list(learned.state_dict())
    assert passes
    assert all(torch.equal(before[name], value) for name, value in learned.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(part.training for part in learned.modules())
    assert all(parameter.grad is None for parameter in learned.parameters())


def test_a_compiler_that_fails_is_done_without(
    passes: list[int], wish: Wish, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(backbone: Backbone) -> Callable[[Tensor], Tensor]:
        raise RuntimeError("no C++\ncompiler " + "x" * 300)

    monkeypatch.setattr(compiling, "compile_body", broken)
    learned = on_images()
    with compiled(learned, wish, GPU) as faster:
        assert not faster
        learned.train()
        compiling.trained_backbones(learned)[0](torch.rand(4, 3, 16, 16))
    assert lines == [f"not compiled: no C++ compiler {'x' * 184}…"]


@pytest.mark.parametrize(
    ("algorithm", "world", "why"),
    [
        ("erm", World(), "that is for GPUs"),
        ("erm", replace(GPU, size=2), "several processes share the run"),
        (
            "mldg",
            GPU,
            "the algorithm takes gradients of gradients, which compiled networks do not have",
        ),
    ],
)
def test_where_it_cannot_be(
    passes: list[int], wish: Wish, lines: list[str], algorithm: str, world: World, why: str
) -> None:
    for setting in ("auto", "on", "off"):
        with compiled(on_images(algorithm), replace(wish, setting=setting), world) as faster:
            assert not faster
    assert lines == [f"not compiled: {why}"]  # only who asked for it is told
    assert not passes


def test_short_runs_are_not_worth_it(passes: list[int], wish: Wish, lines: list[str]) -> None:
    short = replace(wish, steps=compiling.LEAST_STEPS - 1)
    with compiled(on_images(), short, GPU) as faster:
        assert not faster
    with compiled(on_images(), replace(short, setting="on"), GPU) as faster:
        assert faster
    assert not lines


def test_a_frozen_backbone_has_nothing_to_compile(wish: Wish, lines: list[str]) -> None:
    learned = on_images()
    for parameter in compiling.trained_backbones(learned)[0].parameters():
        parameter.requires_grad_(False)
    with compiled(learned, replace(wish, setting="on"), GPU) as faster:
        assert not faster
    assert lines == ["not compiled: 0 backbones learn from images, not one"]
