"""Will a batch fit in memory? On a CPU the system kills a run that needs too much, without a word.

The activations that a step keeps for its gradients are nearly all that it needs. They are measured
on a few images before the first step, and nothing that a run computes depends on it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError
from acclimate.core.generators import turns
from acclimate.learn.embeddings import Embedding
from acclimate.learn.models import Conditioned, Predictor
from acclimate.runs.plan import Plan

GIB = 1 << 30
TINY = 16 << 20  # bytes of input: below, a batch fits anywhere and is not measured
FEW = (2, 3)  # images to measure with; batch norm takes no single one


@dataclass(frozen=True)
class Stage:
    """What a phase works off at a time. `copies`: passes of an image, 2 with domain mixup."""

    name: str
    setting: str  # that says how many images of a domain there are
    network: nn.Module
    domains: int
    per_domain: int
    least: int  # images of a domain that a part must have
    parts: int
    copies: int = 1

    def images(self, per_domain: int, world: World) -> int:
        """That one process holds at a time."""
        return self.copies * self.domains * per_domain // (world.size * self.parts)

    def smaller(self, world: World) -> Iterator[int]:
        """Other values of the setting that are allowed, largest first."""
        step = world.size * self.parts
        for per_domain in range(self.per_domain - step, 0, -step):
            if per_domain // self.parts >= self.least:
                yield per_domain


@dataclass(frozen=True)
class Need:
    """Bytes that a network keeps for its gradients: some for each image, some whatever they are."""

    fixed: float
    each: float

    def of(self, images: int) -> float:
        return self.fixed + self.each * images


def check_memory(
    plan: Plan, world: World, size: int, *networks: Predictor | Embedding, bf16: bool
) -> None:
    """Refuse a run whose batches, images of `size` px, would not fit in the memory of a CPU.

    `networks` are those that are yet to be trained.
    """
    if world.device.type != "cpu" or plan.manifest.has_features or plan.frozen:
        return
    stages = [stage_of(plan, network) for network in networks]
    stages = [stage for stage in stages if _input(stage, world, size) >= TINY]
    if not stages:
        return
    # All processes go by what the first one sees: they refuse together, or not at all.
    seen = available()
    found = torch.tensor([float("inf") if seen is None else seen], dtype=torch.float64)
    world.broadcast(found)
    free = found.item()
    if free == float("inf"):
        return
    for stage in stages:
        need = measure(stage.network, size, bf16=bf16)
        images = stage.images(stage.per_domain, world)
        if need.of(images) > free:
            raise ConfigError(_too_much(plan, world, stage, need, free, size))


def stage_of(plan: Plan, network: Predictor | Embedding) -> Stage:
    main = plan.config.train
    if isinstance(network, Predictor):
        least = plan.algorithm.build.least_rows
        return Stage(
            "Step B",
            "train.per_domain",
            network,
            main.domains_per_step,
            main.per_domain,
            least,
            main.optimiser.accumulate,
        )
    learn = network.budget(plan.config)
    return Stage(
        "Step A",
        "train.per_domain" if learn is main else "embedding.per_domain",
        network.backbone,
        learn.domains_per_step,
        learn.per_domain,
        1 if learn is main else 2,
        learn.optimiser.accumulate,
        copies=network.copies,
    )


def measure(network: nn.Module, size: int, *, bf16: bool = False) -> Need:
    """From two passes over few images; weights, statistics, modes and random state stay."""
    few, more = FEW
    with _as_in_training(network), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        small, large = (_kept(network, count, size) for count in FEW)
    each = (large - small) / (more - few)
    return Need(small - few * each, each)


def available() -> int | None:
    """Bytes that this process may still take; None where the system does not say."""
    free = [bytes_ for bytes_ in (_of_machine(), _of_group()) if bytes_ is not None]
    # Processes of one run on one machine share it equally.
    return min(free) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if free else None


@contextmanager
def _as_in_training(network: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in network.modules()]
    try:
        with turns(), torch.enable_grad():
            network.train()
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _kept(network: nn.Module, count: int, size: int) -> int:
    """Bytes that the gradients of a pass over `count` images would need, weights left out."""
    images = torch.rand(count, 3, size, size).contiguous(memory_format=torch.channels_last)
    # Batch norm changes its statistics in passing: it gets copies.
    buffers = {name: value.clone() for name, value in network.named_buffers()}
    stays = {
        value.untyped_storage().data_ptr() for value in (*network.parameters(), *buffers.values())
    }
    storages: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in stays:
            storages[storage.data_ptr()] = storage
        return tensor

    inputs: tuple[Tensor, ...] = (images,)
    if isinstance(network, Conditioned):
        inputs = (images, torch.zeros(count, network.mu_dim))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        functional_call(network, buffers, inputs)
    return sum(storage.nbytes() for storage in storages.values())


def _input(stage: Stage, world: World, size: int) -> int:
    return stage.images(stage.per_domain, world) * 3 * size**2 * 4


def _too_much(plan: Plan, world: World, stage: Stage, need: Need, free: float, size: int) -> str:
    images = stage.images(stage.per_domain, world)
    fitting = (n for n in stage.smaller(world) if need.of(stage.images(n, world)) <= free)
    fits = next(fitting, None)
    if fits is not None:
        remedy = f"lower {stage.setting} from {stage.per_domain} ({fits} would fit)"
    elif plan.config.model.backbone == "small-cnn":
        remedy = f"lower data.image_size from {size}"
    else:
        remedy = f"lower data.image_size from {size}, use model.backbone=small-cnn"
    batch = "a batch" if stage.parts == 1 else "a part of a batch"
    return (
        f"{batch} of {stage.name}, {images} images of {size} px, needs about "
        f"{need.of(images) / GIB:.1f} GiB and {free / GIB:.1f} GiB are free; "
        f"{remedy}, or train on a GPU"
    )


def _of_machine() -> int | None:
    return _line(Path("/proc/meminfo"), "MemAvailable:", 1024)


def _of_group(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container's limit leaves. Cached files count as used there, but give way."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None  # "max"
    cached = sum(
        _line(folder / "memory.stat", name, 1) or 0 for name in ("active_file", "inactive_file")
    )
    return max(int(limit) - used + cached, 0)


def _line(path: Path, name: str, unit: int) -> int | None:
    """The number behind `name` in a file of the system, in bytes."""
    try:
        fields = (line.split() for line in path.read_text().splitlines())
        return next((int(field[1]) * unit for field in fields if field[0] == name), None)
    except (OSError, ValueError, IndexError):
        return None
