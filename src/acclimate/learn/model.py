"""A trained model: predictor, Φ and the training domains, as one folder of safetensors and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from acclimate.config import RunConfig, as_dict, completed, from_dict
from acclimate.core.distributed import World
from acclimate.core.errors import RunError
from acclimate.core.files import write_json
from acclimate.core.layout import MODEL, REHEARSAL, RUN, WEIGHTS, is_pruned, stored
from acclimate.core.tensors import below, save_tensors, tensors_digest
from acclimate.learn.algorithms import choose
from acclimate.learn.embeddings import DomainTable, Embedding, find_embedding
from acclimate.learn.models import (
    Backbone,
    Conditioned,
    Predictor,
    build_backbone,
    build_plain,
    takes_features,
)
from acclimate.learn.models import freeze_batch_norm as freeze
from acclimate.learn.site import Site

FORMAT = "acclimate-model-1"


class StartingPoint(NamedTuple):
    """What adaptation starts from."""

    predictor: Predictor
    embedding: Embedding | None
    table: DomainTable | None
    prior_aware: bool  # it stands under training's label frequencies, whatever the domain


@dataclass(frozen=True)
class Trained:
    """What `adapt`, `predict` and `evaluate` need; plain models have no `embedding` and `table`."""

    config: RunConfig
    classes: tuple[str, ...]
    train_domains: tuple[str, ...]
    data: str  # digest of the manifest it was trained on
    label_prior: tuple[float, ...]  # class frequencies in training, each domain counting equally
    size: int  # side of input images, or the number of features
    predictor: Predictor
    embedding: Embedding | None = None
    table: DomainTable | None = None
    val_domains: tuple[str, ...] = ()  # they chose the weights
    test_domains: tuple[str, ...] | None = None  # None: not known, in models of earlier versions
    site: Site | None = None  # a rehearsed plain model's second path, over features
    rehearsal: Mapping[str, Any] | None = None
    _digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Now, not when somebody asks: a model is made of finished weights, and only of those.
        digest = tensors_digest(_tensors(self.predictor, self.embedding, self.site))
        object.__setattr__(self, "_digest", digest)

    @property
    def adaptive(self) -> bool:
        """Whether it has an embedding to adapt by."""
        return self.embedding is not None or self.site is not None

    def start(self, *, embedding: bool) -> StartingPoint:
        """The predictor to start from with the domain's embedding, or without it."""
        if embedding and self.site is not None:
            backbone = self.predictor.backbone
            over = self.site
            if not takes_features(self.predictor):
                over = self.site.over(backbone.extractor or backbone)
            return StartingPoint(over.predictor, over.embedding, over.table, prior_aware=True)
        aware = self.config.train.prior_aware
        return StartingPoint(self.predictor, self.embedding, self.table, prior_aware=aware)

    def digest(self) -> str:
        """Identifies the weights; domain states carry it."""
        return self._digest

    def save(self, folder: Path) -> None:
        tensors = dict(_tensors(self.predictor, self.embedding, self.site))
        if self.table is not None:
            tensors |= {f"domains/{key}": value for key, value in self.table.tensors().items()}
        if self.rehearsal is not None:
            write_json(folder / REHEARSAL, self.rehearsal)
        save_tensors(folder / WEIGHTS, tensors)
        # The description comes last: where it is, the weights are.
        write_json(folder / MODEL, self._description())

    def _description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config": as_dict(self.config),
            "classes": list(self.classes),
            "train_domains": list(self.train_domains),
            "val_domains": list(self.val_domains),
            "test_domains": None if self.test_domains is None else list(self.test_domains),
            "data": self.data,
            "label_prior": list(self.label_prior),
            "size": self.size,
            "in_features": self._in_features(),
            "digest": self.digest(),
        }

    def _in_features(self) -> int | None:
        """Width of the feature vectors that its backbones learned on, None for images."""
        extractor = self.predictor.backbone.extractor
        if extractor is not None:
            return extractor.features
        return self.size if self.config.model.backbone == "mlp" else None

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "Trained":
        description = _read_description(folder)
        if is_pruned(folder):
            raise RunError(
                f"{folder}: its weights were pruned after the sweep chose another run; train it "
                f"again, or use the selected run"
            )
        try:
            tensors = load_file(folder / WEIGHTS, device="cpu")
        except (SafetensorError, FileNotFoundError):
            raise RunError(
                f"{folder / WEIGHTS} is missing or damaged; restore it, or train again "
                f"in another folder"
            ) from None
        config = from_dict(RunConfig, completed(description["config"]), where=str(folder / MODEL))
        predictor, embedding = build_networks(
            config,
            len(description["classes"]),
            len(description["train_domains"]),
            description["in_features"],
            pretrained=False,
        )
        if config.model.freeze == "backbone":
            put_on(build_extractor(config, pretrained=False), predictor, embedding)
        _fill(predictor, below(tensors, "predictor."), folder)
        table = None
        if embedding is not None:
            shared = {key: t for key, t in predictor.state_dict().items() if _extracts(key)}
            _fill(embedding, {**below(tensors, "embedding."), **shared}, folder)
            ready(embedding, device).eval()
            table = DomainTable.from_tensors(
                description["train_domains"], below(tensors, "domains/"), description["digest"]
            )
        ready(predictor, device).eval()
        val, test = _unseen_domains(folder, description, config)
        site = None
        if parts := below(tensors, "site."):
            names, classes = description["train_domains"], len(description["classes"])
            site = Site.from_tensors(
                parts, names, classes, config.adapt.site, description["digest"]
            ).to(device)
        rehearsal = folder / REHEARSAL
        return cls(
            config,
            tuple(description["classes"]),
            tuple(description["train_domains"]),
            description["data"],
            tuple(description["label_prior"]),
            description["size"],
            predictor,
            embedding,
            table,
            val,
            test,
            site,
            stored(rehearsal) if rehearsal.exists() else None,
        )


def ready(network: nn.Module, device: torch.device | str) -> nn.Module:
    """On its device, and channels-last as images come: the faster layout for convolutions. A model
    that is loaded must compute in the layout that it was trained in, or its sums round otherwise.
    """
    network.to(device)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def build_networks(
    config: RunConfig,
    classes: int,
    domains: int,
    in_features: int | None,
    *,
    pretrained: bool,
    world: World | None = None,
) -> tuple[Predictor, Embedding | None]:
    """The predictor and, for adaptive algorithms, Φ; random or pretrained, reproducibly seeded.

    With a frozen backbone they are what learns on its features, of which there are `in_features`;
    `put_on` puts them on it.

    Φ comes first: its random weights are then those that `build_embedding` alone gives.
    """
    model = config.model
    if not choose(config.algorithm, config.hparams).adaptive:
        backbone = _backbone(config, in_features, pretrained=pretrained)
        return build_plain(backbone, classes, model), None
    embedding = build_embedding(
        config, classes, domains, in_features, pretrained=pretrained, world=world
    )
    predictor = Conditioned(
        _backbone(config, in_features, pretrained=pretrained),
        classes,
        mu_dim=embedding.dim,
        condition=model.condition,
        width=model.width,
        hidden=model.hidden,
        dropout=model.dropout,
    )
    return predictor, embedding


def build_embedding(
    config: RunConfig,
    classes: int,
    domains: int,
    in_features: int | None,
    *,
    pretrained: bool,
    world: World | None = None,
) -> Embedding:
    """Φ on its own."""
    return find_embedding(config.embedding.name).build(
        _backbone(config, in_features, pretrained=pretrained),
        config.embedding,
        domains=domains,
        classes=classes,
        world=world or World(),
        seed=config.seed,
        model=config.model,
    )


def build_extractor(config: RunConfig, *, pretrained: bool) -> Backbone:
    """The backbone of a run that freezes it, in eval mode and without gradients."""
    extractor = _built(config, None, pretrained=pretrained)
    return extractor.requires_grad_(False).eval()


def put_on(extractor: Backbone, *networks: Predictor | Embedding | None) -> None:
    """Let networks that learned on the features of `extractor` take images."""
    for network in networks:
        if network is not None:
            network.backbone.put_on(extractor)


def _backbone(config: RunConfig, in_features: int | None, *, pretrained: bool) -> Backbone:
    if config.model.freeze == "backbone":
        # On features as on a manifest's: a linear head alone would leave penalties nothing to
        # change, and Φ could only turn and stretch what is there.
        return build_backbone("mlp", in_features=in_features)
    built = _built(config, in_features, pretrained=pretrained)
    if config.model.freeze_batch_norm != "no":
        freeze(built, affine=config.model.freeze_batch_norm == "all")
    return built


def _built(config: RunConfig, in_features: int | None, *, pretrained: bool) -> Backbone:
    model = config.model
    return build_backbone(
        model.backbone,
        pretrained=pretrained and model.pretrained,
        weights=(model.weights or None) if pretrained else None,
        in_features=in_features,
    )


def _fill(network: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Load weights; those of another network are an earlier version's, or somebody else's."""
    try:
        network.load_state_dict(tensors)
    except RuntimeError:
        raise RunError(
            f"{folder / WEIGHTS} holds weights of another network than {MODEL} describes; use the "
            f"version of acclimate that wrote it, or train again in another folder"
        ) from None


def _tensors(
    predictor: nn.Module, embedding: nn.Module | None, site: Site | None
) -> list[tuple[str, Tensor]]:
    """All weights; an extractor that both have is the predictor's alone."""
    parts = {"predictor": predictor, "embedding": embedding}
    found = [
        (f"{part}.{name}", value)
        for part, module in parts.items()
        if module is not None
        for name, value in module.state_dict().items()
        if part == "predictor" or not _extracts(name)
    ]
    further = {} if site is None else site.tensors()
    return found + [(f"site.{name}", value) for name, value in further.items()]


def _extracts(name: str) -> bool:
    """Is a tensor of a network a part of its extractor?"""
    return name.startswith("backbone.extractor.")


def _unseen_domains(
    folder: Path, description: dict[str, Any], config: RunConfig
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Validation and test domains as the run resolved them, roles of its manifest included.

    Models of earlier versions leave that to their run's identity; without one, the settings tell
    of validation domains that were asked for by name.
    """
    known = description
    if "val_domains" not in known:
        known = stored(folder / RUN) if (folder / RUN).exists() else {}
    test = known.get("test_domains")
    return (
        tuple(known.get("val_domains", config.val_domains)),
        None if test is None else tuple(test),
    )


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / MODEL
    if not folder.exists():
        raise RunError(f"{folder}: no such run folder; train one with `acclimate train`")
    if not path.exists():
        unfinished = (folder / RUN).exists()
        raise RunError(
            f"{folder}: the run is not finished; repeat its `acclimate train` command to resume it"
            if unfinished
            else f"{folder}: not a run folder (no {MODEL}); give the --out of `acclimate train`"
        )
    description = stored(path)
    if description.get("format") != FORMAT:
        raise RunError(
            f"{path}: format {description.get('format')}, this version reads {FORMAT}; "
            f"use the version of acclimate that wrote it"
        )
    return description
