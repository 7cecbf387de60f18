"""Schedule, optimisers, checkpoints, batches in parts, and one process on its own."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from acclimate.config import AverageConfig, EmbeddingConfig, OptimiserConfig
from acclimate.core.distributed import World, joined, pick_device
from acclimate.core.errors import ConfigError, RunError, UnknownName
from acclimate.data.batches import Batch, DomainSampler, Loader
from acclimate.data.manifest import Manifest
from acclimate.data.source import FeatureSource
from acclimate.learn.algorithms import choose
from acclimate.learn.embeddings.prototype import Prototype
from acclimate.learn.models import Plain, build_backbone
from acclimate.learn.objective import Losses, Objective, mean_by
from acclimate.records.folder import RunFolder
from acclimate.records.records import Validated, read
from acclimate.runs.loop import Loop, Phase, Position, load_checkpoint, save_checkpoint
from acclimate.runs.optimisation import check_shares, learning_rate, make_average, make_optimiser
from fixtures.errors import refused

OPTIMISERS = {
    "adam": OptimiserConfig(name="adam", lr=0.01, weight_decay=0.1),
    "sgd with momentum": OptimiserConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=0.1),
    "sgd": OptimiserConfig(name="sgd", lr=0.01, momentum=0.0),
}


def rates(settings: OptimiserConfig, steps: int) -> list[float]:
    return [learning_rate(settings, step, steps) for step in range(steps + 1)]


def test_warm_up_then_constant() -> None:
    settings = OptimiserConfig(lr=0.8, warmup=4)
    assert rates(settings, 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8])
    assert rates(OptimiserConfig(lr=0.8), 2) == [0.8, 0.8, 0.8]


def test_cosine_by_hand() -> None:
    settings = OptimiserConfig(lr=0.4, schedule="cosine")
    half = math.sqrt(0.5)
    expected = [0.4, 0.2 * (1 + half), 0.2, 0.2 * (1 - half), 0.0]
    assert rates(settings, 4) == pytest.approx(expected, abs=1e-12)
    warm = rates(replace(settings, warmup=2), 6)
    assert warm == pytest.approx([0.2, 0.4, *expected], abs=1e-12)


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    settings = OptimiserConfig(lr=1.0, warmup=10, schedule="cosine")
    assert rates(settings, 3) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert learning_rate(replace(settings, warmup=3), 3, 3) == 1.0


def test_optimisers_are_as_asked() -> None:
    module = nn.Linear(2, 2)
    adam = make_optimiser(module, OPTIMISERS["adam"])
    assert isinstance(adam, torch.optim.Adam)
    (group,) = adam.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.01, 0.1, (0.9, 0.999))
    sgd = make_optimiser(module, OPTIMISERS["sgd with momentum"])
    assert isinstance(sgd, torch.optim.SGD)
    (group,) = sgd.param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.1)


def test_frozen_parameters_are_left_alone() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    (group,) = make_optimiser(module, OPTIMISERS["adam"]).param_groups
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
    for key, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key
    one, two = optimiser.state_dict()["state"], resumed.state_dict()["state"]
    for index, slots in one.items():
        for slot, value in slots.items():
            if value is not None:
                assert torch.equal(two[index][slot], value), (index, slot)


def test_a_checkpoint_before_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    module, other = network(0), network(1)
    save_checkpoint(path, module, make_optimiser(module, OPTIMISERS["adam"]), Position())
    optimiser = make_optimiser(other, OPTIMISERS["adam"])
    assert load_checkpoint(path, other, optimiser) == Position(0, None, None)
    assert torch.equal(other.state_dict()["0.weight"], module.state_dict()["0.weight"])
    assert optimiser.state_dict()["state"] == {}


def test_without_a_checkpoint_one_starts_at_0(tmp_path: Path) -> None:
    module = network(0)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    optimiser = make_optimiser(module, OPTIMISERS["adam"])
    assert load_checkpoint(tmp_path / "none", module, optimiser) == Position()
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_parts_hold_every_domain_in_equal_measure() -> None:
    domain = torch.arange(3).repeat_interleave(6)
    batch = Batch(torch.arange(18.0)[:, None], torch.arange(18), domain, torch.rand(18, 2))
    for count in (1, 2, 3, 6):
        parts = [batch.part(index, count) for index in range(count)]
        for part in parts:
            assert part.domain.bincount().tolist() == [6 // count] * 3
            assert part.mu is not None
            assert batch.mu is not None
            assert torch.equal(part.mu, batch.mu[part.y])
            assert torch.equal(part.x[:, 0].long(), part.y)
        assert sorted(torch.cat([part.y for part in parts]).tolist()) == list(range(18))
    assert replace(batch, mu=None).part(0, 2).mu is None
    assert len(batch.part(1, 3)) == 6


def test_means_by_group() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 10.0, 0.0], requires_grad=True)
    means = mean_by(values, torch.tensor([7, 2, 7, 2, 5]))
    assert means.tolist() == [6.0, 0.0, 2.5]  # groups 2, 5 and 7
    (gradient,) = torch.autograd.grad(means.sum(), values)
    assert gradient.tolist() == [0.5, 0.5, 0.5, 0.5, 1.0]


def test_losses_add_up() -> None:
    assert Losses(torch.tensor(1.5)).total.item() == 1.5
    assert Losses(torch.tensor(1.5), torch.tensor(0.25)).total.item() == 1.75


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    return Manifest.from_arrays(X, rng.integers(0, 3, 60), ["a"] * 20 + ["b"] * 20 + ["c"] * 20)


def erm(seed: int = 0) -> Objective:
    torch.manual_seed(seed)
    predictor = Plain(build_backbone("mlp", in_features=4), 3)
    choice = choose("erm")
    return choice.build(predictor, choice.settings, domains=3, classes=3, world=World(), seed=0)


def loop(manifest: Manifest, folder: Path, objective: Objective, phase: Phase, **more: Any) -> Loop:
    rows = [manifest.rows(domain=name) for name in manifest.domains]
    sampler = DomainSampler(rows, per_domain=8, domains_per_step=3, seed=0)
    loading = Loader(FeatureSource(manifest), sampler, rows, World(), seed=0, augmented=False)
    return Loop(objective, loading, phase, World(), RunFolder(folder), seed=0, **more)


def phase(settings: OptimiserConfig, steps: int = 1) -> Phase:
    return Phase("main", steps, settings, checkpoint_every=1)


def weights(objective: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in objective.state_dict().items()}


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(
    manifest: Manifest, tmp_path: Path, parts: int
) -> None:
    # One step of sgd at rate 1: the weights' change is the gradient.
    changes, risks = [], []
    for accumulate in (1, parts):
        settings = OptimiserConfig(name="sgd", lr=1.0, momentum=0.0, accumulate=accumulate)
        objective = erm()
        before = weights(objective)
        folder = tmp_path / str(accumulate)
        folder.mkdir()
        loop(manifest, folder, objective, phase(settings)).run()
        changes.append({key: value - before[key] for key, value in weights(objective).items()})
        risks.append(read(folder / "records.jsonl").losses[0].risk)
    for key, whole in changes[0].items():
        torch.testing.assert_close(changes[1][key], whole, rtol=0, atol=1e-6)
    assert max(float(change.abs().max()) for change in changes[0].values()) > 1e-2
    assert risks[0] == pytest.approx(risks[1], abs=1e-6)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((0.2, 0.9, 0.5, 0.1), 2),
        ((0.7, 0.9, 0.9, 0.8), 2),  # of equals the first
        ((0.4, 0.3, 0.2, 0.1), 1),
        ((None, 0.1, None, 0.3), 4),
    ],
)
def test_the_best_weights_are_kept_and_given_back(
    scores: tuple[float | None, ...], best: int, manifest: Manifest, tmp_path: Path
) -> None:
    objective, validated = erm(), {}

    def validate(step: int) -> Validated:
        validated[step] = weights(objective)
        return Validated([], scores[step - 1])

    settings = replace(phase(OPTIMISERS["adam"], steps=4), evaluate_every=1)
    for keep, step in (("best", best), ("last", 4)):
        (tmp_path / keep).mkdir()
        objective, chosen = erm(), replace(settings, keep=keep)
        end = loop(manifest, tmp_path / keep, objective, chosen, validate=validate).run()
        assert (end.step, end.best_step, end.best_score) == (4, best, scores[best - 1])
        assert len({float(v["predictor.head.last.bias"][0]) for v in validated.values()}) == 4
        kept = weights(objective)
        assert all(torch.equal(kept[key], value) for key, value in validated[step].items())


def test_the_last_checkpoint_has_what_is_needed_without_a_step_to_come(
    manifest: Manifest, tmp_path: Path
) -> None:
    """Weights and position; before, the optimiser's state as well. A finished phase that is run
    again takes no step and ends with the same weights."""
    settings, held = phase(OPTIMISERS["adam"], steps=3), []

    def watch(name: str, done: int, total: int, note: str) -> None:
        held.append(set(load_file(RunFolder(tmp_path).checkpoint("main"))))

    objective = erm()
    loop(manifest, tmp_path, objective, settings, watch=watch).run()
    module = {f"module/{name}" for name in objective.state_dict()}
    assert [any(key.startswith("optimiser/") for key in keys) for keys in held] == [
        True,
        True,
        False,
    ]
    assert held[-1] == module
    again, taken = erm(seed=1), len(held)
    end = loop(manifest, tmp_path, again, settings, watch=watch).run()
    assert end.step == 3 and len(held) == taken
    for key, value in weights(objective).items():
        assert torch.equal(again.state_dict()[key], value)


@pytest.mark.parametrize(
    ("per_domain", "processes", "parts", "least", "named"),
    [
        (8, 1, 3, 1, "divisor of 8"),
        (4, 3, 1, 1, "multiples of 3"),
        (4, 1, 4, 2, "2 images"),  # a penalty compares images of a domain
    ],
)
def test_batches_that_cannot_be_shared_out(
    per_domain: int, processes: int, parts: int, least: int, named: str
) -> None:
    with refused(ConfigError, named):
        check_shares(
            per_domain, World(size=processes), OptimiserConfig(accumulate=parts), least_rows=least
        )
    check_shares(12, World(size=processes), OptimiserConfig(accumulate=parts), least_rows=least)


def test_parts_of_a_round_need_support_and_query() -> None:
    config = EmbeddingConfig(per_domain=8, optimiser=OptimiserConfig(accumulate=8))
    backbone = build_backbone("mlp", in_features=4)
    embedding = Prototype(backbone, config, domains=2, classes=2, world=World(), seed=0)
    with refused(ConfigError, "accumulate is 8", "at least 16"):
        embedding.sampler([np.arange(9), np.arange(9, 20)], config, seed=0)


def test_long_gradients_are_clipped(manifest: Manifest, tmp_path: Path) -> None:
    settings = OptimiserConfig(name="sgd", lr=1.0, momentum=0.0, clip=1e-3)
    objective = erm()
    before = weights(objective)
    loop(manifest, tmp_path, objective, phase(settings)).run()
    squares = sum(
        float((value - before[key]).square().sum()) for key, value in weights(objective).items()
    )
    assert math.sqrt(squares) == pytest.approx(1e-3, rel=1e-2)


def test_the_rate_follows_the_schedule(manifest: Manifest, tmp_path: Path) -> None:
    settings = OptimiserConfig(lr=0.01, schedule="cosine", warmup=1)
    loop(manifest, tmp_path, erm(), phase(settings, steps=4)).run()
    found = [record.lr for record in read(tmp_path / "records.jsonl").losses]
    assert found == pytest.approx(rates(settings, 4)[:4])


class Exploding(Objective):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: Batch, step: int) -> Losses:
        return Losses(risk=self.weight * (math.inf if step == 1 else 1.0))


def test_a_loss_that_is_not_finite_stops_the_run(manifest: Manifest, tmp_path: Path) -> None:
    with refused(RunError, "'main'", "step 2", "(0.5)", "train.optimiser.clip"):
        loop(manifest, tmp_path, Exploding(), phase(OptimiserConfig(lr=0.5), steps=3)).run()


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
    with pytest.raises(UnknownName, match="there is no device 'mps'; there is auto, cpu, cuda"):
        pick_device("mps")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("kind", ["ema", "window"])
def test_averages_against_a_loop(kind: str, manifest: Manifest, tmp_path: Path) -> None:
    """The kept weights are the average, written out, of the weights after each step."""
    steps, average = 8, AverageConfig(kind=kind, decay=0.7, start=0.5)  # type: ignore[arg-type]
    settings = OptimiserConfig(name="sgd", lr=0.1)
    path: list[dict[str, torch.Tensor]] = []
    for done in range(1, steps + 1):
        folder = tmp_path / f"plain-{done}"
        folder.mkdir()
        objective = erm()
        loop(manifest, folder, objective, Phase("main", done, settings, done)).run()
        path.append(weights(objective))
    expected = {key: value.double() for key, value in path[0 if kind == "ema" else 4].items()}
    for count, point in enumerate(path[1:] if kind == "ema" else path[5:], start=2):
        new = max(1 / count, 1 - 0.7) if kind == "ema" else 1 / count
        expected = {key: (1 - new) * v + new * point[key].double() for key, v in expected.items()}
    objective = erm()
    folder = tmp_path / "averaged"
    folder.mkdir()
    loop(manifest, folder, objective, Phase("main", steps, settings, 3, average=average)).run()
    for key, value in weights(objective).items():
        torch.testing.assert_close(value.double(), expected[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["ema", "window"])
def test_an_average_resumes_bit_by_bit(kind: str, manifest: Manifest, tmp_path: Path) -> None:
    average = AverageConfig(kind=kind, start=0.25)  # type: ignore[arg-type]
    phase = Phase("main", 8, OptimiserConfig(lr=0.1), 2, average=average)
    whole, resumed = erm(), erm()
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    loop(manifest, tmp_path / "whole", whole, phase).run()

    class Stop(Exception):
        pass

    def stop(phase: str, done: int, total: int, note: str) -> None:
        if done == 5:
            raise Stop

    with pytest.raises(Stop):
        loop(manifest, tmp_path / "resumed", erm(), phase, watch=stop).run()
    loop(manifest, tmp_path / "resumed", resumed, phase).run()
    for key, value in weights(whole).items():
        assert torch.equal(weights(resumed)[key], value), key


def test_a_slow_average_forgets_the_first_weights(manifest: Manifest, tmp_path: Path) -> None:
    """The default decay over a short run is a mean over it, not the weights it began with."""
    objective = erm()
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
    predictor = Plain(build_backbone("mlp", in_features=4), 3, head="mlp", width=8, hidden=8)
    objective = choice.build(
        predictor, choice.settings, domains=3, classes=3, world=World(), seed=0
    )
    settings = OptimiserConfig(name="sgd", lr=0.1, schedule="cosine", warmup=5)
    own, theirs = make_optimiser(objective, settings, objective.adversary).param_groups
    assert (theirs["lr"], theirs["momentum"], theirs["settings"].schedule) == (0.1, 0.9, "cosine")
    assert len(theirs["params"]) == len(list(objective.discriminator.parameters()))
    known = {id(parameter) for parameter in theirs["params"]}
    assert not known & {id(parameter) for parameter in own["params"]}
