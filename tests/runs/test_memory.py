"""A batch that would not fit is refused before the first step, and looking changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from acclimate.config import RunConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from acclimate.learn.models import Conditioned, build_backbone, freeze_batch_norm
from acclimate.runs import memory
from acclimate.runs.memory import Need, Stage, measure
from acclimate.runs.training import train, train_embedding
from fixtures.interruption import assert_same_weights

Tiny = Callable[..., RunConfig]
GIB = 1 << 30
LARGE: dict[str, Any] = {
    "model.pretrained": False,
    "data.image_size": 224,
    "embedding.domains_per_step": 4,
    "embedding.per_domain": 32,
    "train.per_domain": 32,
}


def free(monkeypatch: pytest.MonkeyPatch, gib: float | None) -> None:
    monkeypatch.setattr(memory, "available", lambda: None if gib is None else int(gib * GIB))


def refusal(start: Callable[[], object], out: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        start()
    assert [path.name for path in out.glob("*")] == []
    return str(refused.value)


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


def test_step_a_is_refused_with_what_would_fit(
    large: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = tiny("da-erm", **LARGE), tmp_path / "run"
    # EfficientNet-Lite0 keeps 75.8 MiB an image; 8 of each of 4 domains, doubled, are 64 images.
    free(monkeypatch, 5.0)
    expected = (
        "a batch of Step A, 256 images of 224 px, needs about 18.9 GiB and 5.0 GiB are free; "
        "lower embedding.per_domain from 32 (8 would fit), or train on a GPU"
    )
    assert refusal(lambda: train(config, large, out), out) == expected
    shared = tmp_path / "shared"
    assert refusal(lambda: train_embedding(config, large, shared), shared) == expected


def test_step_b_is_refused_before_step_a_starts(
    large: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    free(monkeypatch, 5.0)
    config = tiny("da-erm", **LARGE | {"embedding.per_domain": 8})
    # 75.8 MiB an image and 4 domains: 16 of each would take 4.74 GiB, 17 would take 5.03.
    assert refusal(lambda: train(config, large, out), out) == (
        "a batch of Step B, 128 images of 224 px, needs about 9.5 GiB and 5.0 GiB are free; "
        "lower train.per_domain from 32 (16 would fit), or train on a GPU"
    )


def test_parts_and_bf16_count(
    large: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    free(monkeypatch, 2.0)
    split = {"train.optimiser.accumulate": 2}
    assert refusal(lambda: train(tiny("erm", **LARGE | split), large, out), out) == (
        "a part of a batch of Step B, 64 images of 224 px, needs about 4.7 GiB and 2.0 GiB are "
        "free; lower train.per_domain from 32 (12 would fit), or train on a GPU"
    )
    half = split | {"train.precision": "bf16"}
    assert "needs about 2.4 GiB" in refusal(
        lambda: train(tiny("erm", **LARGE | half), large, out), out
    )


def test_where_even_the_least_does_not_fit_a_smaller_network_is_the_way_out(
    large: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    free(monkeypatch, 0.01)
    start = "a batch of Step B, 128 images of 224 px, needs about"
    assert refusal(lambda: train(tiny("erm", **LARGE), large, out), out) == (
        f"{start} 9.5 GiB and 0.0 GiB are free; lower data.image_size from 224, use "
        f"model.backbone=small-cnn, or train on a GPU"
    )
    small = LARGE | {"model.backbone": "small-cnn"}
    assert refusal(lambda: train(tiny("erm", **small), large, out), out) == (
        f"{start} 1.6 GiB and 0.0 GiB are free; lower data.image_size from 224, or train on a GPU"
    )


@pytest.mark.slow
def test_a_run_is_bit_for_bit_the_same_with_the_check(
    tree: Path, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Manifest.from_folder(tree)
    changes = {
        "model.backbone": "efficientnet-lite0",  # with batch norm
        "model.pretrained": False,
        "data.image_size": 32,
        "model.dropout": 0.5,
        "embedding.steps": 2,
        "train.steps": 2,
    }
    config = tiny("da-erm", **changes)
    measured = []
    real = memory.measure

    def counted(*args: Any, **options: Any) -> Need:
        measured.append(args[0])
        return real(*args, **options)

    monkeypatch.setattr(memory, "measure", counted)
    train(config, data, tmp_path / "without")
    assert measured == []  # so small a batch is not worth a look
    monkeypatch.setattr(memory, "TINY", 0)
    free(monkeypatch, 100.0)
    train(config, data, tmp_path / "with")
    assert len(measured) == 2
    assert_same_weights(tmp_path / "without", tmp_path / "with")


@pytest.mark.slow
def test_a_known_embedding_is_not_measured_again(
    tree: Path, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, config = Manifest.from_folder(tree), tiny("da-erm", **{"embedding.per_domain": 32})
    train_embedding(config, data, tmp_path / "shared")
    monkeypatch.setattr(memory, "TINY", 0)
    asked = []
    monkeypatch.setattr(memory, "measure", lambda network, *_, **__: asked.append(network))
    free(monkeypatch, None)
    train(config, data, tmp_path / "unknown", embedding=tmp_path / "shared")
    assert asked == []  # where the system does not say what is free, nothing is checked
    monkeypatch.setattr(
        memory, "measure", lambda network, *_, **__: asked.append(network) or Need(0, 0)
    )
    free(monkeypatch, 1.0)
    train(config, data, tmp_path / "run", embedding=tmp_path / "shared")
    assert [type(network) for network in asked] == [Conditioned]


def test_features_are_never_measured(
    features: Manifest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "TINY", 0)
    free(monkeypatch, 0.0)
    train(tiny("da-erm"), features, tmp_path / "run")
    assert (tmp_path / "run" / "model.json").exists()


@pytest.mark.parametrize("name", ["small-cnn", "efficientnet-lite0"])
def test_the_estimate_is_what_a_real_batch_keeps(name: str) -> None:
    network = build_backbone(name, pretrained=False).to(memory_format=torch.channels_last)
    predictor = Conditioned(network, 3, mu_dim=4, width=8, hidden=8).train()
    kept: list[Tensor] = []
    images = torch.rand(24, 3, 48, 48).contiguous(memory_format=torch.channels_last)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
    ):
        output = predictor(images, torch.zeros(24, 4))
    weights = {parameter.data_ptr() for parameter in predictor.parameters()}
    real = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in kept
        if tensor.data_ptr() not in weights
    }
    assert output.logits.requires_grad
    assert measure(predictor, 48).of(24) == pytest.approx(sum(real.values()), rel=0.02)


def test_it_is_training_that_is_measured() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.Dropout(0.5))
    trained = measure(network, 8).each
    assert trained > 3 * 8 * 8 * 4  # the input; dropout keeps what it dropped as well
    assert measure(network.eval(), 8).each == trained


def test_measuring_leaves_no_trace_in_the_network() -> None:
    network = build_backbone("efficientnet-lite0", pretrained=False)
    freeze_batch_norm(network.body.blocks[0])
    network.eval()
    network.body.blocks[1].train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modes = [part.training for part in network.modules()]
    torch.manual_seed(3)
    random = torch.get_rng_state()
    with torch.no_grad():
        assert measure(network, 32).each > 0
    assert torch.equal(torch.get_rng_state(), random)
    assert modes == [part.training for part in network.modules()]
    after = network.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert all(parameter.grad is None for parameter in network.parameters())


def test_smaller_batches_are_ones_that_can_be_shared() -> None:
    world = World(0, 2, torch.device("cpu"))
    stage = Stage("Step A", "embedding.per_domain", torch.nn.Identity(), 4, 24, 2, 3, copies=2)
    assert stage.images(24, world) == 32  # 2 · 4 · 24 images for 2 processes, in 3 parts
    assert list(stage.smaller(world)) == [18, 12, 6]
    lone = Stage("Step A", "embedding.per_domain", torch.nn.Identity(), 4, 5, 2, 1)
    assert list(lone.smaller(World())) == [4, 3, 2]


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
    assert memory._line(tmp_path / "meminfo", "MemAvailable:", 1024) == 3072
    assert memory._line(tmp_path / "none", "MemAvailable:", 1024) is None

    def seen(machine: int | None, group: int | None) -> int | None:
        monkeypatch.setattr(memory, "_of_machine", lambda: machine)
        monkeypatch.setattr(memory, "_of_group", lambda: group)
        return memory.available()

    cases = {(9, 5): 5, (5, 9): 5, (5, None): 5, (None, 5): 5, (None, None): None}
    assert {case: seen(*case) for case in cases} == cases
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert seen(9, None) == 4
