"""What moves the weights: batch shares, optimiser and schedule; and averages along the way."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from acclimate.config import AverageConfig, OptimiserConfig, RunConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError
from acclimate.core.tensors import below, fill
from acclimate.learn.algorithms import ChosenAlgorithm
from acclimate.learn.embeddings import find_embedding
from acclimate.learn.objective import Adversary


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
    """Refuse a batch unless every process and every part gets equally many images of each domain,
    and a part at least the `least_rows` that the objective compares."""
    share, parts = per_domain // world.size, optimiser.accumulate
    if per_domain % world.size:
        raise ConfigError(
            f"{per_domain} images of a domain cannot be shared equally by {world.size} processes; "
            f"make train.per_domain and embedding.per_domain multiples of {world.size}"
        )
    if share % parts:
        raise ConfigError(
            f"{share} images of a domain cannot be divided into {parts} equal parts; make the "
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
        other = adversary.optimiser
        lr = settings.lr if other.lr is None else other.lr
        # Schedule, warm-up and kind are the run's.
        against = replace(settings, lr=lr, weight_decay=other.weight_decay, beta1=other.beta1)
        groups.append(_group(theirs, against))
    # One kernel for all weights. On a CPU the plain one stays: its sums round otherwise.
    fused = all(parameter.is_cuda for parameter in own)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.SGD
    return kind(groups, fused=True) if fused else kind(groups)


def _group(parameters: list[nn.Parameter], settings: OptimiserConfig) -> dict[str, Any]:
    own: dict[str, Any] = {"momentum": settings.momentum}
    if settings.name == "adam":
        own = {"betas": (settings.beta1, 0.999)}
    own |= {"params": parameters, "lr": settings.lr, "weight_decay": settings.weight_decay}
    return own | {"settings": settings}


def learning_rate(settings: OptimiserConfig, step: int, steps: int) -> float:
    """Linear warm-up over `warmup` steps, then constant or a half cosine to 0 at `steps`."""
    assert settings.lr is not None, "the plan decides the learning rate"
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    along = (step - settings.warmup) / max(steps - settings.warmup, 1)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * along))


def _floating(module: nn.Module) -> list[Tensor]:
    return [value for value in module.state_dict().values() if value.is_floating_point()]


class WeightMean(AveragedModel):
    """The mean of a module's floating-point state over steps, the last with `least` or more."""

    def __init__(self, module: nn.Module, least: float = 0.0) -> None:
        def averaged(mean: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
            if not new.is_floating_point():
                return new
            return torch.lerp(mean, new, max(1 / (int(count) + 1), least))

        super().__init__(module, avg_fn=averaged, use_buffers=True)

    def merge(self, other: "WeightMean") -> None:
        """Take in the mean of other steps."""
        count, total = int(other.n_averaged), int(self.n_averaged + other.n_averaged)
        if count:
            for own, new in zip(_floating(self.module), _floating(other.module), strict=True):
                own.lerp_(new, count / total)
            self.n_averaged.fill_(total)

    def copy_to(self, module: nn.Module) -> None:
        for own, mean in zip(_floating(module), _floating(self.module), strict=True):
            own.copy_(mean)


class Average:
    """The running average of a module's state; validation and the result of training use it.

    With `decay` d: w̄ ← d·w̄ + (1 − d)·w after each step, and the plain mean until there are
    1/(1 − d) of them, lest the first weights stay for good. Without: the plain mean over every step
    after the first `after` ones.
    """

    window: tuple[int, int] | None = None  # steps of a mean that is kept whatever scored best

    def __init__(self, module: nn.Module, *, decay: float = 1.0, after: int = 0) -> None:
        self.module, self.after = module, after
        self.mean = WeightMean(module, 1 - decay)

    @property
    def ready(self) -> bool:
        """Whether there is anything that could be validated, and kept."""
        return bool(self.mean.n_averaged)

    def update(self, done: int) -> None:
        """Take in the weights after `done` steps."""
        if done > self.after:
            self.mean.update_parameters(self.module)

    def validated(self, done: int, loss: float | None) -> None:
        """Hear the validation loss after `done` steps."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the module has the weights to validate, and afterwards its own again."""
        before = [value.detach().clone() for value in _floating(self.module)]
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for own, value in zip(_floating(self.module), before, strict=True):
                    own.copy_(value)

    @torch.no_grad()
    def apply(self) -> None:
        """Give the module the weights to keep, where there are any."""
        if self.ready:
            self.mean.copy_to(self.module)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; `restore` takes it back."""
        return dict(self.mean.state_dict())

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        fill(self.mean, tensors, path)


def make_average(module: nn.Module, config: AverageConfig, steps: int) -> Average | None:
    """The average that settings ask for, in a phase of `steps`."""
    if config.kind == "none":
        return None
    if config.kind == "swad":
        return Swad(module, config)
    if config.kind == "ema":
        return Average(module, decay=config.decay)
    return Average(module, after=round(config.start * steps))


@dataclass(frozen=True)
class Valley:
    """Validations, counted from 0, between which the loss is low.

    `last` is the latest that was not above the limit. While the valley is open, what comes after
    it may still belong to it.
    """

    first: int
    last: int
    open: bool


def find_valley(
    losses: Sequence[float], *, patience: int, tolerance: int, ratio: float
) -> Valley | None:
    """Algorithm 1 of the SWAD paper, on the losses so far; None as long as no valley has begun.

    It begins at the first validation that none of the `patience` − 1 after it goes below; their
    mean times `ratio` is the limit. It ends before the first `tolerance` in a row above the limit.
    """
    for first in range(len(losses) - patience + 1):
        beginning = losses[first : first + patience]
        if losses[first] == min(beginning):
            break
    else:
        return None
    limit, last = ratio * fmean(beginning), first
    for place, loss in enumerate(losses[first:], start=first):
        if loss <= limit:
            last = place
        elif place - last == tolerance:
            return Valley(first, last, open=False)
    return Valley(first, last, open=True)


class Swad(Average):
    """The mean over every step of the valley; validation sees the weights themselves.

    Steps are taken in by stretches, each up to a validation. Those that will be kept or dropped
    together are one mean, so that only a few copies of the weights are held. `mean` is that of the
    steps since the last validation.
    """

    ready = True  # the weights themselves are validated

    def __init__(self, module: nn.Module, config: AverageConfig) -> None:
        super().__init__(module)
        self.config = config
        self.losses: list[float] = []
        self.steps: list[int] = []  # of the validations
        self.stretches: list[tuple[int, int, WeightMean]] = []  # from and to which validation

    @property
    def valley(self) -> Valley | None:
        config = self.config
        return find_valley(
            self.losses, patience=config.patience, tolerance=config.tolerance, ratio=config.ratio
        )

    @property
    def window(self) -> tuple[int, int] | None:  # type: ignore[override]
        """None where the loss never stopped falling."""
        valley = self.valley
        if valley is None:
            return None
        before = self.steps[valley.first - 1] if valley.first else 0
        return before + 1, self.steps[-1 if valley.open else valley.last]

    def update(self, done: int) -> None:
        valley = self.valley
        if valley is None or valley.open:
            super().update(done)

    @torch.no_grad()
    def validated(self, done: int, loss: float | None) -> None:
        valley = self.valley
        if loss is None or (valley is not None and not valley.open):
            return
        self.stretches.append((len(self.losses), len(self.losses), self.mean))
        self.losses.append(loss)
        self.steps.append(done)
        self.mean = WeightMean(self.module)
        valley = self.valley
        if valley is None:
            # No valley begins with a stretch before a lower loss.
            while min(self.losses[self.stretches[0][0] :]) < self.losses[self.stretches[0][0]]:
                self.stretches.pop(0)
            return
        inside = [one for one in self.stretches if one[1] <= valley.last]
        outside = [one for one in self.stretches if one[1] > valley.last]
        self.stretches = [_join(inside)]
        if valley.open and outside:
            self.stretches.append(_join(outside))

    @contextmanager
    def applied(self) -> Iterator[None]:
        yield

    @torch.no_grad()
    def apply(self) -> None:
        if self.valley is not None:
            self.stretches = [_join(self.stretches)]
            self.stretches[0][2].copy_to(self.module)

    def tensors(self) -> dict[str, Tensor]:
        means = {"mean": self.mean} | {f"{a}-{b}": mean for a, b, mean in self.stretches}
        return {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "steps": torch.tensor(self.steps, dtype=torch.int64),
            **{f"{k}/{name}": v for k, m in means.items() for name, v in m.state_dict().items()},
        }

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.losses, self.steps = tensors["losses"].tolist(), tensors["steps"].tolist()
        fill(self.mean, below(tensors, "mean/"), path)
        names = {name.split("/")[0] for name in tensors} - {"losses", "steps", "mean"}
        for first, last in sorted(tuple(map(int, name.split("-"))) for name in names):
            mean = WeightMean(self.module)
            fill(mean, below(tensors, f"{first}-{last}/"), path)
            self.stretches.append((first, last, mean))


def _join(stretches: Sequence[tuple[int, int, WeightMean]]) -> tuple[int, int, WeightMean]:
    mean = stretches[0][2]
    for _, _, other in stretches[1:]:
        mean.merge(other)
    return stretches[0][0], stretches[-1][1], mean
