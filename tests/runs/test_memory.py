"""What a step takes is tried; a batch that does not fit is worked off in parts, or refused."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from acclimate.config import RunConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, RunError
from acclimate.data.batches import Batch, Loader
from acclimate.data.manifest import Manifest
from acclimate.learn.model import build_networks
from acclimate.learn.models import Backbone
from acclimate.learn.objective import Losses, Objective
from acclimate.runs import loop as module
from acclimate.runs import memory, trial
from acclimate.runs.checkpoint import parts_of
from acclimate.runs.compiling import trained_backbones
from acclimate.runs.loop import Loop, Phase
from acclimate.runs.memory import Stage, fitting_parts
from acclimate.runs.optimisation import Stepper
from acclimate.runs.parts import Parts
from acclimate.runs.plan import make_plan
from acclimate.runs.scoring import Evaluator
from acclimate.runs.training import train
from acclimate.runs.trial import Need, tried
from fixtures.interruption import Killed, assert_same_weights, count_writes, stable, weights

Tiny = Callable[..., RunConfig]
MIB, GIB = 1 << 20, 1 << 30
LARGE: dict[str, Any] = {
    "model.backbone": "small-cnn",
    "model.pretrained": False,
    "data.image_size": 224,
    "embedding.domains_per_step": 4,
    "embedding.per_domain": 32,
    "train.per_domain": 32,
}


def told(patch: pytest.MonkeyPatch, *, free: float | None, each: float = 75.0) -> list[Any]:
    """Let the system have `free` GiB, and a trial find `each` MiB for an image; what is tried."""
    asked: list[Any] = []

    def trial(config: RunConfig, *sizes: int, embedding: bool, bf16: bool) -> Need:
        asked.append((*sizes, embedding, bf16))
        return Need(0.0, each * MIB)

    patch.setattr(memory, "available", lambda: None if free is None else int(free * GIB))
    patch.setattr(memory, "tried", trial)
    patch.setattr(memory, "LOADED", 0)
    patch.setattr(memory, "BESIDE", 0)
    patch.setattr(memory, "SCORED", 0)
    return asked


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Four domains of large images, of which only the size is ever looked at."""
    root = tmp_path_factory.mktemp("large")
    for domain in "abcd":
        for label in "xy":
            for number in range(2):
                path = root / domain / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (100, 80), (number, 0, 0)).save(path)
    return Manifest.from_folder(root)


def divided(
    config: RunConfig, data: Manifest, world: World | None = None, size: int = 224
) -> tuple[Any, list[str]]:
    """In how many parts, and what was said about it."""
    plan, said = make_plan(config, data, device="cpu"), list[str]()
    counts = len(plan.classes), len(plan.train_domains), None
    both = build_networks(plan.config, *counts, pretrained=False)
    networks = [one for one in both if one is not None]
    found = fitting_parts(plan, world or World(), size, *networks, bf16=False, say=said.append)
    return found, said


def test_as_many_parts_as_fit(large: Manifest, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch, free=5.0)
    # 75 MiB an image: 128 images take 9.4 GiB, 64 take 4.7; Step A has its images twice.
    found, said = divided(tiny("da-coral", **LARGE), large)
    assert found == {"Step A": 4, "Step B": 2}
    assert asked == [(2, 4, 224, False, False), (2, 4, 224, True, False)]
    assert said[0] == (
        "a batch of Step B, 128 images of 224 px, needs about 9.4 GiB and 5.0 GiB are free: the "
        "network works them off in 2 parts, each worked out twice; losses are those of the whole "
        "batch, and batch norm, where it learns statistics, takes each part's"
    )
    told(monkeypatch, free=9.375)
    assert divided(tiny("erm", **LARGE), large) == ({"Step B": 1}, [])
    told(monkeypatch, free=9.37)
    assert divided(tiny("erm", **LARGE), large)[0] == {"Step B": 2}


def test_what_is_asked_for_is_not_tried(
    large: Manifest, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = told(monkeypatch, free=0.0)
    found, said = divided(tiny("da-erm", **LARGE, **{"train.parts": 3}), large)
    assert (found, said, asked) == ({"Step A": 3, "Step B": 3}, [], [])
    assert divided(tiny("da-erm", **LARGE), large, size=32)[0] == {"Step A": 1, "Step B": 1}
    assert asked == []  # a mebibyte and a half is too little to be tried
    asked = told(monkeypatch, free=20.0)
    divided(tiny("erm", **LARGE | {"train.per_domain": 1}), large)
    divided(tiny("erm", **LARGE | {"train.per_domain": 256}), large, size=64)
    assert [size for _, _, size, *_ in asked] == [224, 64]
    told(monkeypatch, free=None)
    assert divided(tiny("erm", **LARGE), large)[0] == {"Step B": 1}  # the system does not say


def refusal(config: RunConfig, data: Manifest, out: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        train(config, data, out, device="cpu")
    assert [path.name for path in out.glob("*")] == []
    return str(refused.value)


def test_what_cannot_be_divided_is_refused_with_what_would_fit(
    large: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, free=5.0)
    assert refusal(tiny("mldg", **LARGE), large, tmp_path / "run") == (
        "a batch of Step B, 128 images of 224 px, needs about 9.4 GiB and 5.0 GiB are free, and "
        "mldg cannot work it off in parts; lower train.per_domain from 32 (17 would fit), or train "
        "on a GPU"
    )
    asked = LARGE | {"train.parts": 2}
    assert refusal(tiny("mldg", **asked), large, tmp_path / "run") == (
        "train.parts is 2, and mldg cannot work a batch off in parts; leave train.parts at 0"
    )


def test_where_even_the_least_does_not_fit(
    large: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, free=0.1)
    assert refusal(tiny("erm", **LARGE), large, tmp_path / "run") == (
        "a batch of Step B, 128 images of 224 px, needs about 9.4 GiB and 0.1 GiB are free; lower "
        "data.image_size from 224, or train on a GPU"
    )


def test_smaller_batches_are_ones_that_can_be_shared() -> None:
    world = World(0, 2, torch.device("cpu"))
    stage = Stage("Step A", "embedding.per_domain", True, 4, 24, 2, 3, copies=2)
    assert stage.images(24, world) == 32  # 2 · 4 · 24 images for 2 processes, in 3 parts
    assert list(stage.smaller(world)) == [18, 12, 6]
    lone = Stage("Step A", "embedding.per_domain", True, 4, 5, 2, 1)
    assert list(lone.smaller(World())) == [4, 3, 2]
    assert stage.parts(Need(10, 1), 20, world) == 4  # 8 images and what is fixed are 18
    assert stage.parts(Need(10, 1), 11.9, world) is None  # parts of one image there are none


def test_scoring_may_take_more_than_steps() -> None:
    need = Need(10, 1, scoring=25)
    assert [need.of(images) for images in (1, 15, 16)] == [25, 25, 26]
    stage = Stage("Step B", "train.per_domain", False, 4, 8, 1, 1)
    assert stage.parts(need, 25, World()) == 3  # of 11 images at most
    assert stage.parts(need, 24, World()) is None


def test_what_scoring_takes_is_added_up(
    large: Manifest, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "tried", lambda *_, **__: Need(1.0, 2.0, 3.0))
    monkeypatch.setattr(memory, "BESIDE", 100)
    plan = make_plan(tiny("erm", **LARGE), large, device="cpu")
    stage = Stage("Step B", "train.per_domain", False, 4, 8, 1, 1)
    found = memory.measured(plan, stage, 10, bf16=False)
    # Four batches of 300 numbers ready; a domain's 4 images at one byte twice and at four.
    assert found == Need(101.0, 2.0 + 4 * 4 * 300, 103.0 + 4 * 6 * 300)
    monkeypatch.setattr(memory, "EVALUATION_BATCH", 3)
    found = memory.measured(plan, stage, 10, bf16=False)
    assert found is not None and found.scoring == 103.0 + 3 * 6 * 300


def test_steps_and_scoring_leave_nothing_to_each_other(
    tiny: Tiny, tree: Path, features: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    scores = Evaluator.validation
    monkeypatch.setattr(module, "return_freed_memory", lambda: done.append("room"))

    def scored(self: Evaluator, *given: Any) -> Any:
        done.append("scored")
        return scores(self, *given)

    monkeypatch.setattr(Evaluator, "validation", scored)
    train(tiny("erm"), Manifest.from_folder(tree), tmp_path / "images", device="cpu")
    assert done == [*("room", "scored", "room") * 2, "room"]
    done.clear()
    train(tiny("erm"), features, tmp_path / "features", device="cpu")
    assert done == ["scored"] * 2


SMALL_RUN: dict[str, Any] = {
    "model.pretrained": False,
    "model.dropout": 0.5,
    "embedding.steps": 4,
    "train.steps": 4,
    "train.checkpoint_every": 2,
    "train.keep": "last",
}


@pytest.mark.slow
def test_a_run_in_parts_ends_as_one_without(
    tree: Path, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sgd = {f"{s}.optimiser.{k}": v for s in ("train", "embedding") for k, v in
           {"name": "sgd", "lr": 0.01}.items()}  # fmt: skip
    config, data = tiny("da-coral", **SMALL_RUN, **sgd), Manifest.from_folder(tree)
    train(config, data, tmp_path / "whole", device="cpu")
    monkeypatch.setattr(memory, "TINY", 0)
    told(monkeypatch, free=0.5)
    train(config, data, tmp_path / "parts", device="cpu")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert any(not torch.equal(whole[name], parts[name]) for name in whole)  # they were parts
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-3, atol=1e-5, msg=name)


def test_a_resumed_run_keeps_its_parts_whatever_is_free(
    tree: Path, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = tiny("erm", **SMALL_RUN), Manifest.from_folder(tree)
    monkeypatch.setattr(memory, "TINY", 0)
    told(monkeypatch, free=0.4)
    with monkeypatch.context() as patch:
        seen = count_writes(patch)
        train(config, data, tmp_path / "whole", device="cpu")
    first = next(n for n, path in enumerate(seen, 1) if path.name.startswith("checkpoint"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        count_writes(patch, die_at=first + 1)
        train(config, data, tmp_path / "killed", device="cpu")
    assert (parts_of(tmp_path / "killed" / "checkpoint-main.safetensors") or 0) > 1
    assert parts_of(tmp_path / "none.safetensors") is None
    told(monkeypatch, free=100.0)
    train(config, data, tmp_path / "killed", device="cpu")
    assert_same_weights(tmp_path / "killed", tmp_path / "whole")
    assert stable(tmp_path / "killed") == stable(tmp_path / "whole")


class Counting(Objective):
    """An objective whose steps change a buffer before they fail."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, batch: Batch, step: int) -> Losses:
        raise NotImplementedError


def test_a_gpu_that_is_too_small_gets_more_parts(tiny: Tiny, tree: Path) -> None:
    plan = make_plan(tiny("erm"), Manifest.from_folder(tree), device="cpu")
    backbone = build_networks(plan.config, 2, 3, None, pretrained=False)[0].backbone
    objective, said, tries = Counting(backbone), list[str](), list[int]()

    def step() -> None:
        tries.append(backbone.parts)
        objective.steps += 1
        if backbone.parts < 4:
            raise torch.OutOfMemoryError("too much")

    with Parts(objective, 1, said.append) as parts:
        parts.until_it_fits(step, 24)
        assert (tries, parts.count, objective.steps.item()) == ([1, 2, 4], 4, 1)
        assert said[0].startswith("the GPU's memory is too small for 24 images: the network works")
        with pytest.raises(RunError) as refused:
            parts.until_it_fits(_fail, 8)
    assert backbone.parts == 1
    assert str(refused.value) == (
        "the GPU's memory is too small for a batch of 8 images; lower train.per_domain, "
        "embedding.per_domain or data.image_size"
    )


def test_what_makes_steps_faster_goes_before_batches_are_divided(tiny: Tiny, tree: Path) -> None:
    plan = make_plan(tiny("erm"), Manifest.from_folder(tree), device="cpu")
    backbone = build_networks(plan.config, 2, 3, None, pretrained=False)[0].backbone
    objective, said = Counting(backbone), list[str]()
    backbone.stand_in = backbone.normalised_body

    def step() -> None:
        objective.steps += 1
        if backbone.stand_in is not None:
            raise torch.OutOfMemoryError("too much")

    with Parts(objective, 1, said.append) as parts:
        parts.until_it_fits(step, 24)
        assert (parts.count, objective.steps.item(), said) == (1, 1, [])


@pytest.mark.parametrize("where", ["step", "batches", "validation"])
def test_what_finds_too_little_memory_later_says_how_to_go_on(
    where: str, tiny: Tiny, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: the same command trains to what it would have become."""
    config, data = tiny("erm"), Manifest.from_folder(tree)
    gradients, batches = Stepper.gradients, Loader.batches

    def fails(self: Stepper, batch: Batch, number: int) -> list[Losses]:
        if number == 4:
            _fail()
        return gradients(self, batch, number)

    def runs_out(self: Loader, start: int, stop: int) -> Iterator[Batch]:
        yield from batches(self, start, 4)
        _fail()

    with monkeypatch.context() as once:
        if where == "step":
            once.setattr(Stepper, "gradients", fails)
        elif where == "batches":
            once.setattr(Loader, "batches", runs_out)
        else:
            once.setattr(Evaluator, "validation", lambda self, number: _fail())
        step_named = 3 if where == "validation" else 5
        with pytest.raises(RunError, match=f"step {step_named} found too little .* goes on at the"):
            train(config, data, tmp_path / "run", device="cpu")
    train(config, data, tmp_path / "run", device="cpu")
    train(config, data, tmp_path / "whole", device="cpu")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


class Small:
    """A GPU that holds what the model's steps of so many parts take, by step, and no more."""

    def __init__(self, patch: pytest.MonkeyPatch, least: dict[int, int]) -> None:
        self.tries: list[int] = []
        usual = Stepper.gradients

        def gradients(stepper: Stepper, batch: Batch, step: int) -> list[Losses]:
            self.tries.append(step)
            found = usual(stepper, batch, step)  # to the end: all that it changes is to be put back
            (backbone,) = trained_backbones(stepper.objective)
            if backbone.parts < least.get(step, 1):
                _fail()
            return found

        patch.setattr(Stepper, "gradients", gradients)


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
    train(tiny(algorithm, **dropout, **{"train.parts": 2}), data, tmp_path / "told", device="cpu")
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
    assert "in 4 parts" in [line for line in said if "too small" in line][-1]


def test_weights_that_moved_are_not_moved_again(
    tiny: Tiny, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Small(monkeypatch, {})
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: _fail())
    with pytest.raises(RunError, match="step 1 found too little of the GPU's memory"):
        train(tiny("erm"), Manifest.from_folder(tree), tmp_path, device="cpu")
    assert small.tries == [0]


def test_several_processes_are_told_of_parts(tiny: Tiny, tree: Path) -> None:
    loop = object.__new__(Loop)
    loop.world, loop.phase = World(size=2), Phase("main", 4, tiny("erm").train.optimiser, 2)
    assert loop._too_little_memory(3) == (
        "Step B: predictor: step 3 found too little of the GPU's memory; set train.parts, or lower "
        "train.per_domain, embedding.per_domain or data.image_size, in a new run folder"
    )


def _fail() -> Any:
    raise torch.OutOfMemoryError("too much")


LITE = {"model.backbone": "efficientnet-lite0", "train.optimiser.lr": 1e-3}
STEP_B = {"embedding": False, "bf16": False}
STEP = """
import torch
from acclimate.core.distributed import keep_freed_memory
from acclimate.learn.models import build_backbone
from acclimate.runs.trial import peak, resident
keep_freed_memory()
torch.set_num_threads(1)
network = build_backbone("efficientnet-lite0", pretrained=False).train()
network.to(memory_format=torch.channels_last)
optimiser, before = torch.optim.Adam(network.parameters()), resident()
for _ in range(2):
    optimiser.zero_grad(set_to_none=True)
    x = torch.rand(24, 3, 128, 128).contiguous(memory_format=torch.channels_last)
    network(x).square().mean().backward()
    optimiser.step()
print(peak() - before)
"""


@pytest.mark.slow
def test_the_trial_tells_what_a_step_takes(tiny: Tiny) -> None:
    """Within 15 %, from batches of a sixth and less.

    How the heap happens to be cut up adds up to a fifth to what a single process takes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        said = statistics.median(_said_of(24, tiny("erm", **LITE)) for _ in range(3))
    finally:
        torch.set_num_threads(before)
    assert said == pytest.approx(min(_taken() for _ in range(4)), rel=0.15)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
@pytest.mark.slow
def test_the_trial_tells_what_scoring_takes(tiny: Tiny) -> None:
    """More than a step of two images, and less than one of 24, whatever the heap is like."""
    trial._asked.cache_clear()
    need = tried(tiny("erm", **LITE), 2, 3, 128, **STEP_B)
    assert need is not None
    assert need.fixed + 2 * need.each < need.scoring < need.fixed + 24 * need.each


def _said_of(images: int, config: RunConfig) -> float:
    trial._asked.cache_clear()
    need = tried(config, 2, 3, 128, **STEP_B)
    assert need is not None
    return need.of(images)


def _taken() -> int:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_limit_below_the_machines_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory._of_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    assert memory._of_group(tmp_path) == 300
    (tmp_path / "memory.stat").write_text("anon 200\ninactive_file 50\nactive_file 100\n")
    assert memory._of_group(tmp_path) == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._of_group(tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    3 kB\n")
    assert memory.line_of(tmp_path / "meminfo", "MemAvailable:", 1024) == 3072
    assert memory.line_of(tmp_path / "none", "MemAvailable:", 1024) is None

    def seen(machine: int | None, group: int | None) -> int | None:
        monkeypatch.setattr(memory, "_of_machine", lambda: machine)
        monkeypatch.setattr(memory, "_of_group", lambda: group)
        return memory.available()

    cases = {(9, 5): 5, (5, 9): 5, (5, None): 5, (None, 5): 5, (None, None): None}
    assert {case: seen(*case) for case in cases} == cases
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert seen(9, None) == 4
