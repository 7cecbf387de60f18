"""SWAD (Cha et al. 2021): a dense mean of weights, from where the validation loss stops falling to
where it rises for good."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

import torch
from torch import Tensor, nn

from acclimate.config import AverageConfig
from acclimate.core.errors import DamagedFile
from acclimate.core.tensors import below
from acclimate.runs.averaging import Average, Mean, floating, put


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


@final
class Swad(Average):
    """The mean over every step of the valley; validation sees the weights themselves.

    Steps are taken in by stretches, each up to a validation. Those that will be kept or dropped
    together are one mean, so that only a few copies of the weights are held.
    """

    def __init__(self, module: nn.Module, config: AverageConfig) -> None:
        self.module, self.config = module, config
        self.valley: Valley | None = None
        self.losses: list[float] = []
        self.steps: list[int] = []  # of the validations
        self.stretches: list[_Stretch] = []  # closed ones that may yet be kept
        self.running = Mean()  # since the last validation

    @property
    def ready(self) -> bool:
        return True  # the weights themselves

    @property
    def window(self) -> tuple[int, int] | None:
        """None where the loss never stopped falling."""
        valley = self.valley
        if valley is None:
            return None
        before = self.steps[valley.first - 1] if valley.first else 0
        return before + 1, self.steps[-1 if valley.open else valley.last]

    def update(self, done: int) -> None:
        if not self._over:
            self.running.add(floating(self.module))

    def validated(self, done: int, loss: float | None) -> None:
        if loss is None or self._over:
            return
        self.stretches.append(_Stretch(len(self.losses), len(self.losses), self.running))
        self.losses.append(loss)
        self.steps.append(done)
        self.running = Mean()
        valley = self.valley = self._found()
        if valley is None:
            self._drop_beaten()
            return
        inside = [one for one in self.stretches if one.last <= valley.last]
        outside = [one for one in self.stretches if one.last > valley.last]
        self.stretches = [_joined(inside)]
        if valley.open and outside:
            self.stretches.append(_joined(outside))

    def applied(self) -> AbstractContextManager[None]:
        return nullcontext()

    def apply(self) -> None:
        if self.valley is not None:
            self.stretches = [_joined(self.stretches)]
            put(self.module, self.stretches[0].mean.values)

    def tensors(self) -> dict[str, Tensor]:
        held = {f"running/{name}": value for name, value in self.running.tensors().items()}
        for place, one in enumerate(self.stretches):
            facts = torch.tensor([one.first, one.last])
            named = {"facts": facts, **one.mean.tensors()}
            held |= {f"stretches/{place}/{name}": value for name, value in named.items()}
        losses = torch.tensor(self.losses, dtype=torch.float64)
        return {"losses": losses, "steps": torch.tensor(self.steps, dtype=torch.int64), **held}

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        try:
            self.losses, self.steps = tensors["losses"].tolist(), tensors["steps"].tolist()
            self.valley = self._found()
            self.running = Mean.of(below(tensors, "running/"), self.module, path)
            self.stretches = []
            while stored := below(tensors, f"stretches/{len(self.stretches)}/"):
                first, last = stored.pop("facts").tolist()
                self.stretches.append(_Stretch(first, last, Mean.of(stored, self.module, path)))
        except (KeyError, TypeError, ValueError):
            raise DamagedFile(path) from None

    @property
    def _over(self) -> bool:
        return self.valley is not None and not self.valley.open

    def _found(self) -> Valley | None:
        config = self.config
        return find_valley(
            self.losses, patience=config.patience, tolerance=config.tolerance, ratio=config.ratio
        )

    def _drop_beaten(self) -> None:
        """Stretches before a lower loss: no valley begins with them."""
        while min(self.losses[self.stretches[0].first :]) < self.losses[self.stretches[0].first]:
            self.stretches.pop(0)


@dataclass(frozen=True)
class _Stretch:
    """The mean of the weights over the steps up to validation `first`, and on to `last`."""

    first: int
    last: int
    mean: Mean


def _joined(stretches: Sequence[_Stretch]) -> _Stretch:
    mean = stretches[0].mean
    for one in stretches[1:]:
        mean.merge(one.mean)
    return _Stretch(stretches[0].first, stretches[-1].last, mean)
