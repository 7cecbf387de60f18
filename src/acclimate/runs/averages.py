"""Averages of weights along the way: exponential, over the last steps, and SWAD's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from acclimate.config import AverageConfig
from acclimate.core.tensors import below, fill


def _floating(module: nn.Module) -> list[Tensor]:
    return [value for value in module.state_dict().values() if value.is_floating_point()]


@torch.no_grad()
def _copy(values: Sequence[Tensor], module: nn.Module) -> None:
    for own, value in zip(_floating(module), values, strict=True):
        own.copy_(value)


class WeightMean(AveragedModel):
    """The mean of a module's floating-point state over steps, the last with `least` or more."""

    def __init__(self, module: nn.Module, least: float = 0.0) -> None:
        def averaged(mean: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
            if not new.is_floating_point():
                return new
            return torch.lerp(mean, new, max(1 / (int(count) + 1), least))

        super().__init__(module, avg_fn=averaged, use_buffers=True)

    @torch.no_grad()
    def merge(self, other: "WeightMean") -> None:
        """Take in the mean of other steps."""
        count, total = int(other.n_averaged), int(self.n_averaged + other.n_averaged)
        if count:
            for own, new in zip(_floating(self.module), _floating(other.module), strict=True):
                own.lerp_(new, count / total)
            self.n_averaged.fill_(total)


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
            _copy(before, self.module)

    def apply(self) -> None:
        """Give the module the weights to keep, where there are any."""
        if self.ready:
            _copy(_floating(self.mean.module), self.module)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; `restore` takes it back."""
        return dict(self.mean.state_dict())

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        fill(self.mean, tensors, path)


def make_average(module: nn.Module, config: AverageConfig, steps: int) -> Average:
    """The average that settings ask for, in a phase of `steps`."""
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


def find_valley(losses: Sequence[float], config: AverageConfig) -> Valley | None:
    """Algorithm 1 of the SWAD paper, on the losses so far; None as long as no valley has begun.

    It begins at the first validation that none of the `patience` − 1 after it goes below; their
    mean times `ratio` is the limit. It ends before the first `tolerance` in a row above the limit.
    """
    for first in range(len(losses) - config.patience + 1):
        beginning = losses[first : first + config.patience]
        if losses[first] == min(beginning):
            break
    else:
        return None
    limit, last = config.ratio * fmean(beginning), first
    for place, loss in enumerate(losses[first:], start=first):
        if loss <= limit:
            last = place
        elif place - last == config.tolerance:
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
        self.stretches: dict[int, WeightMean] = {}  # by the number of the validation at its end

    @property
    def valley(self) -> Valley | None:
        return find_valley(self.losses, self.config)

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

    def validated(self, done: int, loss: float | None) -> None:
        valley = self.valley
        if loss is None or (valley is not None and not valley.open):
            return
        self.stretches[len(self.losses)] = self.mean
        self.losses.append(loss)
        self.steps.append(done)
        self.mean = WeightMean(self.module)
        valley = self.valley
        if valley is None:
            # A valley that begins later begins with one of the last `patience` − 1 validations.
            self.stretches.pop(len(self.losses) - self.config.patience, None)
            return
        self._join(range(valley.last + 1))
        if valley.open:
            self._join(range(valley.last + 1, len(self.losses)))
        else:
            self.stretches = {valley.last: self.stretches[valley.last]}

    @contextmanager
    def applied(self) -> Iterator[None]:
        yield

    def apply(self) -> None:
        if self.valley is not None:
            self._join(range(len(self.losses)))
            (mean,) = self.stretches.values()
            _copy(_floating(mean.module), self.module)

    def _join(self, validations: range) -> None:
        """Make one stretch of those that end with one of `validations`."""
        ends = sorted(end for end in self.stretches if end in validations)
        if ends:
            mean = self.stretches.pop(ends[0])
            for end in ends[1:]:
                mean.merge(self.stretches.pop(end))
            self.stretches[ends[-1]] = mean

    def tensors(self) -> dict[str, Tensor]:
        means = {"mean": self.mean} | {str(end): mean for end, mean in self.stretches.items()}
        return {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "steps": torch.tensor(self.steps, dtype=torch.int64),
            **{f"{k}/{name}": v for k, m in means.items() for name, v in m.state_dict().items()},
        }

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.losses, self.steps = tensors["losses"].tolist(), tensors["steps"].tolist()
        fill(self.mean, below(tensors, "mean/"), path)
        ends = {name.split("/")[0] for name in tensors} - {"losses", "steps", "mean"}
        for end in sorted(map(int, ends)):
            self.stretches[end] = WeightMean(self.module)
            fill(self.stretches[end], below(tensors, f"{end}/"), path)
