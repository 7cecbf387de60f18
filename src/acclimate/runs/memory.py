"""Will a training step fit into memory? Arithmetic for CPUs, where the system kills a process that
takes too much, without a word; a GPU raises an error, and the loop then divides the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from acclimate.core.distributed import World, local_processes
from acclimate.core.errors import ConfigError
from acclimate.learn.models import Backbone
from acclimate.learn.models.backbones import SMALL, keep_buffers
from acclimate.learn.objective import Objective

GIB = 1 << 30
LEAST = 2  # images of a micro-batch: batch norm takes no single one
COPIES = 4  # of the weights: gradients and Adam's two moments beside them
# Batches that lie ready, the allocator's gaps, validation and checkpoints beside a step: measured
# on EfficientNet-Lite0 and ResNet-50 at 224 px, 24 to 64 images.
BESIDE, SLACK = 0.3 * GIB, 1.2
LOWER = "lower train.per_domain, embedding.per_domain or data.image_size"


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a training step takes: `fixed`, and for each image of a micro-batch."""

    fixed: float
    per_image: float

    def of(self, images: int) -> float:
        return self.fixed + self.per_image * images

    def micro_batches(self, images: int, free: float) -> int | None:
        """The fewest micro-batches of `images` that fit into `free` bytes; None where none do."""
        counts = range(1, max(images // LEAST, 1) + 1)
        return next((n for n in counts if self.of(-(-images // n)) <= free), None)


def step_memory(backbones: Sequence[Backbone], size: int) -> StepMemory:
    """What training `backbones` on images of `size` px takes, counted on a pass of two images."""
    fixed, per_image = BESIDE, 0.0
    for backbone in backbones:
        weights = sum(p.nbytes for p in backbone.parameters())
        fixed += COPIES * weights
        per_image += max(_saved_bytes(backbone, size) - weights, 0) / 2 * SLACK
    return StepMemory(fixed, per_image)


def _saved_bytes(backbone: Backbone, size: int) -> int:
    """Bytes that autograd keeps of a forward pass of two images, weights among them."""
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor
        return tensor

    x = torch.zeros(2, 3, size, size, device=backbone.mean.device)
    was_training = backbone.training
    with keep_buffers(backbone), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        backbone.train()
        backbone.normalised_body(x.contiguous(memory_format=torch.channels_last))
    backbone.train(was_training)
    return sum(tensor.nbytes for tensor in saved.values())


def fitting_micro_batches(
    objective: Objective,
    backbones: Sequence[Backbone],
    images: int,
    size: int,
    world: World,
    say: Callable[[str], None],
) -> int:
    """In how many micro-batches steps of `images` fit into the memory of a CPU; 1 elsewhere, and
    for small images. An error where none do."""
    if world.device.type != "cpu" or not backbones or size <= SMALL:
        return 1
    free = torch.tensor([available_bytes() or float("inf")], dtype=torch.float64)
    world.broadcast(free)  # processes refuse together, or not at all
    memory = step_memory(backbones, size)
    count = memory.micro_batches(images, free.item())
    needed = (
        f"a step of {images} images of {size} px needs about {memory.of(images) / GIB:.1f} GiB and "
        f"{free.item() / GIB:.1f} GiB are free"
    )
    if count == 1:
        return 1
    if count is None or not objective.divisible:
        why = "" if objective.divisible else f", and {type(objective).__name__} cannot divide it"
        raise ConfigError(f"{needed}{why}; {LOWER}, or train on a GPU")
    say(f"{needed}: {micro_batch_note(count)}")
    return count


def micro_batch_note(count: int) -> str:
    return (
        f"training in {count} micro-batches, with one more forward pass each; losses are those of "
        f"the whole batch, and batch norm takes each micro-batch's statistics"
    )


def available_bytes() -> int | None:
    """Bytes that this process may still take; None where the system does not say."""
    known = [free for free in (_machine_bytes(), _container_bytes()) if free is not None]
    # Processes of one run on one machine share it equally.
    return min(known) // local_processes() if known else None


def _machine_bytes() -> int | None:
    return _number(Path("/proc/meminfo"), "MemAvailable:", 1024)


def _container_bytes(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container's limit leaves. Cached files count as used there, but give way."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None  # "max"
    names = ("active_file", "inactive_file")
    cached = sum(_number(folder / "memory.stat", name, 1) or 0 for name in names)
    return max(int(limit) - used + cached, 0)


def _number(path: Path, name: str, unit: int) -> int | None:
    """The number behind `name` in a file of the system, in bytes."""
    try:
        fields = (line.split() for line in path.read_text().splitlines())
        return next((int(field[1]) * unit for field in fields if field[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None
