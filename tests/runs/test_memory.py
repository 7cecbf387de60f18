"""A step that does not fit into memory is taken in micro-batches, or refused."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.core.distributed import World
from acclimate.core.errors import RunError
from acclimate.core.tensors import read_metadata
from acclimate.data.batches import Batch, Loader
from acclimate.data.manifest import Manifest
from acclimate.learn.objective import Losses
from acclimate.runs import training
from acclimate.runs.device import cpu_micro_batches, trained_backbones
from acclimate.runs.loop import Loop
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, count_writes, stable
from fixtures.objectives import on_images

Fit = Callable[..., Path]


@pytest.fixture
def fit_images(fit: Fit, tree: Path) -> Fit:
    return partial(fit, data=Manifest.from_folder(tree), device="cpu")


def run_out(*_: Any) -> Any:
    raise torch.OutOfMemoryError("too much")


def test_a_cpu_takes_large_images_a_few_at_a_time() -> None:
    def chosen(images: int, size: int = 96, device: str = "cpu", algorithm: str = "erm") -> int:
        world = World(device=torch.device(device))
        return cpu_micro_batches(on_images(algorithm), images, size, world, lines.append)

    lines = list[str]()
    assert chosen(32) == chosen(99, size=64) == chosen(99, device="cuda") == 1
    assert chosen(99, algorithm="mldg") == 1 and lines == []
    assert (chosen(33), chosen(99)) == (2, 4)
    assert "2 micro-batches" in lines[0] and "train.micro_batches=1" in lines[0]


def test_a_resumed_run_keeps_its_micro_batches_whatever_is_decided_then(
    fit_images: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_erm = partial(fit_images, "erm", **{"train.steps": 4, "train.keep": "last"})
    monkeypatch.setattr("acclimate.runs.session.cpu_micro_batches", lambda *given: 3)
    with monkeypatch.context() as patch:
        seen = count_writes(patch)
        whole = fit_erm(to="whole")
    first = next(n for n, path in enumerate(seen, 1) if path.name.startswith("checkpoint"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        count_writes(patch, die_at=first + 1)
        fit_erm(to="killed")
    checkpoint = whole.with_name("killed") / "checkpoint-main.safetensors"
    assert json.loads(read_metadata(checkpoint)["position"])["micro_batches"] == 3
    monkeypatch.setattr("acclimate.runs.session.cpu_micro_batches", lambda *given: 1)
    killed = fit_erm(to="killed")
    assert_same_weights(killed, whole)
    assert stable(killed) == stable(whole)


@pytest.mark.parametrize("where", ["step", "batches", "validation"])
def test_what_finds_too_little_memory_later_says_how_to_go_on(
    where: str, fit_images: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: the same command trains to what it would have become."""
    gradients, batches = Loop._gradients, Loader.batches

    def fails(self: Loop, batch: Batch, number: int) -> Losses:
        return run_out() if number == 4 else gradients(self, batch, number)

    def stops(self: Loader, start: int, stop: int) -> Iterator[Batch]:
        yield from batches(self, start, 4)
        run_out()

    with monkeypatch.context() as once:
        if where == "step":
            once.setattr(Loop, "_gradients", fails)
        elif where == "batches":
            once.setattr(Loader, "batches", stops)
        else:
            once.setattr(training, "validate", run_out)
        with refused(RunError, "go on at the last checkpoint", "train.micro_batches"):
            fit_images("erm")
    assert_same_weights(fit_images("erm"), fit_images("erm", to="whole"))


class Small:
    """A GPU that holds what the model's steps of so many parts take, by step, and no more."""

    def __init__(self, patch: pytest.MonkeyPatch, least: dict[int, int]) -> None:
        self.tries: list[int] = []
        usual = Loop._gradients

        def gradients(loop: Loop, batch: Batch, step: int) -> Losses:
            self.tries.append(step)
            losses = usual(loop, batch, step)  # to the end: all that it changes is to be put back
            (backbone,) = trained_backbones(loop.objective)
            return run_out() if backbone.micro_batches < least.get(step, 1) else losses

        patch.setattr(Loop, "_gradients", gradients)


@pytest.mark.parametrize("algorithm", ["erm", "group-dro"])
def test_a_first_step_becomes_what_it_would_have_in_so_many_parts(
    algorithm: str, fit_images: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same random numbers, statistics and weights of domains."""
    dropout = {"model.dropout": 0.5}
    with monkeypatch.context() as patch:
        small = Small(patch, {0: 2})
        found = fit_images(algorithm, to="found", **dropout)
    assert small.tries[:3] == [0, 0, 1]
    told = fit_images(algorithm, to="told", **dropout, **{"train.micro_batches": 2})
    assert_same_weights(found, told)


@pytest.mark.parametrize(
    ("algorithm", "least", "tries"),
    [
        ("erm", {1: 4}, [0, 1, 1, 1, 2]),
        # Two steps of the adversary, then the model's first; its second is the sixth.
        ("dann", {2: 2, 5: 4}, [0, 1, 2, 2, 3, 4, 5, 5, 6]),
    ],
)
def test_a_second_step_of_the_model_that_takes_more_gets_more_parts(
    algorithm: str,
    least: dict[int, int],
    tries: list[int],
    fit_images: Fit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"hparams.discriminator_steps": 2} if algorithm == "dann" else {}
    small, said = Small(monkeypatch, least), list[str]()
    fit_images(algorithm, say=said.append, **own, **{"train.steps": 8})
    assert small.tries[: len(tries)] == tries
    assert "in 4 micro-batches" in [line for line in said if "too small" in line][-1]


def test_weights_that_moved_are_not_moved_again(
    fit_images: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Small(monkeypatch, {})
    monkeypatch.setattr(torch.optim.Adam, "step", run_out)
    with refused(RunError, "ran out of GPU memory"):
        fit_images("erm")
    assert small.tries == [0]
