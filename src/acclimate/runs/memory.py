"""Will a batch fit in memory? On a CPU the system kills a run that needs too much, without a word.

What a step needs is tried on a few images before the first one (`trial.py`); a batch that does not
fit is worked off in parts, or, where that cannot be, refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from acclimate.core.distributed import World, local_processes
from acclimate.core.errors import ConfigError
from acclimate.data.source import EVALUATION_BATCH
from acclimate.learn.embeddings import Embedding
from acclimate.learn.models import Predictor
from acclimate.runs.backbone_choice import SMALL
from acclimate.runs.parts import LEAST, said
from acclimate.runs.plan import Plan
from acclimate.runs.trial import Need, line_of, tried

GIB = 1 << 30
TINY = 8 << 20  # bytes of input: below, a batch fits anywhere and is not tried
LOADED = 4  # batches of images that lie ready, are being made or worked on
SCORED = 6  # bytes of a pixel that is scored: two that lie ready, and one as a network takes it
# What validation with its engine, and checkpoints, took beside a step: EfficientNet-Lite0 and
# ResNet-50 at 224 px, 24 to 64 images, with Φ and without, in parts and not.
BESIDE = 0.3 * GIB


@dataclass(frozen=True)
class Stage:
    """What a phase works off at a time. `copies`: passes of an image, 2 with domain mixup."""

    name: str
    setting: str  # that says how many images of a domain there are
    embedding: bool  # Step A
    domains: int
    per_domain: int
    least: int  # images of a domain that a batch must have
    accumulate: int
    copies: int = 1
    divisible: bool = True

    def images(self, per_domain: int, world: World) -> int:
        """That one process holds at a time."""
        return self.copies * self.domains * per_domain // (world.size * self.accumulate)

    def smaller(self, world: World) -> Iterator[int]:
        """Other values of the setting that are allowed, largest first."""
        step = world.size * self.accumulate
        for per_domain in range(self.per_domain - step, 0, -step):
            if per_domain // self.accumulate >= self.least:
                yield per_domain

    def parts(self, need: Need, free: float, world: World) -> int | None:
        """The fewest in which a batch fits; None where none do."""
        images = self.images(self.per_domain, world)
        most = images // LEAST if self.divisible else 1
        fitting = (n for n in range(1, most + 1) if need.of(-(-images // n)) <= free)
        return next(fitting, None)


def fitting_parts(
    plan: Plan,
    world: World,
    size: int,
    *networks: Predictor | Embedding,
    bf16: bool,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, int]:
    """By step, in how many parts its batches, images of `size` px, fit into the memory of a CPU;
    an error where they fit in none. `networks` are those that are yet to be trained.

    A GPU says by itself when it has too little (`Parts.until_it_fits`).
    """
    stages = [stage_of(plan, network) for network in networks]
    asked = plan.config.train.parts
    if asked or world.device.type != "cpu" or plan.on_features:
        return {stage.name: max(asked, 1) for stage in stages}
    found = {stage.name: 1 for stage in stages}
    stages = [stage for stage in stages if not is_tiny(stage, world, size)]
    free = _agreed(available(), world) if stages else None
    for stage in stages if free is not None else []:
        assert free is not None
        need = _agreed_need(measured(plan, stage, size, bf16=bf16) if world.main else None, world)
        if need is None:
            continue
        parts = stage.parts(need, free, world)
        if parts is None:
            raise ConfigError(_too_much(plan, world, stage, need, free, size))
        if parts > 1:
            say(f"{_needed(stage, world, need, free, size)}: {said(parts)}")
        found[stage.name] = parts
    return found


def measured(plan: Plan, stage: Stage, size: int, *, bf16: bool) -> Need | None:
    """What a step takes, with what goes on beside it; None: not known."""
    counts = len(plan.classes), len(plan.train_domains), size
    need = tried(plan.config, *counts, embedding=stage.embedding, bf16=bf16)
    if need is None:
        return None
    pixels = 3 * size**2
    scored = min(int(np.bincount(plan.manifest.domain_index).max()), EVALUATION_BATCH)
    return Need(
        need.fixed + BESIDE,
        need.each + LOADED * 4 * pixels / stage.copies,
        need.scoring + BESIDE + scored * SCORED * pixels,
    )


def is_tiny(stage: Stage, world: World, size: int) -> bool:
    return size <= SMALL and stage.images(stage.per_domain, world) * 3 * size**2 * 4 < TINY


def stage_of(plan: Plan, network: Predictor | Embedding) -> Stage:
    main = plan.config.train
    if isinstance(network, Predictor):
        build = plan.algorithm.build
        return Stage(
            "Step B",
            "train.per_domain",
            False,
            main.domains_per_step,
            main.per_domain,
            build.least_rows,
            main.optimiser.accumulate,
            divisible=build.divisible,
        )
    learn = network.budget(plan.config)
    return Stage(
        "Step A",
        "train.per_domain" if learn is main else "embedding.per_domain",
        True,
        learn.domains_per_step,
        learn.per_domain,
        1 if learn is main else 2,
        learn.optimiser.accumulate,
        copies=network.copies,
        divisible=network.divisible,
    )


def _agreed(mine: float | None, world: World) -> float | None:
    """All processes go by what the first one sees: they refuse together, or not at all."""
    found = torch.tensor([float("inf") if mine is None else mine], dtype=torch.float64)
    world.broadcast(found)
    agreed = found.item()
    return None if agreed == float("inf") else agreed


def _agreed_need(mine: Need | None, world: World) -> Need | None:
    numbers = [None] * len(fields(Need)) if mine is None else astuple(mine)
    agreed = [_agreed(number, world) for number in numbers]
    known = [number for number in agreed if number is not None]
    return Need(*known) if len(known) == len(agreed) else None


def available() -> int | None:
    """Bytes that this process may still take; None where the system does not say."""
    free = [bytes_ for bytes_ in (_of_machine(), _of_group()) if bytes_ is not None]
    # Processes of one run on one machine share it equally.
    return min(free) // local_processes() if free else None


def _too_much(plan: Plan, world: World, stage: Stage, need: Need, free: float, size: int) -> str:
    fitting = (n for n in stage.smaller(world) if need.of(stage.images(n, world)) <= free)
    fits = next(fitting, None)
    if fits is not None:
        remedy = f"lower {stage.setting} from {stage.per_domain} ({fits} would fit)"
    elif plan.config.model.backbone == "small-cnn":
        remedy = f"lower data.image_size from {size}"
    else:
        remedy = f"lower data.image_size from {size}, use model.backbone=small-cnn"
    name = plan.algorithm.name
    why = "" if stage.divisible else f", and {name} cannot work it off in parts"
    return f"{_needed(stage, world, need, free, size)}{why}; {remedy}, or train on a GPU"


def _needed(stage: Stage, world: World, need: Need, free: float, size: int) -> str:
    images = stage.images(stage.per_domain, world)
    batch = "a batch" if stage.accumulate == 1 else "a part of a batch"
    return (
        f"{batch} of {stage.name}, {images} images of {size} px, needs about "
        f"{need.of(images) / GIB:.1f} GiB and {free / GIB:.1f} GiB are free"
    )


def _of_machine() -> int | None:
    return line_of(Path("/proc/meminfo"), "MemAvailable:", 1024)


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
        line_of(folder / "memory.stat", name, 1) or 0 for name in ("active_file", "inactive_file")
    )
    return max(int(limit) - used + cached, 0)
