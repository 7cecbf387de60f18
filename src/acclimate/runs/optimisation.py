"""One step of an optimiser: its parameters, learning rate, precision, clipping and turns."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from acclimate.config import OptimiserConfig, RunConfig, TrainConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError
from acclimate.data.batches import Batch
from acclimate.learn.algorithms import ChosenAlgorithm
from acclimate.learn.embeddings import find_embedding
from acclimate.learn.objective import Adversary, Losses, Objective
from acclimate.runs.compiling import FasterBody


@dataclass(frozen=True)
class Stepper:
    """Steps an objective; `module` is the objective, or what shares its gradients out.

    The learning rate and the random state are those that it finds.
    """

    objective: Objective
    module: nn.Module
    optimiser: torch.optim.Optimizer
    settings: OptimiserConfig
    device: torch.device
    bf16: bool
    faster: FasterBody | None = None

    def gradients(self, batch: Batch, step: int) -> list[Losses]:
        """Gradients, and what each part of the batch cost; no parameter has moved yet."""
        parts = self.settings.accumulate
        self.objective.train()
        self.optimiser.zero_grad(set_to_none=True)
        if self.faster is not None:
            self.faster.begin_step()
        return [self._gradients(batch.part(part, parts), step, parts) for part in range(parts)]

    def move(self, step: int) -> None:
        moving = int(adversary_moves(self.objective, step))
        resting = [group for i, group in enumerate(self.optimiser.param_groups) if i != moving]
        for parameter in (p for group in resting for p in group["params"]):
            parameter.grad = None  # optimisers leave parameters without a gradient alone
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.objective.parameters(), self.settings.clip)
        self.optimiser.step()

    def _gradients(self, part: Batch, step: int, parts: int) -> Losses:
        device = self.device.type
        with torch.autocast(device, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            losses: Losses = self.module(part, step)
        (losses.total / parts).backward()  # type: ignore[no-untyped-call]
        return losses.detached()


def adversary_moves(objective: Objective, step: int) -> bool:
    return objective.adversary is not None and objective.adversary.moves(step)


def steps_of(objective: Objective, moves: int) -> int:
    """In which the model itself moves so many times."""
    adversary = objective.adversary
    return moves if adversary is None else moves * (adversary.steps + 1)


def uses_bf16(train: TrainConfig, device: torch.device) -> bool:
    if train.precision == "auto":
        return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return train.precision == "bf16"


def check_batches(
    config: RunConfig, algorithm: ChosenAlgorithm, world: World, *, main: bool = True
) -> None:
    """Refuse batches that cannot be shared out; without `main`, only those of Step A."""
    train = config.train
    if main:
        check_shares(train.per_domain, world, train.optimiser, algorithm.build.least_rows)
        if train.micro_batches > 1 and not algorithm.build.divisible:
            raise ConfigError(
                f"train.micro_batches is {train.micro_batches}, and {algorithm.name} cannot divide "
                f"a batch; leave train.micro_batches at 0"
            )
    if algorithm.adaptive:
        learn = find_embedding(config.embedding.name).build.budget(config)
        check_shares(learn.per_domain, world, learn.optimiser)


def check_shares(
    per_domain: int, world: World, optimiser: OptimiserConfig, least_rows: int = 1
) -> None:
    """Every process and every part must get equally many images of each domain, and a part enough
    for the objective to see more than single images of a domain."""
    if per_domain % world.size:
        raise ConfigError(
            f"{per_domain} images of a domain cannot be shared equally by {world.size} processes; "
            f"make train.per_domain and embedding.per_domain multiples of {world.size}"
        )
    share, parts = per_domain // world.size, optimiser.accumulate
    if share % parts:
        raise ConfigError(
            f"{share} images of a domain cannot be worked off in {parts} equal parts; make the "
            f"optimiser's accumulate a divisor of {share}"
        )
    if per_domain // parts < least_rows:
        raise ConfigError(
            f"the penalty needs {least_rows} images of a domain at a time, and gets "
            f"{per_domain // parts}; raise train.per_domain or lower train.optimiser.accumulate"
        )


def make_optimiser(
    module: nn.Module, settings: OptimiserConfig, adversary: Adversary | None = None
) -> torch.optim.Optimizer:
    """One optimiser; an adversary's parameters are its second group, with settings of their own."""
    theirs = list(adversary.module.parameters()) if adversary else []
    known = {id(parameter) for parameter in theirs}
    own = [p for p in module.parameters() if p.requires_grad and id(p) not in known]
    groups = [_group(own, settings)]
    if adversary is not None:
        theirs_own = adversary.optimiser
        against = replace(
            settings,  # schedule, warm-up and kind are the run's
            lr=settings.lr if theirs_own.lr is None else theirs_own.lr,
            weight_decay=theirs_own.weight_decay,
            beta1=theirs_own.beta1,
        )
        groups.append(_group(theirs, against))
    # One kernel for all weights. On a CPU the plain one stays: its sums round otherwise.
    fused = all(parameter.is_cuda for parameter in own)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.SGD
    return kind(groups, fused=True) if fused else kind(groups)


def _group(parameters: list[nn.Parameter], settings: OptimiserConfig) -> dict[str, Any]:
    assert settings.lr is not None, "the plan decides the learning rate"
    shared = {"params": parameters, "settings": settings, "lr": settings.lr}
    shared["weight_decay"] = settings.weight_decay
    if settings.name == "adam":
        return shared | {"betas": (settings.beta1, 0.999)}
    return shared | {"momentum": settings.momentum}


def learning_rate(settings: OptimiserConfig, step: int, steps: int) -> float:
    """Linear warm-up over `warmup` steps, then constant or a half cosine to 0 at `steps`."""
    assert settings.lr is not None
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    along = (step - settings.warmup) / max(steps - settings.warmup, 1)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * along))
