"""Averages of weights along the way, on `torch.optim.swa_utils`: exponential, dense over the last
steps, or SWAD (Cha et al. 2021), dense from where the validation loss stops falling to where it
rises for good."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from acclimate.config import AverageConfig
from acclimate.core.errors import DamagedFile
from acclimate.core.tensors import below, fill


class WeightMean:
    """The mean of a module's floating-point state over steps, the last with `least` or more."""

    def __init__(self, module: nn.Module, least: float = 0.0) -> None:
        self.least = least
        self.model = AveragedModel(module, avg_fn=self._averaged, use_buffers=True)

    @property
    def count(self) -> int:
        return int(self.model.n_averaged)

    def add(self, module: nn.Module) -> None:
        self.model.update_parameters(module)

    def merge(self, other: "WeightMean") -> None:
        """Take in the mean of other steps."""
        total = self.count + other.count
        if other.count:
            pairs = zip(_floating(self.model.module), _floating(other.model.module), strict=True)
            for (_, own), (_, new) in pairs:
                own.lerp_(new, other.count / total)
            self.model.n_averaged.fill_(total)

    def copy_to(self, module: nn.Module) -> None:
        for (_, own), (_, mean) in zip(
            _floating(module), _floating(self.model.module), strict=True
        ):
            own.copy_(mean)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        fill(self.model, dict(tensors), path)

    def _averaged(self, mean: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
        if not new.is_floating_point():
            return new
        return torch.lerp(mean, new, max(1 / (int(count) + 1), self.least))


@torch.no_grad()
def _floating(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            yield name, value


class Average:
    """The running average of a module's state; validation and the result of training use it.

    With `decay` d: w̄ ← d·w̄ + (1 − d)·w after each step, and the plain mean until there are
    1/(1 − d) of them, lest the first weights stay for good. Without: the plain mean over every step
    after the first `after` ones.
    """

    window: tuple[int, int] | None = None  # steps of a mean that is kept whatever scored best

    def __init__(self, module: nn.Module, *, decay: float | None = None, after: int = 0) -> None:
        self.module, self.after = module, after
        self.mean = WeightMean(module, 0.0 if decay is None else 1 - decay)

    @property
    def ready(self) -> bool:
        """Whether there is anything that could be validated, and kept."""
        return self.mean.count > 0

    def update(self, done: int) -> None:
        """Take in the weights after `done` steps."""
        if done > self.after:
            self.mean.add(self.module)

    def validated(self, done: int, loss: float | None) -> None:
        """Hear the validation loss after `done` steps."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the module has the weights to validate, and afterwards its own again."""
        own = {name: value.detach().clone() for name, value in _floating(self.module)}
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in _floating(self.module):
                    value.copy_(own[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Give the module the weights to keep, where there are any."""
        if self.ready:
            self.mean.copy_to(self.module)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; `restore` takes it back."""
        return self.mean.tensors()

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.mean.restore(tensors, path)


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
    """Algorithm 1 of the paper, on the losses so far; None as long as no valley has begun.

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
    together are one mean, so that only a few copies of the weights are held.
    """

    ready = True  # the weights themselves are validated

    def __init__(self, module: nn.Module, config: AverageConfig) -> None:
        super().__init__(module)
        self.config = config
        self.losses: list[float] = []
        self.steps: list[int] = []  # of the validations
        self.stretches: list[tuple[int, int, WeightMean]] = []  # from and to which validation
        # `mean` is that of the steps since the last validation.

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

    @property
    def _over(self) -> bool:
        valley = self.valley
        return valley is not None and not valley.open

    def update(self, done: int) -> None:
        if not self._over:
            self.mean.add(self.module)

    @torch.no_grad()
    def validated(self, done: int, loss: float | None) -> None:
        if loss is None or self._over:
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
        held = {f"mean/{name}": value for name, value in self.mean.tensors().items()}
        for place, (first, last, mean) in enumerate(self.stretches):
            named = {"place": torch.tensor([first, last]), **mean.tensors()}
            held |= {f"stretches/{place}/{name}": value for name, value in named.items()}
        losses = torch.tensor(self.losses, dtype=torch.float64)
        return {"losses": losses, "steps": torch.tensor(self.steps, dtype=torch.int64), **held}

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        try:
            self.losses, self.steps = tensors["losses"].tolist(), tensors["steps"].tolist()
            self.mean.restore(below(tensors, "mean/"), path)
            self.stretches = []
            while stored := below(tensors, f"stretches/{len(self.stretches)}/"):
                first, last = stored.pop("place").tolist()
                mean = WeightMean(self.module)
                mean.restore(stored, path)
                self.stretches.append((first, last, mean))
        except (KeyError, TypeError, ValueError):
            raise DamagedFile(path) from None


def _join(stretches: Sequence[tuple[int, int, WeightMean]]) -> tuple[int, int, WeightMean]:
    mean = stretches[0][2]
    for _, _, other in stretches[1:]:
        mean.merge(other)
    return stretches[0][0], stretches[-1][1], mean
