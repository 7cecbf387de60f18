"""Averages of weights along the way: exponential, or dense over the end of training (as SWAD)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from acclimate.config import AverageConfig
from acclimate.core.errors import DamagedFile
from acclimate.core.tensors import all_finite


class Average:
    """The running average of a module's floating-point state; validation and the result use it.

    ema: w̄ ← d·w̄ + (1 − d)·w after each step, and the plain mean until there are 1/(1 − d) of
    them, lest the first weights stay for good. window: the plain mean over every step after `start`
    of the run, SWAD's dense averaging with a window given instead of searched.
    """

    def __init__(self, module: nn.Module, config: AverageConfig, steps: int) -> None:
        self.module, self.config = module, config
        self.first = round(config.start * steps) if config.kind == "window" else 0
        self.count = 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, done: int) -> None:
        """Take the weights after `done` steps in."""
        if done <= self.first:
            return
        self.count += 1
        forgotten = 0.0 if self.config.kind == "window" else 1 - self.config.decay
        new = max(1 / self.count, forgotten)
        for name, value in self._floating():
            if self.count == 1:
                self.mean[name] = value.detach().clone()
            else:
                self.mean[name].lerp_(value, new)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module with averaged weights, and with its own again afterwards."""
        own = {name: value.detach().clone() for name, value in self._floating()}
        self.apply()
        try:
            yield
        finally:
            self._copy(own)

    def apply(self) -> None:
        self._copy(self.mean)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; `restore` takes it back."""
        return {"count": torch.tensor(self.count), **{f"mean/{k}": v for k, v in self.mean.items()}}

    def restore(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        """From a checkpoint at `path`."""
        own = dict(self._floating())
        shapes = {"count": (), **{f"mean/{name}": tuple(own[name].shape) for name in own}}
        wrong = [name for name, value in tensors.items() if shapes.get(name) != tuple(value.shape)]
        if wrong or "count" not in tensors or not all_finite(tensors.values()):
            raise DamagedFile(path)
        self.count = int(tensors["count"])
        self.mean = {
            name: tensors[f"mean/{name}"].to(own[name].device)
            for name in own
            if f"mean/{name}" in tensors
        }

    def _floating(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.module.state_dict().items():
            if value.is_floating_point():
                yield name, value

    @torch.no_grad()
    def _copy(self, values: Mapping[str, Tensor]) -> None:
        for name, value in self._floating():
            if name in values:
                value.copy_(values[name])
