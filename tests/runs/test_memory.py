"""A step that does not fit into memory is taken in micro-batches, or refused."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.config import RunConfig
from acclimate.core.distributed import World
from acclimate.core.errors import RunError
from acclimate.core.tensors import read_metadata
from acclimate.data.batches import Batch, Loader
from acclimate.data.manifest import Manifest
from acclimate.learn.objective import Losses
from acclimate.rehearse.training import train
from acclimate.runs import training
from acclimate.runs.device import cpu_micro_batches, trained_backbones
from acclimate.runs.loop import Loop
from fixtures.interruption import Killed, assert_same_weights, count_writes, stable, weights
from fixtures.objectives import on_images

Tiny = Callable[..., RunConfig]
SMALL_RUN: dict[str, Any] = {
    "embedding.steps": 4,
    "train.steps": 4,
    "train.checkpoint_every": 2,
    "train.keep": "last",
}


def test_a_cpu_takes_large_images_a_few_at_a_time() -> None:
    def chosen(images: int, size: int = 96, device: str = "cpu", algorithm: str = "erm") -> int:
        world = World(device=torch.device(device))
        return cpu_micro_batches(on_images(algorithm), images, size, world, lines.append)

    lines = list[str]()
    assert chosen(32) == chosen(99, size=64) == chosen(99, device="cuda") == 1
    assert chosen(99, algorithm="mldg") == 1 and lines == []
    assert (chosen(33), chosen(99)) == (2, 4)
    assert "2 micro-batches" in lines[0] and "train.micro_batches=1" in lines[0]


def test_a_run_in_micro_batches_ends_as_one_without(tree: Path, tiny: Tiny, tmp_path: Path) -> None:
    sgd = {f"{s}.optimiser.{k}": v for s in ("train", "embedding") for k, v in
           {"name": "sgd", "lr": 0.01}.items()}  # fmt: skip
    data = Manifest.from_folder(tree)
    for name, count in {"whole": 1, "divided": 3}.items():
        config = tiny("da-coral", **SMALL_RUN, **sgd, **{"train.micro_batches": count})
        train(config, data, tmp_path / name, device="cpu")
    whole, divided = weights(tmp_path / "whole"), weights(tmp_path / "divided")
    assert any(not torch.equal(whole[name], divided[name]) for name in whole)
    for name, value in whole.items():
        torch.testing.assert_close(divided[name], value, rtol=1e-3, atol=1e-5, msg=name)


def test_a_resumed_run_keeps_its_micro_batches_whatever_is_free(
    tree: Path, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = tiny("erm", **SMALL_RUN), Manifest.from_folder(tree)
    monkeypatch.setattr("acclimate.runs.session.cpu_micro_batches", lambda *given: 3)
    with monkeypatch.context() as patch:
        seen = count_writes(patch)
        train(config, data, tmp_path / "whole", device="cpu")
    first = next(n for n, path in enumerate(seen, 1) if path.name.startswith("checkpoint"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        count_writes(patch, die_at=first + 1)
        train(config, data, tmp_path / "killed", device="cpu")
    checkpoint = tmp_path / "killed" / "checkpoint-main.safetensors"
    assert json.loads(read_metadata(checkpoint)["position"])["micro_batches"] == 3
    monkeypatch.setattr("acclimate.runs.session.cpu_micro_batches", lambda *given: 1)
    train(config, data, tmp_path / "killed", device="cpu")
    assert_same_weights(tmp_path / "killed", tmp_path / "whole")
    assert stable(tmp_path / "killed") == stable(tmp_path / "whole")


@pytest.mark.parametrize("where", ["step", "batches", "validation"])
def test_what_finds_too_little_memory_later_says_how_to_go_on(
    where: str, tiny: Tiny, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: the same command trains to what it would have become."""
    config, data = tiny("erm"), Manifest.from_folder(tree)
    gradients, batches = Loop._gradients, Loader.batches

    def fails(self: Loop, batch: Batch, number: int) -> list[Losses]:
        if number == 4:
            _fail()
        return gradients(self, batch, number)

    def runs_out(self: Loader, start: int, stop: int) -> Iterator[Batch]:
        yield from batches(self, start, 4)
        _fail()

    with monkeypatch.context() as once:
        if where == "step":
            once.setattr(Loop, "_gradients", fails)
        elif where == "batches":
            once.setattr(Loader, "batches", runs_out)
        else:
            once.setattr(training, "validate", lambda subject, step: _fail())
        with pytest.raises(RunError, match="go on at the last checkpoint"):
            train(config, data, tmp_path / "run", device="cpu")
    train(config, data, tmp_path / "run", device="cpu")
    train(config, data, tmp_path / "whole", device="cpu")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


class Small:
    """A GPU that holds what the model's steps of so many parts take, by step, and no more."""

    def __init__(self, patch: pytest.MonkeyPatch, least: dict[int, int]) -> None:
        self.tries: list[int] = []
        usual = Loop._gradients

        def gradients(loop: Loop, batch: Batch, step: int) -> list[Losses]:
            self.tries.append(step)
            found = usual(loop, batch, step)  # to the end: all that it changes is to be put back
            (backbone,) = trained_backbones(loop.objective)
            if backbone.micro_batches < least.get(step, 1):
                _fail()
            return found

        patch.setattr(Loop, "_gradients", gradients)


@pytest.mark.parametrize("algorithm", ["erm", "group-dro"])
def test_a_first_step_becomes_what_it_would_have_in_so_many_parts(
    algorithm: str, tiny: Tiny, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same random numbers, statistics and weights of domains."""
    data, dropout = Manifest.from_folder(tree), {"model.dropout": 0.5}
    with monkeypatch.context() as patch:
        small = Small(patch, {0: 2})
        train(tiny(algorithm, **dropout), data, tmp_path / "found", device="cpu")
    assert small.tries[:3] == [0, 0, 1]
    train(
        tiny(algorithm, **dropout, **{"train.micro_batches": 2}),
        data,
        tmp_path / "told",
        device="cpu",
    )
    assert_same_weights(tmp_path / "found", tmp_path / "told")


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
    tiny: Tiny,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"hparams.discriminator_steps": 2} if algorithm == "dann" else {}
    small, said = Small(monkeypatch, least), list[str]()
    config = tiny(algorithm, **own, **{"train.steps": 8})
    train(config, Manifest.from_folder(tree), tmp_path, device="cpu", say=said.append)
    assert small.tries[: len(tries)] == tries
    assert "in 4 micro-batches" in [line for line in said if "too small" in line][-1]


def test_weights_that_moved_are_not_moved_again(
    tiny: Tiny, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Small(monkeypatch, {})
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: _fail())
    with pytest.raises(RunError, match="ran out of GPU memory"):
        train(tiny("erm"), Manifest.from_folder(tree), tmp_path, device="cpu")
    assert small.tries == [0]


def _fail() -> Any:
    raise torch.OutOfMemoryError("too much")
