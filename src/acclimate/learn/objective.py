"""The seam between methods and the loop: an objective scores a batch, the loop steps.

Algorithms learn predictors, embeddings learn Φ; both are objectives.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.config import (
    EmbeddingConfig,
    ModelConfig,
    NoSettings,
    OptimiserConfig,
    RunConfig,
    TrainConfig,
    as_dict,
    from_dict,
)
from acclimate.core.distributed import World
from acclimate.data.batches import Batch, EpisodeSampler, Sampler
from acclimate.data.source import sent
from acclimate.learn.models import Backbone, Output, Predictor


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
    """Subclasses define `forward` and, where they have settings, `Config`, a frozen dataclass."""

    Config: ClassVar[type[Any]] = NoSettings
    over_mu: ClassVar[bool] = True  # whether it also runs over a predictor that sees μ
    fine_tunes: ClassVar[bool] = False  # whether it has a meaning only where a pretrained backbone
    # learns

    def __init__(
        self,
        predictor: Predictor,
        config: Any,
        *,
        domains: int,
        classes: int,
        world: World,
        seed: int,
        embedding: "Embedding | None" = None,  # that it learns with its predictor
    ) -> None:
        super().__init__()
        self.predictor, self.config, self.world, self.seed = predictor, config, world, seed
        self.domains, self.classes, self.embedding = domains, classes, embedding

    @classmethod
    def context(cls, features: int) -> Backbone | None:
        """The network of the Φ that it learns with its predictor, on so many features; None where
        it learns none."""
        return None

    def predict(self, batch: Batch) -> Output:
        return self.adjusted(self.predictor(batch.x, batch.mu), batch)

    def with_hidden(self, output: Output, hidden: Tensor) -> Tensor:
        """The logits for another hidden layer, [b, h] -> [b, classes]: the last layer's, beside
        whatever else made those of `output` (dropout, a condition on μ)."""
        change = F.linear(hidden - output.hidden, self.predictor.last.weight)
        return output.logits + change

    @staticmethod
    def adjusted(output: Output, batch: Batch) -> Output:
        """Prior-aware training: what is left to learn once a domain's label frequencies are known.

        The predictor itself then stands under the frequencies over all training domains.
        """
        if batch.shift is None:
            return output
        return output._replace(logits=output.logits + batch.shift)


class Embedding(Objective):
    """An objective that learns raw features from batches, and Φ, their standardised form.

    Φ(x) = (raw(x) − centre) / spread. Once the features are learned, `standardise` sets centre and
    spread from the training domains, so that a predictor sees μ on a scale it does not ignore. One
    scalar spread, not one per dimension: with three domains a spread per dimension is noise.

    Subclasses may define `Config`, a frozen dataclass of settings beyond those of
    `EmbeddingConfig`; users set them as `embedding.NAME.key`, and `own` holds them.
    """

    Config: ClassVar[type[Any]] = NoSettings
    unused: ClassVar[frozenset[str]] = frozenset()  # fields of EmbeddingConfig that Φ ignores
    centre: Tensor
    spread: Tensor
    least_domains: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        config: EmbeddingConfig,
        *,
        domains: int,
        classes: int,
        world: World,
        seed: int,
        model: ModelConfig | None = None,  # of the run's predictors; None: the defaults
    ) -> None:
        super().__init__()
        self.backbone, self.config, self.world, self.seed = backbone, config, world, seed
        self.domains, self.classes, self.own = domains, classes, self.own_settings(config)
        self.dim = self.dimensions()
        self.register_buffer("centre", torch.zeros(self.dim))
        self.register_buffer("spread", torch.ones(()))

    def dimensions(self) -> int:
        """The number of dimensions of Φ."""
        return self.config.dim

    @classmethod
    def own_settings(cls, config: EmbeddingConfig) -> Any:
        """An instance of `Config`, checked."""
        table, prefix = config.components.get(config.name, {}), f"embedding.{config.name}."
        return from_dict(cls.Config, table, where=config.name, prefix=prefix)

    @classmethod
    def budget(cls, config: RunConfig) -> EmbeddingConfig | TrainConfig:
        """The settings that say how long Φ is trained, how, and on which batches."""
        return config.embedding

    @classmethod
    def identity(cls, config: EmbeddingConfig) -> dict[str, Any]:
        """The settings that Φ depends on: where they agree, so does Φ."""
        left_out = cls.unused | config.components.keys()
        shared = {key: value for key, value in as_dict(config).items() if key not in left_out}
        own = as_dict(cls.own_settings(config))
        return {**shared, config.name: own} if own else shared

    @abstractmethod
    def raw(self, x: Tensor) -> Tensor:
        """Features as learned: [b, ...] -> [b, dim]. Labels are not used."""

    def phi(self, x: Tensor) -> Tensor:
        """[b, ...] -> [b, dim]"""
        return (self.raw(x).float() - self.centre) / self.spread

    @torch.no_grad()
    def standardise(self, means: Tensor) -> None:
        """Centre on the training domains' μ [N, dim]; divide by their root mean square."""
        centre = means.mean(0)
        spread = (means - centre).square().mean().sqrt()
        # Domains that are all alike differ by rounding, which must not be blown up.
        resolution = torch.finfo(torch.float32).eps * means.abs().max()
        self.centre.copy_(centre)
        self.spread.copy_(spread if spread > resolution else torch.ones_like(spread))

    def sampler(
        self,
        domains: Sequence[np.ndarray],
        config: EmbeddingConfig,
        seed: int,
        pictures: np.ndarray | None = None,
    ) -> Sampler:
        """The batches it learns from; rounds of Algorithm 1 unless an embedding says otherwise.
        `pictures` are those of the rows, where several may show one."""
        return EpisodeSampler(
            domains,
            per_domain=config.per_domain,
            domains_per_step=config.domains_per_step,
            support=config.support,
            seed=seed,
            pictures=pictures,
        )
