"""The second path of a plain model: Φ and a conditioned head over the features of its backbone.

Both are learned once the backbone is finished, from its features in memory: in seconds, and the
plain model stays exactly what it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.config import EmbeddingConfig, NoSettings, SiteConfig
from acclimate.core.distributed import World
from acclimate.core.errors import DamagedFile
from acclimate.core.randomness import derive, own_generator, own_weights
from acclimate.core.tensors import below, fill, read_tensors, save_tensors
from acclimate.data.batches import (
    Batch,
    DomainSampler,
    Sampler,
    fit_ratios,
    label_prior,
    label_shifts,
)
from acclimate.data.columns import label_counts
from acclimate.data.source import in_parts
from acclimate.learn.algorithms.erm import ERM
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding, find_embedding
from acclimate.learn.models import Backbone, Head, Predictor, build_backbone
from acclimate.learn.models.backbones import row_statistics
from acclimate.learn.models.predictors import ConditionedHead, LinearHead, Sizes, identity_backbone
from acclimate.learn.objective import Objective

LEAST_DOMAINS = 4  # to learn from, for Φ and a conditioned head to make sense
FEW_DOMAINS = 10  # below, domain mixup helps Φ see more than a handful of domains
MOST_DOMAINS_PER_STEP = 64
PASSES, LEAST_BATCH = 30, 64  # over few rows: more of them teach heads nothing
SCALE, CENTRE = "scale", "centre"  # names of tensors on disk


@dataclass(frozen=True)
class Features:
    """Labelled rows of features of several domains, in memory; an image that many rows show is
    there once."""

    x: Tensor  # [m, f], of images
    y: Tensor  # [n]
    domains: Sequence[np.ndarray]  # rows of each domain
    classes: int
    image: Tensor | None = None  # [n]: that of each row; None: each has its own

    def at(self, rows: np.ndarray | Tensor) -> Tensor:
        """Their features: [k, f]."""
        return self.x[rows] if self.image is None else self.x[self.image[rows]]

    def among(self, chosen: Sequence[int], allowed: np.ndarray | None = None) -> "Features":
        """Only these domains, and only their rows that are `allowed` [n]."""
        rows = [self.domains[number] for number in chosen]
        if allowed is not None:
            rows = [part[allowed[part]] for part in rows]
        return replace(self, domains=rows)

    @property
    def prior(self) -> Tensor:
        """Class frequencies over the domains, each counting equally: [C] float64."""
        return torch.from_numpy(label_prior(self._counts))

    @cached_property
    def ratios(self) -> np.ndarray:
        """How the domains' class frequencies vary; see `fit_ratios`."""
        return fit_ratios(self._counts, label_prior(self._counts))

    def shifts(self) -> Tensor:
        """What knowing a domain's frequencies adds to logits: [N, C]; see `Batch.shift`."""
        return torch.from_numpy(label_shifts(self._counts)).float().to(self.x.device)

    def backbone(self, *, layers: bool = False) -> Backbone:
        """Features centred and scaled by these rows, and layers on them where asked for."""
        width = self.x.shape[1]
        built = build_backbone("mlp", in_features=width) if layers else identity_backbone(width)
        built.set_statistics(*self._statistics)
        return built.to(self.x.device)

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        rows = np.concatenate(self.domains)
        return row_statistics(lambda: map(self.at, in_parts(rows)))

    @cached_property
    def _counts(self) -> np.ndarray:
        return label_counts(self.y.cpu().numpy(), self.domains, self.classes)


@dataclass(frozen=True)
class Site:
    """Φ, the training domains' μ, and F(x, μ), over the features of the plain model's backbone.

    `scale` is that of the plain model's logits beside those of F, which are averaged with them.
    """

    embedding: Embedding
    table: DomainTable
    predictor: Predictor  # of features: it centres and scales them first
    scale: float = 1.0
    centre: Tensor | None = None  # [h] float64: the training domains' mean hidden layer

    def to(self, device: torch.device | str) -> "Site":
        self.embedding.to(device)
        self.predictor.to(device)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """For a file, from which `from_tensors` takes it back."""
        parts = {"embedding.": self.embedding.state_dict(), "domains/": self.table.tensors()}
        parts["predictor."] = self.predictor.state_dict()
        named = {part + key: value for part, own in parts.items() for key, value in own.items()}
        named[SCALE] = torch.tensor(self.scale)
        return named if self.centre is None else {**named, CENTRE: self.centre}

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        names: Sequence[str],
        classes: int,
        config: SiteConfig,
        model: str,
        path: Path,
    ) -> "Site":
        """The site that a file at `path` should hold."""
        if not {"predictor.backbone.mean", SCALE} <= tensors.keys():
            raise DamagedFile(path)
        backbone = identity_backbone(tensors["predictor.backbone.mean"].numel())
        embedding, predictor = build_site(backbone, len(names), classes, config)
        fill(embedding, below(tensors, "embedding."), path)
        fill(predictor, below(tensors, "predictor."), path)
        states, centre = below(tensors, "domains/"), tensors.get(CENTRE)
        table = DomainTable.from_tensors(names, states, model, embedding.dim, path)
        if centre is not None and centre.shape != predictor.last.weight.shape[1:]:
            raise DamagedFile(path)
        return cls(embedding.eval(), table, predictor.eval(), float(tensors[SCALE]), centre)

    def at_centre(self) -> Head:
        """F(·, μ) with the mean of the training domains' μ."""
        mu = self.table.means.mean(0)
        return self.predictor.fold(mu.to(self.predictor.device)).eval()


@torch.no_grad()
def mean_hidden(head: Head, rows: Features) -> Tensor:
    """The mean hidden layer over the rows of each domain, each counting equally: [h] float64."""

    def total(index: np.ndarray) -> Tensor:
        parts = (head(rows.at(some)).hidden.double().sum(0) for some in in_parts(index))
        return sum(parts, torch.zeros((), dtype=torch.float64)).cpu()

    own = [index for index in rows.domains if len(index)]
    return torch.stack([total(index) / len(index) for index in own]).mean(0)


def fit_plain(
    rows: Features,
    config: SiteConfig,
    *,
    layers: bool,
    prior_aware: bool = False,
    dropout: float = 0.0,
    seed: int,
    store: Path | None = None,
) -> Predictor:
    """ERM on features: what a plain model would be without some of its domains.

    `layers`: whether it learns layers of its own on the features, as one on a frozen backbone.
    `store`: a folder that keeps what was fitted; what it has is not fitted again.
    """
    with own_weights(derive(seed, "plain head")):
        backbone = rows.backbone(layers=layers)
        plain = Predictor(backbone, LinearHead(backbone.features, rows.classes, dropout))
    plain.to(rows.x.device)
    shift = rows.shifts() if prior_aware else None
    objective, sampler = _erm(plain, rows, seed), _sampler(rows, config, seed)
    file = store and store / "plain.safetensors"
    _fit(objective, sampler, rows, config, seed, shift=shift, file=file)
    return plain.eval()


def fit_site(
    rows: Features,
    names: Sequence[str],
    config: SiteConfig,
    *,
    seed: int,
    store: Path | None = None,
) -> Site:
    """Φ by prototypes, then F(x, μ) in prior-aware training; `store` as of `fit_plain`."""
    with own_weights(derive(seed, "site")):
        embedding, predictor = build_site(
            rows.backbone(), len(names), rows.classes, config, seed=derive(seed, "embedding")
        )
    pictures = None if rows.image is None else rows.image.cpu().numpy()
    sampler = embedding.sampler(rows.domains, embedding.config, embedding.seed, pictures)
    embedding.to(rows.x.device)
    _fit(embedding, sampler, rows, config, seed, file=store and store / "phi.safetensors")
    table = _embed(embedding.eval(), rows, names)
    objective = _erm(predictor.to(rows.x.device), rows, seed)
    means = table.means.float().to(rows.x.device)
    sampler, file = _sampler(rows, config, seed), store and store / "conditioned.safetensors"
    _fit(objective, sampler, rows, config, seed, mu=means, shift=rows.shifts(), file=file)
    return Site(embedding, table, predictor.eval())


def build_site(
    backbone: Backbone, domains: int, classes: int, config: SiteConfig, *, seed: int = 0
) -> tuple[Embedding, Predictor]:
    """Φ and F(x, μ) over `backbone`, not learned yet."""
    settings = EmbeddingConfig(
        dim=config.dim,
        domains_per_step=max(2, min(16, domains)),
        mixup="on" if domains < FEW_DOMAINS else "off",
    )
    embedding = find_embedding(settings.name).build(
        backbone, settings, domains=domains, classes=classes, world=World(), seed=seed
    )
    sizes = Sizes(backbone.features, classes, config.width, config.width, config.dropout)
    head = ConditionedHead(sizes, mu_dim=config.dim, condition="low-rank")
    return embedding, Predictor(backbone, head)


@torch.no_grad()
def _embed(embedding: Embedding, rows: Features, names: Sequence[str]) -> DomainTable:
    """The domains' states, and Φ standardised by them."""

    def states() -> dict[str, DomainState]:
        empty = DomainState.empty("", embedding.dim)
        parts = zip(names, rows.domains, strict=True)
        return {name: empty.updated(embedding.phi(rows.at(index))) for name, index in parts}

    embedding.standardise(DomainTable(states()).means)
    return DomainTable(states())


def _erm(predictor: Predictor, rows: Features, seed: int) -> ERM:
    sizes: dict[str, Any] = {"domains": len(rows.domains), "classes": rows.classes}
    return ERM(predictor, NoSettings(), **sizes, world=World(), seed=seed)


def batch_size(rows: int, config: SiteConfig) -> int:
    """Rows in a step of heads that are fitted on this number of rows."""
    return min(config.batch, max(PASSES * rows // config.steps, LEAST_BATCH))


def _sampler(rows: Features, config: SiteConfig, seed: int) -> DomainSampler:
    slots = min(len(rows.domains), MOST_DOMAINS_PER_STEP)
    share = max(batch_size(sum(map(len, rows.domains)), config) // slots, 1)
    return DomainSampler(rows.domains, per_domain=share, domains_per_step=slots, seed=seed)


def _fit(
    objective: Objective,
    sampler: Sampler,
    rows: Features,
    config: SiteConfig,
    seed: int,
    *,
    mu: Tensor | None = None,
    shift: Tensor | None = None,
    file: Path | None = None,
) -> None:
    """`config.steps` of AdamW; `mu` and `shift` are those of each domain. Where `file` is there,
    its weights are taken; otherwise it is written."""
    if file is not None and file.exists():
        fill(objective, read_tensors(file)[0], file)
        return
    device = rows.x.device
    optimiser = torch.optim.AdamW(
        objective.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.steps)
    objective.train()
    # Sent once: a GPU would wait longer for each step's than the step takes.
    chosen = torch.from_numpy(np.stack([np.stack(sampler.rows(s)) for s in range(config.steps)]))
    for step, (index, domain) in enumerate(chosen.to(device)):
        batch = Batch(
            rows.at(index),
            rows.y[index],
            chosen[step, 1],
            None if mu is None else mu[domain],
            None if shift is None else shift[domain],
        )
        optimiser.zero_grad(set_to_none=True)
        # Dropout is the step's, as in the loop.
        with own_generator(derive(seed, "step", step), rows.x.device):
            total = objective(batch, step).total
        total.backward()
        optimiser.step()
        schedule.step()
    if file is not None:
        save_tensors(file, objective.state_dict())
