"""The other embeddings of Table 4: by-products of a classifier, of classes or of domains.

Each trains its network by cross-entropy over all rows of a batch and takes Φ from it. Only that
loss sees labels. Domain mixup and the share of support are the prototypes' and do not apply.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.config import EmbeddingConfig, ModelConfig, RunConfig, TrainConfig
from acclimate.data.batches import Batch, DomainSampler, Sampler
from acclimate.data.source import sent
from acclimate.learn.models import Predictor, build_head
from acclimate.learn.objective import Embedding, Losses


class _Classified(Embedding):
    """Φ out of a network that learns to classify; shares of a batch simply average."""

    unused = frozenset({"mixup", "support"})

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """[b, ...] -> [b, outputs]"""

    @abstractmethod
    def target(self, batch: Batch) -> Tensor:
        """What the logits should say: [b]"""

    def forward(self, batch: Batch, step: int) -> Losses:
        logits = self.logits(batch.x)
        if batch.shift is not None:  # as the run `erm` that this one is
            logits = logits + batch.shift
        return Losses(risk=F.cross_entropy(logits, self.target(batch)))

    def sampler(
        self,
        domains: Sequence[np.ndarray],
        config: EmbeddingConfig | TrainConfig,
        seed: int,
        pictures: np.ndarray | None = None,
    ) -> Sampler:
        """Equal shares of domains that take turns; there is no support and query to tell apart."""
        return DomainSampler(
            domains,
            per_domain=config.per_domain,
            domains_per_step=config.domains_per_step,
            seed=seed,
        )


class FromERM(_Classified):
    """Φ out of the ERM baseline itself: Step A is the training of the run `erm` with the same
    settings, batch by batch, so it has that run's budget and not the embedding's."""

    unused = _Classified.unused | {"dim", "steps", "domains_per_step", "per_domain", "optimiser"}

    def __init__(self, *args: Any, model: ModelConfig | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head = build_head(self.backbone.features, self.classes, model or ModelConfig())

    @classmethod
    def budget(cls, config: RunConfig) -> TrainConfig:
        return config.train

    @property
    def predictor(self) -> Predictor:
        """The ERM model, which shares its weights with Φ."""
        return Predictor(self.backbone, self.head)

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x)).logits
        return logits

    def target(self, batch: Batch) -> Tensor:
        return batch.y


@final
class Mean(FromERM):
    """Φ = the backbone's features (`pool5`) in an ERM model; `config.dim` does not apply."""

    def dimensions(self) -> int:
        return self.backbone.features

    def raw(self, x: Tensor) -> Tensor:
        features: Tensor = self.backbone(x)
        return features


@final
class Posterior(FromERM):
    """Φ = an ERM model's class probabilities; `config.dim` does not apply.

    Under label shift μ is the model's soft confusion matrix times the domain's label frequencies:
    what a predictor needs to know of the domain, in as few numbers as there are classes.
    """

    def dimensions(self) -> int:
        return self.classes

    def raw(self, x: Tensor) -> Tensor:
        return self.logits(x).float().softmax(dim=1)


@final
class Softmax(_Classified):
    """Φ = backbone and one linear layer, as the prototypes' is, below a classifier of domains."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # No bias: the classifier's does the same.
        self.layer = nn.Linear(self.backbone.features, self.dim, bias=False)
        self.classifier = nn.Linear(self.dim, self.domains)

    def raw(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(self.backbone(x))
        return features

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.raw(x))
        return logits

    def target(self, batch: Batch) -> Tensor:
        return sent(batch.domain, batch.y.device)
