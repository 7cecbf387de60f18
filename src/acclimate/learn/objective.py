"""The seam between methods and the loop: an objective scores a batch, the loop steps."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.config import OptimiserConfig
from acclimate.core.distributed import World
from acclimate.data.batches import Batch
from acclimate.data.source import sent
from acclimate.learn.models import Output, Predictor


@dataclass(frozen=True)
class Losses:
    """What a batch costs. The loop minimises `total`; both parts are recorded."""

    risk: Tensor
    penalty: Tensor | None = None

    @property
    def total(self) -> Tensor:
        return self.risk if self.penalty is None else self.risk + self.penalty

    def detached(self) -> "Losses":
        """The numbers alone, without what made them."""
        return Losses(self.risk.detach(), None if self.penalty is None else self.penalty.detach())


@dataclass(frozen=True)
class Adversary:
    """Parameters that play against the others, stepped `steps` times for each step of those."""

    module: nn.Module
    optimiser: OptimiserConfig
    steps: int = 1

    def moves(self, step: int) -> bool:
        """Whose turn it is: the adversary's first `steps` of every `steps` + 1."""
        return step % (self.steps + 1) < self.steps


class Objective(nn.Module, ABC):
    """Parameters and state that training changes, and the loss that says how."""

    least_domains: ClassVar[int] = 1
    least_rows: ClassVar[int] = 1  # of a domain in a batch, below which a penalty would be 0
    compilable: ClassVar[bool] = True  # whether the first derivatives of its backbone suffice
    divisible: ClassVar[bool] = True  # whether its backbone may see a batch in micro-batches
    adversary: Adversary | None = None

    @abstractmethod
    def forward(self, batch: Batch, step: int) -> Losses: ...


def mean_by(values: Tensor, group: Tensor) -> Tensor:
    """Mean of `values` in each group present: [b], [b] -> [groups], in order of group number.

    `group` is best the host's, wherever `values` are.
    """
    _, index, count = torch.unique(group, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(count), dtype=values.dtype, device=values.device)
    sums = sums.index_add(0, sent(index, values.device), values)
    means: Tensor = sums / sent(count, values.device)
    return means


class Algorithm(Objective):
    """Subclasses define `Config`, a frozen dataclass of their settings, and `forward`."""

    Config: ClassVar[type[Any]]

    def __init__(
        self,
        predictor: Predictor,
        config: Any,
        *,
        domains: int,
        classes: int,
        world: World,
        seed: int,
    ) -> None:
        super().__init__()
        self.predictor, self.config, self.world, self.seed = predictor, config, world, seed
        self.domains, self.classes = domains, classes

    def predict(self, batch: Batch) -> Output:
        return self.adjusted(self.predictor(batch.x, batch.mu), batch)

    @staticmethod
    def adjusted(output: Output, batch: Batch) -> Output:
        """Prior-aware training: what is left to learn once a domain's label frequencies are known.

        The predictor itself then stands under the frequencies over all training domains.
        """
        if batch.shift is None:
            return output
        return output._replace(logits=output.logits + batch.shift)
