"""The models that are served, and what of a stored picture belongs to which of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from acclimate.adapt.classifier import Adapted, adapt, unadapted
from acclimate.adapt.seen import stored_state
from acclimate.core.errors import ConfigError
from acclimate.core.files import json_digest
from acclimate.core.tensors import tensors_digest
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding
from acclimate.learn.embeddings.pictures import NO_NUMBERS, NO_PICTURES
from acclimate.learn.model import Trained
from acclimate.learn.models import Backbone, takes_features
from acclimate.learn.models.backbones import engine_at
from acclimate.serve.store import Kept


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
        """Φ where it is one of images, and no stored feature tells it."""
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
    def plane(self) -> "Plane | None":
        """Where its training domains lie; None without an embedding."""
        table = self.trained.start(embedding=True).table
        return None if table is None else Plane.of(table)

    @cached_property
    def unadapted(self) -> Adapted:
        return unadapted(self.trained)

    def adapt(self, kept: Kept) -> Adapted:
        """The classifier of a site, as `adapt` makes it of the pictures that are kept. It holds
        none of them, so that a thousand fit into memory."""
        if not len(kept.hashes):
            return self.unadapted
        pictures = kept.pictures(self.trained.classes)
        state = stored_state(self.trained, pictures, kept.phi)
        site = adapt(self.trained, [], into=state)
        assert site.state is not None
        return replace(site, state=replace(site.state, pictures=NO_PICTURES, seen=NO_NUMBERS))


@dataclass(frozen=True)
class Plane:
    """The two directions in which the means of training domains differ most."""

    centre: Tensor  # [d]
    axes: Tensor  # [d, 2]
    training: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, table: DomainTable) -> "Plane":
        means = table.means
        centre = means.mean(0)
        axes = torch.linalg.svd(means - centre, full_matrices=False).Vh[:2].T
        points = ((means - centre) @ axes).tolist()
        training = {name: _point(row) for name, row in zip(table.names, points, strict=True)}
        return cls(centre, axes, training)

    def point(self, state: DomainState) -> tuple[float, float]:
        """Where a site lies."""
        return _point(((state.mean - self.centre) @ self.axes).tolist())


def _point(row: Sequence[float]) -> tuple[float, float]:
    """With zeros where there are fewer directions: two domains lie on a line."""
    x, y = (*row, 0.0, 0.0)[:2]
    return x, y
