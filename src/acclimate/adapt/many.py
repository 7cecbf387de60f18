"""Images of many domains at once: one pass of the backbone, and each row by its domain's head."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from acclimate.adapt.classifier import Adapted, open_images
from acclimate.adapt.methods import chain_of
from acclimate.core.errors import ConfigError, StateMismatch, unknown
from acclimate.core.progress import Watch, unwatched
from acclimate.core.tensors import require_finite
from acclimate.data.source import Quarantine, readable, to_float
from acclimate.learn.model import Trained
from acclimate.learn.models.predictors import HeadsByDomain

ROOM = 1 << 30  # bytes of heads that are kept for later batches


class ManyDomains:
    """Classifiers of several domains, made from one model, by the names of the domains.

    Adaptation that changes the backbone itself (bn, tent) has a pass of its own, and no place here.
    """

    def __init__(self, sites: Mapping[str, Adapted], trained: Trained | None = None) -> None:
        """All `sites` are checked now; with the `trained` model that they were made from, each is
        looked up and checked when it is first needed."""
        if trained is None and not sites:
            raise ConfigError("there is no domain to predict for; give at least one")
        self.sites, self._heads = sites, HeadsByDomain()
        self.labels: np.ndarray | None = None
        if trained is None:
            first = next(iter(sites.values()))
            trained, self.labels = first.trained, first.labels
            self.trained = trained
            for name in sites:
                self.add(name)
        self.trained, self.classes = trained, trained.classes

    def predict(self, images: Any, domains: Sequence[str]) -> list[Any]:
        """The class or label of each image, as in the domain that `domains` names."""
        names = self.classes if self.labels is None else self.labels.tolist()
        return [names[index] for index in self.predict_proba(images, domains).argmax(1)]

    def predict_proba(self, images: Any, domains: Sequence[str]) -> np.ndarray:
        """Class probabilities: [n, C]."""
        probabilities = np.zeros((len(domains), len(self.classes)), np.float32)
        for places, rows in self.probabilities(images, domains, Quarantine(max_share=0.0)):
            probabilities[places] = rows
        return probabilities

    @torch.no_grad()
    def probabilities(
        self,
        images: Any,
        domains: Sequence[str],
        quarantine: Quarantine,
        watch: Watch = unwatched,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of the readable of `images`: their places, and class probabilities [n, C]."""
        source, rows = open_images(images, self.trained, quarantine)
        if len(domains) != len(rows):
            raise ConfigError(
                f"there are {len(rows)} images and {len(domains)} names of domains; name one for "
                f"each"
            )
        for name in dict.fromkeys(domains):
            if name not in self.sites:
                raise unknown(f"there is no domain '{name}' here", name, self.sites)
        backbone, device = self.trained.predictor.backbone, self.trained.device
        for places, stored in readable(source, rows, watch):
            names = [domains[place] for place in places]
            for name in dict.fromkeys(names):
                if name not in self._heads:
                    self.add(name)
            logits = self._heads.logits(backbone(to_float(stored, device)), names).float()
            require_finite(logits, "a prediction")
            yield places, torch.softmax(logits, dim=1).cpu().numpy()
            self._heads.trim(ROOM)

    def add(self, name: str) -> Adapted:
        """Look up a domain and keep its head for the batches to come, also in place of an earlier
        one; refuse one that does not go together with the others."""
        site = self.sites[name]
        if site.trained is not self.trained and site.trained.digest() != self.trained.digest():
            raise StateMismatch(
                f"domain '{name}' was adapted from another model than the others; predict for one "
                f"model at a time"
            )
        if site.state is not None and not chain_of(site.state).head_only:
            raise ConfigError(
                f"domain '{name}' was adapted by '{site.method}', which changes the backbone; "
                f"predict its images by themselves"
            )
        self._heads.put(name, site.predictor.head)
        return site
