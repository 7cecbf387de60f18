"""A trained model: predictor, Φ and the training domains, as one folder of safetensors and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from acclimate.config import RunConfig, as_dict, from_dict
from acclimate.core.distributed import World
from acclimate.core.errors import DamagedFile, NotFinite, RunError, damage_is
from acclimate.core.files import Fields, write_document
from acclimate.core.randomness import own_weights
from acclimate.core.tensors import (
    Undrawn,
    all_finite,
    below,
    fill,
    read_tensors,
    save_tensors,
    tensors_digest,
)
from acclimate.data.batches import RATIOS
from acclimate.learn.algorithms import choose
from acclimate.learn.embeddings import (
    DomainState,
    DomainTable,
    Embedding,
    JointEmbedding,
    find_embedding,
)
from acclimate.learn.models import (
    Backbone,
    Predictor,
    accelerate,
    build_backbone,
    build_head,
    freeze_batch_norm,
    takes_features,
)
from acclimate.learn.models.class_vectors import unit_predictor
from acclimate.learn.models.predictors import LinearHead, PairHead, identity_backbone
from acclimate.learn.site import Site
from acclimate.records.folder import (
    AGAIN,
    CHECKSUMS,
    MODEL,
    REHEARSAL,
    RUN,
    WEIGHTS,
    check,
    is_pruned,
    stored,
    write_checksums,
)
from acclimate.records.rehearsal import CLASS_VECTORS, NETWORK, PAIR, STARTS, Rehearsal

MOST_SIDE = 4096  # pixels, as of `data.image_size`
CONFUSION, CENTRE = "rehearsal/confusion", "rehearsal/centre"  # names of tensors on disk
# Fields of a model that its description holds as they are.
DOMAINS_AND_CLASSES = ("classes", "train_domains", "val_domains", "test_domains")
DESCRIBED = (*DOMAINS_AND_CLASSES, "data", "label_prior", "label_ratios", "size")


class Model(NamedTuple):
    """What adaptation starts from: networks, and what training knows of its domains."""

    predictor: Predictor
    embedding: Embedding | None = None  # of images, or of the features of the predictor's backbone
    table: DomainTable | None = None
    prior_aware: bool = False  # it stands under training's label frequencies, whatever the domain
    label_prior: Sequence[float] = ()  # class frequencies in training, each domain counting equally
    ratios: Sequence[float] | None = None  # how frequencies vary between domains: see `fit_ratios`
    centre: Tensor | None = None  # [h] float64: the training domains' mean hidden layer

    def at(self, state: DomainState | None) -> Predictor:
        """F(·, μ), or, where `state` holds no μ, F at the training domains' centre. A plain
        predictor is the same for all domains."""
        if not self.predictor.mu_dim:
            return self.predictor
        assert self.table is not None
        mu = self.table.means.mean(0)
        if state is not None and state.holds_mu:
            state.require_width(len(mu))
            mu = state.mean
        return self.predictor.fold(mu.to(self.predictor.device)).eval()

    def at_centre(self) -> "Model":
        """The plain model that it is at the training domains' centre."""
        return self._replace(predictor=self.at(None), embedding=None, table=None)

    def scaled(self, factor: float) -> "Model":
        """This model with its logits times `factor`."""
        return self._replace(predictor=self.predictor.scaled(factor))

    @property
    def below_phi(self) -> Backbone | None:
        """The backbone whose features Φ takes, None for a Φ of images."""
        backbone = None if self.embedding is None else self.embedding.backbone
        return self.predictor.backbone if backbone is not None and not backbone.size else None


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
    test_domains: tuple[str, ...] = ()
    site: Site | None = None  # a rehearsed plain model's second path, over features
    rehearsal: Rehearsal | None = None
    label_ratios: tuple[float, ...] = ()  # how frequencies vary: see `fit_ratios`; (): not known
    # Of a rehearsed model on new images of its domains: [C predicted, C true], and the mean hidden
    # layer [h].
    confusion: Tensor | None = None
    centre: Tensor | None = None
    _digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Now, not when somebody asks: a model is made of finished weights, and only of those.
        digest = tensors_digest(_tensors(self.predictor, self.embedding, self.site))
        object.__setattr__(self, "_digest", digest)

    @property
    def adaptive(self) -> bool:
        """Whether it has an embedding to adapt by."""
        return self.embedding is not None or self.site is not None

    def start(self, *, embedding: bool) -> Model:
        """The model to start from with the domain's embedding, or without it. A rehearsed one is
        calibrated: its logits are divided by the temperature that fits held-out domains."""
        known = self.label_prior, self.label_ratios or None
        if self.site is not None and (embedding or self.plain_is_pair):
            model = self._second_path(self.site, self._temperature(STARTS[embedding]))
            return model if embedding else model.at_centre()
        aware = self.config.train.prior_aware
        return Model(self._calibrated, self.embedding, self.table, aware, *known, self.centre)

    @property
    def plain_is_pair(self) -> bool:
        """Whether the plain model is the second path at the training domains' centre."""
        return self.rehearsal is not None and self.rehearsal.head == PAIR

    @property
    def plain_temperature(self) -> float:
        """By what the logits of the plain network are divided."""
        return self._temperature("none")

    @property
    def pair_temperature(self) -> float:
        """By what logits at the centre are divided more than those with a domain's μ."""
        return self._temperature("none") / self._temperature("embedding")

    def _second_path(self, site: Site, temperature: float) -> Model:
        """The mean of the plain network and of F(·, μ), with logits divided by a temperature."""
        weights, centre = (site.scale / temperature / 2, 1 / temperature / 2), None
        if self.centre is not None and site.centre is not None:
            centre = torch.cat([self.centre, site.centre])
        pair = PairHead(self.predictor.head, site.predictor, weights).eval()
        known = self.label_prior, self.label_ratios or None
        predictor = Predictor(self.predictor.backbone, pair)
        return Model(predictor, site.embedding, site.table, True, *known, centre)

    @cached_property
    def _calibrated(self) -> Predictor:
        if self.rehearsal is None:
            return self.predictor
        return self.predictor.scaled(1 / self._temperature("none"))

    def _temperature(self, start: str) -> float:
        return 1.0 if self.rehearsal is None else self.rehearsal.temperatures.get(start, 1.0)

    @property
    def device(self) -> torch.device:
        return self.predictor.device

    def digest(self) -> str:
        """Identifies the weights; domain states carry it."""
        return self._digest

    def save(self, folder: Path) -> None:
        tensors = dict(_tensors(self.predictor, self.embedding, self.site))
        if self.table is not None:
            tensors |= {f"domains/{key}": value for key, value in self.table.tensors().items()}
        measured = {CONFUSION: self.confusion, CENTRE: self.centre}
        tensors |= {name: value for name, value in measured.items() if value is not None}
        if not all_finite(tensors.values()):
            raise NotFinite(
                f"the trained weights are not finite, and {folder / WEIGHTS} was not written; "
                f"lower the learning rate or set train.optimiser.clip, in a new run folder"
            )
        if self.rehearsal is not None:
            write_document(folder / REHEARSAL, self.rehearsal.to_dict())
        save_tensors(folder / WEIGHTS, tensors)
        write_document(folder / MODEL, self._description())
        write_checksums(folder)  # last: where the list is, all of the model is

    def _description(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in DESCRIBED},
            "config": as_dict(self.config),
            "digest": self.digest(),
            "rehearsal": self.rehearsal is not None,
        }

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "Trained":
        """The model of a finished run, as it was saved: what differs from then is refused."""
        with damage_is(RunError, AGAIN):
            return _load(folder, device)


def _load(folder: Path, device: torch.device | str) -> Trained:
    described = _read_description(folder)
    if is_pruned(folder):
        raise RunError(
            f"{folder}: its weights were pruned after the sweep chose another run; train it "
            f"again, or use the selected run"
        )
    path = folder / WEIGHTS
    try:
        tensors, _ = read_tensors(path)
        document = stored(folder / REHEARSAL) if described.values.get("rehearsal") else None
    except FileNotFoundError as missing:
        raise RunError(f"{missing.filename or path} is missing; {AGAIN}") from None
    where = str(folder / REHEARSAL)
    rehearsal = None if document is None else Rehearsal.from_dict(document, where=where)
    config = from_dict(RunConfig, described.table("config"), where=str(described.path))
    classes, domains, val_domains, test_domains = map(described.texts, DOMAINS_AND_CLASSES)
    digest = described.text("digest")
    head = NETWORK if rehearsal is None else rehearsal.head
    predictor, embedding = _networks(config, len(classes), len(domains), tensors, path, head)
    table, site, confusion, centre = None, None, tensors.get(CONFUSION), tensors.get(CENTRE)
    _require(confusion is None or confusion.shape == (len(classes),) * 2, path)
    _require(centre is None or centre.shape == predictor.last.weight.shape[1:], path)
    if embedding is not None:
        states = below(tensors, "domains/")
        table = DomainTable.from_tensors(domains, states, digest, embedding.dim, path)
    if parts := below(tensors, "site."):
        site = Site.from_tensors(parts, domains, len(classes), config.adapt.site, digest, path).to(
            device
        )
    prior, ratios = map(described.numbers, ("label_prior", "label_ratios"))
    whole = len(prior) == len(classes) and len(ratios) in (0, len(RATIOS))
    _require(whole and min((*prior, *ratios)) >= 0, described.path)
    trained = Trained(
        config,
        classes,
        domains,
        data=described.text("data"),
        label_prior=prior,
        size=_size(described, predictor),
        predictor=predictor,
        embedding=embedding,
        table=table,
        val_domains=val_domains,
        test_domains=test_domains,
        site=site,
        rehearsal=rehearsal,
        label_ratios=ratios,
        confusion=confusion,
        centre=centre,
    )
    _require(trained.digest() == digest, path)  # worked out before the weights are a GPU's
    if embedding is not None:
        ready(embedding, device).eval()
    ready(predictor, device).eval()
    accelerate(predictor.backbone, None if embedding is None else embedding.backbone)
    return trained


def _require(condition: bool, path: Path) -> None:
    """Refuse a file that says what no training would have written."""
    if not condition:
        raise DamagedFile(path)


def _size(described: Fields, predictor: Predictor) -> int:
    size, width = described.whole("size", least=1), predictor.backbone.mean.numel()
    fits = size == width if takes_features(predictor) else size <= MOST_SIDE
    _require(fits, described.path)
    return size


def _networks(
    config: RunConfig,
    classes: int,
    domains: int,
    tensors: Mapping[str, Tensor],
    path: Path,
    head: str,
) -> tuple[Predictor, Embedding | None]:
    """The networks that are described, with their weights, and the `head` that rehearsal chose."""
    mean = tensors.get("predictor.head.backbone.mean")  # of the features that it learned on
    width = None if mean is None else mean.numel()
    projection = tensors.get("predictor.head.backbone.body.projection.weight")
    networks = Networks(
        config=config,
        classes=classes,
        domains=domains,
        in_features=width,
        pretrained=False,
        linear=head not in (NETWORK, PAIR),
    )

    def build() -> tuple[Predictor, Embedding | None]:
        predictor, embedding = networks.build()
        if width is not None and head == CLASS_VECTORS:
            projected = 0 if projection is None else len(projection)
            predictor = unit_predictor(width, projected, classes)
        if width is not None:
            frozen = config.model.freeze == "backbone"
            extractor = build_extractor(config, pretrained=False) if frozen else None
            predictor = on_features_of(extractor, predictor, width)
        return predictor, embedding

    # Shapes alone first: what is not in the file is not allocated.
    with own_weights(0), Undrawn(), torch.device("meta"):
        shapes = zip(("predictor.", "embedding."), build(), strict=True)
        fits = all(_same_shapes(network, below(tensors, part)) for part, network in shapes)
    if not fits:
        raise RunError(f"{path} holds weights of another network than {MODEL} describes; {AGAIN}")
    with own_weights(0), Undrawn():
        predictor, embedding = build()
    fill(predictor, below(tensors, "predictor."), path)
    if embedding is not None:
        fill(embedding, below(tensors, "embedding."), path)
    return predictor, embedding


def on_features_of(extractor: Backbone | None, learned: Predictor, width: int) -> Predictor:
    """What learned on features, with the frozen backbone that makes them of images; None: rows of
    features [n, width] are what there is."""
    if extractor is None:
        extractor = identity_backbone(width).to(learned.device).eval()
    return Predictor(extractor, learned)


def _same_shapes(network: nn.Module | None, tensors: Mapping[str, Tensor]) -> bool:
    expected = {} if network is None else network.state_dict()
    shapes = ({key: t.shape for key, t in own.items()} for own in (expected, tensors))
    return next(shapes) == next(shapes)


def ready(network: nn.Module, device: torch.device | str) -> nn.Module:
    """On its device, and channels-last as images come: the faster layout for convolutions. A model
    that is loaded must compute in the layout that it was trained in, or its sums round otherwise.
    """
    network.to(device)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, kw_only=True)
class Networks:
    """What a run builds its networks from, with pretrained weights or seeded random ones.

    With a frozen backbone they are what learns on its features, of which there are `in_features`.
    """

    config: RunConfig
    classes: int
    domains: int
    in_features: int | None  # of rows of features; None: images
    pretrained: bool
    linear: bool = False  # one layer on the features, which rehearsal chose
    world: World = field(default_factory=World)

    def build(self) -> tuple[Predictor, Embedding | None]:
        """The predictor and, for adaptive algorithms, Φ.

        A Φ that is learned first comes first: its random weights are then those that `embedding`
        alone gives. One that is learned with the predictor takes the features of its backbone, or
        those that there are instead of images.
        """
        config, chosen = self.config, choose(self.config.algorithm, self.config.hparams)
        embedding = self.embedding() if chosen.over_mu else None
        if self.linear and self.in_features is not None:
            only = LinearHead(self.in_features, self.classes)
            return Predictor(identity_backbone(self.in_features), only), embedding
        backbone = self._backbone()
        network = chosen.build.context(self.in_features or backbone.features)
        if network is not None:
            embedding = JointEmbedding(network, config.embedding, **self._facts)
        mu_dim = None if embedding is None else embedding.dim
        head = build_head(backbone.features, self.classes, config.model, mu_dim=mu_dim)
        return Predictor(backbone, head), embedding

    def embedding(self) -> Embedding:
        """Φ on its own."""
        return find_embedding(self.config.embedding.name).build(
            self._backbone(), self.config.embedding, **self._facts
        )

    @property
    def _facts(self) -> dict[str, Any]:
        """What every Φ is told of its run."""
        return {
            "domains": self.domains,
            "classes": self.classes,
            "world": self.world,
            "seed": self.config.seed,
            "model": self.config.model,
        }

    def _backbone(self) -> Backbone:
        """What a run trains: the backbone, or layers on the features of a frozen one."""
        model = self.config.model
        if model.freeze == "backbone":
            # On features as on a manifest's: a linear head alone would leave penalties nothing to
            # change, and Φ could only turn and stretch what is there.
            return build_backbone("mlp", in_features=self.in_features)
        backbone = _named_backbone(self.config, self.in_features, pretrained=self.pretrained)
        if model.freeze_batch_norm != "no":
            freeze_batch_norm(backbone, affine=model.freeze_batch_norm == "all")
        return backbone


def build_extractor(config: RunConfig, *, pretrained: bool) -> Backbone:
    """The backbone of a run that freezes it, in eval mode and without gradients."""
    return _named_backbone(config, None, pretrained=pretrained).requires_grad_(False).eval()


def _named_backbone(config: RunConfig, in_features: int | None, *, pretrained: bool) -> Backbone:
    model = config.model
    return build_backbone(
        model.backbone,
        pretrained=pretrained and model.pretrained,
        weights=(model.weights or None) if pretrained else None,
        in_features=in_features,
        side=config.data.image_size,
    )


def _tensors(
    predictor: nn.Module, embedding: nn.Module | None, site: Site | None
) -> list[tuple[str, Tensor]]:
    parts = {
        "predictor": predictor.state_dict(),
        "embedding": {} if embedding is None else embedding.state_dict(),
        "site": {} if site is None else site.tensors(),
    }
    return [(f"{part}.{name}", value) for part, own in parts.items() for name, value in own.items()]


def _read_description(folder: Path) -> Fields:
    path = folder / MODEL
    if not folder.exists():
        raise RunError(f"{folder}: no such run folder; train one with `acclimate train`")
    if not (folder / CHECKSUMS).exists():
        unfinished = (folder / RUN).exists()
        raise RunError(
            f"{folder}: the run is not finished; repeat its `acclimate train` command to resume it"
            if unfinished
            else f"{folder}: not a run folder (no {MODEL}); give the --out of `acclimate train`"
        )
    check(folder)
    return Fields(stored(path), path)
