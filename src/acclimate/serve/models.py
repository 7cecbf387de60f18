"""The models that are served, and what of a stored picture belongs to which of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from acclimate.adapt.choice import MethodChoice, choose_method
from acclimate.adapt.classifier import Adapted, adapt, unadapted
from acclimate.adapt.methods import find_chain
from acclimate.adapt.seen import require_able, stored_state
from acclimate.core.errors import ConfigError, StateMismatch, unknown
from acclimate.core.files import json_digest
from acclimate.core.tensors import tensors_digest
from acclimate.core.text import count
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding
from acclimate.learn.embeddings.pictures import NO_NUMBERS, NO_PICTURES
from acclimate.learn.model import Trained
from acclimate.learn.models import Backbone, takes_features
from acclimate.learn.models.backbones import engine_at
from acclimate.serve.store import Kept
from acclimate.watch import Baseline
from acclimate.watch.baseline import LEAST, uniform_sample

Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A trained model by the name that sites know it by."""

    name: str
    trained: Trained

    def __post_init__(self) -> None:
        if takes_features(self.trained.predictor):
            raise ConfigError(
                f"model '{self.name}' works on rows of features, and a server takes images; serve "
                f"a model that was trained on images"
            )
        engine_at(self.backbone, self.trained.size)  # made now, not when the first image comes

    @property
    def backbone(self) -> Backbone:
        return self.trained.predictor.backbone

    @cached_property
    def phi(self) -> Embedding | None:
        """Φ if it is one of images, which no stored feature tells."""
        model = self.trained.start(embedding=True)
        return model.embedding if model.below_phi is None else None

    @cached_property
    def extractor(self) -> str:
        """Identifies what makes features of images: models that agree in it share stored ones."""
        networks = {"backbone": self.backbone, "phi": self.phi}
        weights = {
            name: tensors_digest(network.state_dict().items())
            for name, network in networks.items()
            if network is not None
        }
        return json_digest([self.trained.size, weights])[:32]

    @cached_property
    def unadapted(self) -> Adapted:
        return unadapted(self.trained)

    def changes_backbone(self, method: str) -> bool:
        """Whether a site adapted by `method` needs a pass of its own; an error if the model cannot
        be adapted by it."""
        if method == "auto":  # rehearsal tries heads alone
            return False
        chain = find_chain(method, self.trained.config.adapt)
        require_able(self.trained, chain, None)
        chain.require(self.trained.predictor)
        return not chain.head_only

    def check_classes(self, labels: Iterable[str | None]) -> None:
        """Refuse the first label that is no class."""
        classes = self.trained.classes
        for label in labels:
            if label is not None and label not in classes:
                raise unknown(f"the model knows no class '{label[:100]}'", label, classes)

    def adapt(self, kept: Kept) -> Adapted:
        """The classifier of a site, as `adapt` makes it of the pictures that are kept. It holds
        none of them, and shares what it can with other sites, so that a thousand fit into memory.
        """
        if not len(kept.hashes):
            return self.unadapted
        site = self._adapt(kept)
        assert site.state is not None
        _share(site.predictor.head, self._typical)
        light = replace(site.state, pictures=NO_PICTURES, seen=NO_NUMBERS)
        return replace(site, state=light)

    def baseline(self, kept: Kept) -> Baseline:
        """What new images of a site are compared with; an error if it has too few, or if features
        of images are not the model's."""
        where = f"site '{kept.row.name}'"
        if self.changes_backbone(kept.row.method):
            raise StateMismatch(
                f"{where} is adapted by '{kept.row.method}', which changes the backbone; sites "
                f"with the model's own are watched"
            )
        if len(kept.hashes) < LEAST:
            images = count(len(kept.hashes), "image")
            raise StateMismatch(
                f"{where} has {images} to compare new ones with; add {LEAST} or more"
            )
        state = self._adapt(kept).state
        assert state is not None
        pictures = uniform_sample(replace(state, count=kept.images))
        return Baseline.of(self.trained, replace(state, pictures=pictures))

    def _adapt(self, kept: Kept) -> Adapted:
        """With the pictures that it was made from."""
        pictures, choice = kept.pictures(self.trained.classes), MethodChoice(kept.row.method)
        if choice.method == "auto" and self.trained.rehearsal is None:
            # A state's own method would count, and this one has none yet.
            choice = choose_method(self.trained, len(pictures))
        if kept.pixels:
            shape = (3, self.trained.size, self.trained.size)
            images = [np.frombuffer(pixels, np.uint8).reshape(shape) for pixels in kept.pixels]
            labels = [kept.labels.get(number) for number in kept.hashes.tolist()]
            site = adapt(self.trained, images, method=choice.method, labels=labels)
        else:
            state = stored_state(self.trained, pictures, kept.phi)
            site = adapt(self.trained, [], method=choice.method, into=state)
        return replace(site, notes=(*choice.why, *site.notes))

    @cached_property
    def _typical(self) -> Mapping[str, nn.Parameter]:
        """Parameters of a site's head: those of the one at the training domains' centre."""
        return dict(self.trained.start(embedding=True).at(None).head.named_parameters())

    def point(self, site: Adapted) -> Point | None:
        """Where a site lies in the plane of the training domains."""
        if self.plane is None or site.state is None or not site.state.holds_mu:
            return None
        return self.plane.point(site.state)

    @cached_property
    def plane(self) -> "Plane | None":
        """Where its training domains lie; None without an embedding."""
        table = self.trained.start(embedding=True).table
        return None if table is None else Plane.of(table)


def _share(head: nn.Module, typical: Mapping[str, nn.Parameter]) -> None:
    """Let a head use the parameters in `typical` that equal its own."""
    for name, own in list(head.named_parameters()):
        other = typical.get(name)
        if other is not None and other is not own and torch.equal(other, own):
            module, _, last = name.rpartition(".")
            setattr(head.get_submodule(module), last, other)


@dataclass(frozen=True)
class Plane:
    """The two directions in which the means of training domains differ most."""

    centre: np.ndarray  # [d]
    axes: np.ndarray  # [d, 2]
    training: Mapping[str, Point]

    @classmethod
    def of(cls, table: DomainTable) -> "Plane":
        means = table.means.numpy()
        centre = means.mean(0)
        axes = np.linalg.svd(means - centre, full_matrices=False)[2][:2].T
        # Two domains lie on a line.
        axes = np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))
        points = ((means - centre) @ axes).tolist()
        training = {name: (x, y) for name, (x, y) in zip(table.names, points, strict=True)}
        return cls(centre, axes, training)

    def point(self, state: DomainState) -> Point:
        """Where a site lies."""
        x, y = ((state.mean.numpy() - self.centre) @ self.axes).tolist()
        return x, y
