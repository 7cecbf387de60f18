"""Averages of weights along the way: exponential, or dense over a window that is given."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from acclimate.config import AverageConfig
from acclimate.core.errors import DamagedFile
from acclimate.core.tensors import all_finite


class Average(ABC):
    """Weights other than a module's own that validation or the result of training may use."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Is there anything that could be validated, and kept?"""

    @property
    def window(self) -> tuple[int, int] | None:
        """The first and last step of a mean that is kept whatever validation scored best."""
        return None

    @abstractmethod
    def update(self, done: int) -> None:
        """Take the weights after `done` steps in."""

    @abstractmethod
    def validated(self, done: int, loss: float | None) -> None:
        """Hear what validation after `done` steps found."""

    @abstractmethod
    def applied(self) -> AbstractContextManager[None]:
        """The module with the weights to validate, and with its own again afterwards."""

    @abstractmethod
    def apply(self) -> None:
        """The module with the weights to keep, where there are any."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; `restore` takes it back."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        """From a checkpoint at `path`."""


@final
class Running(Average):
    """The running average of a module's floating-point state; validation and the result use it.

    With `decay` d: w̄ ← d·w̄ + (1 − d)·w after each step, and the plain mean until there are
    1/(1 − d) of them, lest the first weights stay for good. Without: the plain mean over every step
    after the first `after` ones.
    """

    def __init__(self, module: nn.Module, *, decay: float | None = None, after: int = 0) -> None:
        self.module, self.after = module, after
        self.least = 0.0 if decay is None else 1 - decay
        self.mean = Mean()

    @classmethod
    def of(cls, module: nn.Module, config: AverageConfig, steps: int) -> "Running":
        """As settings ask for in a run of `steps`: exponential, or over a window that is given."""
        if config.kind == "ema":
            return cls(module, decay=config.decay)
        return cls(module, after=round(config.start * steps))

    @property
    def ready(self) -> bool:
        return self.mean.count > 0

    def update(self, done: int) -> None:
        if done > self.after:
            self.mean.add(floating(self.module), self.least)

    def validated(self, done: int, loss: float | None) -> None:
        pass  # nothing depends on it

    @contextmanager
    def applied(self) -> Iterator[None]:
        own = {name: value.detach().clone() for name, value in floating(self.module)}
        self.apply()
        try:
            yield
        finally:
            put(self.module, own)

    def apply(self) -> None:
        put(self.module, self.mean.values)

    def tensors(self) -> dict[str, Tensor]:
        return self.mean.tensors()

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.mean = Mean.of(tensors, self.module, path)


@final
class Mean:
    """A running mean of named tensors."""

    def __init__(self) -> None:
        self.count = 0
        self.values: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, values: Iterable[tuple[str, Tensor]], least: float = 0.0, count: int = 1) -> None:
        """Take `values` in, the mean of `count`; their share is at least `least`."""
        self.count += count
        share = max(count / self.count, least)
        for name, value in values:
            if self.count == count:
                self.values[name] = value.detach().clone()
            else:
                self.values[name].lerp_(value, share)

    def merge(self, other: "Mean") -> None:
        if other.count:
            self.add(other.values.items(), count=other.count)

    def tensors(self) -> dict[str, Tensor]:
        named = {f"mean/{name}": value for name, value in self.values.items()}
        return {"count": torch.tensor(self.count), **named}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], module: nn.Module, path: Path) -> "Mean":
        """What `tensors` gave away, from a checkpoint at `path`, where `module` has its weights."""
        own = dict(floating(module))
        shapes = {"count": (), **{f"mean/{name}": tuple(own[name].shape) for name in own}}
        wrong = [name for name, value in tensors.items() if shapes.get(name) != tuple(value.shape)]
        if wrong or "count" not in tensors or not all_finite(tensors.values()):
            raise DamagedFile(path)
        mean = cls()
        mean.count = int(tensors["count"])
        mean.values = {
            name: tensors[f"mean/{name}"].to(own[name].device)
            for name in own
            if f"mean/{name}" in tensors
        }
        return mean


def floating(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            yield name, value


@torch.no_grad()
def put(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Overwrite what `values` has of the module's state."""
    for name, value in floating(module):
        if name in values:
            value.copy_(values[name])
