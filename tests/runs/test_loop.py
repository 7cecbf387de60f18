"""Schedule, optimisers, checkpoints, batches in parts, and one process on its own."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from acclimate.config import AverageConfig, OptimiserConfig, gather
from acclimate.core.distributed import World, joined, pick_device
from acclimate.core.errors import ConfigError, UnknownName
from acclimate.learn.algorithms import choose
from acclimate.learn.models import build_backbone
from acclimate.records.folder import RunFolder
from acclimate.records.records import Validated
from acclimate.runs.averages import make_average
from acclimate.runs.loop import (
    Phase,
    Position,
    learning_rate,
    load_checkpoint,
    make_optimiser,
    save_checkpoint,
)
from acclimate.runs.plan import check_batches, check_components
from fixtures.errors import refused
from fixtures.interruption import Killed
from fixtures.loops import assert_same_state, make_erm, make_loop, state_of
from fixtures.predictors import plain_on

OPTIMISERS = {
    "adam": OptimiserConfig(name="adam", lr=0.01, weight_decay=0.1),
    "adamw": OptimiserConfig(name="adamw", lr=0.01, weight_decay=0.1),
    "sgd with momentum": OptimiserConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=0.1),
    "sgd": OptimiserConfig(name="sgd", lr=0.01, momentum=0.0),
}


def rates(settings: OptimiserConfig, steps: int) -> list[float]:
    return [learning_rate(settings, step, steps) for step in range(steps + 1)]


HALF = math.sqrt(0.5)
COSINE = [0.4, 0.2 * (1 + HALF), 0.2, 0.2 * (1 - HALF), 0.0]  # over four steps, by hand


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lr": 0.8}, [0.8, 0.8, 0.8]),
        ({"lr": 0.8, "warmup": 4}, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8]),
        ({"lr": 0.4, "schedule": "cosine"}, COSINE),
        ({"lr": 0.4, "schedule": "cosine", "warmup": 2}, [0.2, 0.4, *COSINE]),
        # Longer than the run, it only rises.
        ({"lr": 1.0, "schedule": "cosine", "warmup": 10}, [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_the_learning_rate(settings: dict[str, Any], expected: list[float]) -> None:
    found = rates(OptimiserConfig(**settings), len(expected) - 1)
    assert found == pytest.approx(expected, abs=1e-12)
    assert learning_rate(OptimiserConfig(lr=1.0, warmup=3, schedule="cosine"), 3, 3) == 1.0


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("adam", torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.999)}),
        ("adamw", torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.999)}),
        ("sgd with momentum", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_optimisers_are_as_asked(name: str, kind: type[Any], expected: dict[str, Any]) -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)  # frozen parameters are left alone
    optimiser = make_optimiser(module, OPTIMISERS[name])
    (group,) = optimiser.param_groups
    assert isinstance(optimiser, kind)
    assert {key: group[key] for key in expected} == expected
    assert [id(parameter) for parameter in group["params"]] == [id(module.weight)]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def train(module: nn.Module, optimiser: torch.optim.Optimizer, start: int, stop: int) -> None:
    for step in range(start, stop):
        x = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        module(x).square().mean().backward()
        optimiser.step()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_checkpoint_goes_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    module = network(0)
    optimiser = make_optimiser(module, OPTIMISERS[name])
    train(module, optimiser, 0, 3)
    progress = Position(step=3, best_step=2, best_score=0.1 + 0.2)
    save_checkpoint(path, module, optimiser, progress)
    train(module, optimiser, 3, 5)

    other = network(1)
    resumed = make_optimiser(other, OPTIMISERS[name])
    train(other, resumed, 10, 11)  # what was there before must not matter
    assert load_checkpoint(path, other, resumed) == progress
    train(other, resumed, 3, 5)
    assert_same_state(module, other)
    one, two = optimiser.state_dict()["state"], resumed.state_dict()["state"]
    for index, slots in one.items():
        for slot, value in slots.items():
            if value is not None:
                assert torch.equal(two[index][slot], value), (index, slot)


def phase(settings: OptimiserConfig, steps: int = 1) -> Phase:
    return Phase("main", steps, settings, checkpoint_every=1)


@pytest.mark.parametrize(
    ("scores", "metric", "best"),
    [
        ((0.2, 0.9, 0.5, 0.1), "top-1", 2),
        ((0.7, 0.9, 0.9, 0.8), "top-1", 2),  # of equals the first
        ((0.4, 0.3, 0.2, 0.1), "top-1", 1),
        ((None, 0.1, None, 0.3), "top-1", 4),
        ((0.7, 0.4, None, 0.4), "nll", 2),
        ((float("nan"), 1.2, 0.9, 1.3), "nll", 3),
    ],
)
def test_the_best_weights_are_kept_and_given_back(
    scores: tuple[float | None, ...], metric: str, best: int, tmp_path: Path
) -> None:
    objective, validated = make_erm(), {}

    def validate(step: int) -> Validated:
        validated[step] = state_of(objective)
        return Validated([], scores[step - 1])

    settings = replace(phase(OPTIMISERS["adam"], steps=4), evaluate_every=1, metric=metric)
    for keep, step in (("best", best), ("last", 4)):
        objective, chosen = make_erm(), replace(settings, keep=keep)
        end = make_loop(tmp_path / keep, objective, chosen, validate=validate).run()
        assert (end.step, end.best_step, end.best_score) == (4, best, scores[best - 1])
        assert len({float(v["predictor.head.last.bias"][0]) for v in validated.values()}) == 4
        kept = state_of(objective)
        assert all(torch.equal(kept[key], value) for key, value in validated[step].items())


def test_the_last_checkpoint_has_what_is_needed_without_a_step_to_come(tmp_path: Path) -> None:
    """Weights and position; before, the optimiser's state as well. A finished phase that is run
    again takes no step and ends with the same weights."""
    settings, held = phase(OPTIMISERS["adam"], steps=3), []

    def watch(name: str, done: int, total: int, note: str) -> None:
        held.append(set(load_file(RunFolder(tmp_path).checkpoint("main"))))

    objective = make_erm()
    make_loop(tmp_path, objective, settings, watch=watch).run()
    module = {f"module/{name}" for name in objective.state_dict()}
    assert [any(key.startswith("optimiser/") for key in keys) for keys in held] == [
        True,
        True,
        False,
    ]
    assert held[-1] == module
    again, taken = make_erm(seed=1), len(held)
    end = make_loop(tmp_path, again, settings, watch=watch).run()
    assert end.step == 3 and len(held) == taken
    assert_same_state(objective, again)


@pytest.mark.parametrize(
    ("algorithm", "settings", "processes", "named"),
    [
        ("erm", {"train.per_domain": 4}, 3, ("train.per_domain", "multiples of 3")),
        ("da-erm", {"embedding.per_domain": 4}, 3, ("embedding.per_domain", "multiples of 3")),
        ("coral", {"train.per_domain": 1}, 1, ("2 images", "train.per_domain")),
        ("mldg", {"train.micro_batches": 2}, 1, ("train.micro_batches", "mldg")),
    ],
)
def test_batches_that_cannot_be_shared_out(
    algorithm: str, settings: dict[str, Any], processes: int, named: tuple[str, ...]
) -> None:
    def check(**values: Any) -> None:
        config = gather(flags={"algorithm": algorithm, **values})
        check_batches(config, check_components(config), World(size=processes))

    check(**{"train.per_domain": 12, "embedding.per_domain": 12})
    with refused(ConfigError, *named):
        check(**({"train.per_domain": 12, "embedding.per_domain": 12} | settings))


def test_long_gradients_are_clipped(tmp_path: Path) -> None:
    settings = OptimiserConfig(name="sgd", lr=1.0, momentum=0.0, clip=1e-3)
    objective = make_erm()
    before = state_of(objective)
    make_loop(tmp_path, objective, phase(settings)).run()
    squares = sum(
        float((value - before[key]).square().sum()) for key, value in state_of(objective).items()
    )
    assert math.sqrt(squares) == pytest.approx(1e-3, rel=1e-2)


def test_the_rate_follows_the_schedule(tmp_path: Path) -> None:
    settings = OptimiserConfig(lr=0.01, schedule="cosine", warmup=1)
    make_loop(tmp_path, make_erm(), phase(settings, steps=4)).run()
    found = [record.lr for record in RunFolder(tmp_path).records().losses]
    assert found == pytest.approx(rates(settings, 4)[:4])


def test_shares_cover_everything_once() -> None:
    things = list(range(11))
    shares = [things[World(rank=rank, size=3).share(11)] for rank in range(3)]
    assert shares == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    assert things[World().share(11)] == things


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined("cpu") as world:
        assert world == World(0, 1, torch.device("cpu"))
        tensor = torch.rand(3)
        assert world.gather(tensor) is tensor
        assert world.sum(tensor) is tensor
        assert world.largest(tensor) is tensor
        world.wait()
        assert world.main
    assert not torch.distributed.is_initialized()
    assert not World(rank=1, size=2).main


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device() == pick_device("cpu") == torch.device("cpu")
    with refused(UnknownName, "'cude'", "'cuda'?"):
        pick_device("cude")
    with refused(ConfigError, "'cuda'"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device() == pick_device("cuda") == torch.device("cuda", 3)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    with refused(ConfigError, "'cuda:9'", "4 GPUs"):
        pick_device("cuda:9")
    with refused(UnknownName, "'mps'", "auto, cpu, cuda"):
        pick_device("mps")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("kind", ["ema", "window"])
def test_averages_against_a_loop(kind: str, tmp_path: Path) -> None:
    """The kept weights are the average, written out, of the weights after each step."""
    steps, average = 8, AverageConfig(kind=kind, decay=0.7, start=0.5)  # type: ignore[arg-type]
    settings = OptimiserConfig(name="sgd", lr=0.1)
    path: list[dict[str, torch.Tensor]] = []
    for done in range(1, steps + 1):
        folder = tmp_path / f"plain-{done}"
        objective = make_erm()
        make_loop(folder, objective, Phase("main", done, settings, done)).run()
        path.append(state_of(objective))
    expected = {key: value.double() for key, value in path[0 if kind == "ema" else 4].items()}
    for count, point in enumerate(path[1:] if kind == "ema" else path[5:], start=2):
        new = max(1 / count, 1 - 0.7) if kind == "ema" else 1 / count
        expected = {key: (1 - new) * v + new * point[key].double() for key, v in expected.items()}
    objective = make_erm()
    folder = tmp_path / "averaged"
    make_loop(folder, objective, Phase("main", steps, settings, 3, average=average)).run()
    for key, value in state_of(objective).items():
        torch.testing.assert_close(value.double(), expected[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["ema", "window"])
def test_an_average_resumes_bit_by_bit(kind: str, tmp_path: Path) -> None:
    average = AverageConfig(kind=kind, start=0.25)  # type: ignore[arg-type]
    phase = Phase("main", 8, OptimiserConfig(lr=0.1), 2, average=average)
    whole, resumed = make_erm(), make_erm()
    make_loop(tmp_path / "whole", whole, phase).run()

    def stop(phase: str, done: int, total: int, note: str) -> None:
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        make_loop(tmp_path / "resumed", make_erm(), phase, watch=stop).run()
    make_loop(tmp_path / "resumed", resumed, phase).run()
    assert_same_state(whole, resumed)


def test_a_slow_average_forgets_the_first_weights(tmp_path: Path) -> None:
    """The default decay over a short run is a mean over it, not the weights it began with."""
    objective = make_erm()
    average = make_average(objective, AverageConfig(kind="ema"), steps=300)
    with torch.no_grad():
        for done in range(1, 301):
            for value in objective.parameters():
                value.fill_(float(done))
            average.update(done)
    assert average is not None
    for value in average.mean.module.parameters():
        torch.testing.assert_close(value.mean().item(), 150.5, rtol=1e-4, atol=0)


def test_an_adversary_follows_the_run_s_schedule() -> None:
    choice = choose("dann")
    predictor = plain_on(build_backbone("mlp", in_features=4), 3, head="mlp", width=8, hidden=8)
    objective = choice.build(
        predictor, choice.settings, domains=3, classes=3, world=World(), seed=0
    )
    settings = OptimiserConfig(name="sgd", lr=0.1, schedule="cosine", warmup=5)
    own, theirs = make_optimiser(objective, settings, objective.adversary).param_groups
    assert (theirs["lr"], theirs["momentum"], theirs["settings"].schedule) == (0.1, 0.9, "cosine")
    assert len(theirs["params"]) == len(list(objective.discriminator.parameters()))
    known = {id(parameter) for parameter in theirs["params"]}
    assert not known & {id(parameter) for parameter in own["params"]}


# Learning rates by layer


def on_timm(name: str) -> nn.Module:
    backbone = build_backbone(name, pretrained=False, side=64)
    return plain_on(backbone, 2, head="mlp", width=8, hidden=8)


def depth(name: str) -> int:
    """Layers above one of `test_vit`, the head among them. Its blocks are 0 to 5, and its last
    norm belongs to the last."""
    part = name.split(".")
    if part[0] == "blocks":
        return 6 - int(part[1])
    return 1 if part[0] == "norm" else 7


def test_each_layer_has_its_rate_and_what_decays() -> None:
    predictor = on_timm("test_vit")
    settings = OptimiserConfig(name="adamw", lr=0.1, weight_decay=0.3, layer_decay=0.5, warmup=4)
    groups = make_optimiser(predictor, settings).param_groups
    found = {id(p): group for group in groups for p in group["params"]}
    body = predictor.get_submodule("backbone.body")
    blocks = {name.split(".")[1] for name, _ in body.named_parameters() if "blocks" in name}
    assert blocks == set("012345")
    for name, parameter in body.named_parameters():
        group = found.pop(id(parameter))
        assert group["lr_scale"] == pytest.approx(0.5 ** depth(name)), name
        plain = parameter.ndim < 2 or name in ("pos_embed", "cls_token")
        assert group["weight_decay"] == (0.0 if plain else 0.3), name
        assert group["betas"] == (0.9, 0.999)
    rest = {id(parameter) for parameter in predictor.get_submodule("head").parameters()}
    assert found.keys() == rest == {id(p) for p in groups[0]["params"]}
    assert (groups[0]["lr_scale"], groups[0]["weight_decay"]) == (1.0, 0.3)


def test_a_convolutional_network_of_timm_has_layers_too() -> None:
    groups = make_optimiser(on_timm("test_convnext"), OptimiserConfig(lr=0.1, layer_decay=0.5))
    scales = {group["lr_scale"] for group in groups.param_groups}
    assert 1.0 in scales and len(scales) > 3


def test_a_network_without_layers_is_refused() -> None:
    settings = OptimiserConfig(lr=0.1, layer_decay=0.5)
    predictor = plain_on(build_backbone("small-cnn"), 2)
    for module in (predictor, predictor.requires_grad_(False)):
        with refused(ConfigError, "layer_decay=0.5", "model.freeze=none"):
            make_optimiser(module, settings)


def test_layers_go_on_bit_by_bit(tmp_path: Path) -> None:
    settings = OptimiserConfig(name="adamw", lr=0.01, weight_decay=0.1, layer_decay=0.5)
    torch.manual_seed(0)
    whole, again = on_timm("test_vit"), on_timm("test_vit")

    def steps(module: nn.Module, optimiser: torch.optim.Optimizer, start: int, stop: int) -> None:
        for step in range(start, stop):
            x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(step))
            optimiser.zero_grad()
            module(x).logits.square().mean().backward()
            optimiser.step()

    optimiser = make_optimiser(whole, settings)
    steps(whole, optimiser, 0, 2)
    save_checkpoint(tmp_path / "checkpoint", whole, optimiser, Position(step=2))
    steps(whole, optimiser, 2, 4)
    resumed = make_optimiser(again, settings)
    assert load_checkpoint(tmp_path / "checkpoint", again, resumed).step == 2
    steps(again, resumed, 2, 4)
    assert_same_state(whole, again)
