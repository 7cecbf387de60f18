"""Images of many domains at once: one pass of the backbone, and each row by its domain's head."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from acclimate.adapt.classifier import Adapted, open_images
from acclimate.adapt.methods import chain_of
from acclimate.core.errors import ConfigError, StateMismatch, unknown
from acclimate.core.tensors import require_finite
from acclimate.data.source import Quarantine, readable, to_float
from acclimate.learn.models.predictors import classify_by_domain


class ManyDomains:
    """Classifiers of several domains, made from one model, by the names of the domains.

    Adaptation that changes the backbone itself (bn, tent) has a pass of its own, and no place here.
    """

    def __init__(self, sites: Mapping[str, Adapted]) -> None:
        if not sites:
            raise ConfigError("there is no domain to predict for; give at least one")
        self.names = list(sites)
        first = next(iter(sites.values()))
        self.trained, self.labels, self.classes = first.trained, first.labels, first.classes
        digest = self.trained.digest()
        for name, site in sites.items():
            if site.trained is not self.trained and site.trained.digest() != digest:
                raise StateMismatch(
                    f"domain '{name}' was adapted from another model than '{self.names[0]}'; "
                    f"predict for one model at a time"
                )
            if site.state is not None and not chain_of(site.state).head_only:
                raise ConfigError(
                    f"domain '{name}' was adapted by '{site.method}', which changes the backbone; "
                    f"predict its images by themselves"
                )
        self._classify = classify_by_domain([site.predictor.head for site in sites.values()])

    def predict(self, images: Any, domains: Sequence[str]) -> list[Any]:
        """The class or label of each image, as in the domain that `domains` names."""
        names = self.classes if self.labels is None else self.labels.tolist()
        return [names[index] for index in self.predict_proba(images, domains).argmax(1)]

    @torch.no_grad()
    def predict_proba(self, images: Any, domains: Sequence[str]) -> np.ndarray:
        """Class probabilities: [n, C]."""
        source, rows = open_images(images, self.trained, Quarantine(max_share=0.0))
        which = self._numbers(domains, len(rows))
        backbone, device = self.trained.predictor.backbone, self.trained.device
        probabilities = np.zeros((len(rows), len(self.classes)), np.float32)
        for places, stored in readable(source, rows):
            heads = torch.from_numpy(which[places]).to(device)
            logits = self._classify(backbone(to_float(stored, device)), heads).float()
            require_finite(logits, "a prediction")
            probabilities[places] = torch.softmax(logits, dim=1).cpu().numpy()
        return probabilities

    def _numbers(self, domains: Sequence[str], images: int) -> np.ndarray:
        if len(domains) != images:
            raise ConfigError(
                f"there are {images} images and {len(domains)} names of domains; name one for each"
            )
        known = {name: number for number, name in enumerate(self.names)}
        for name in domains:
            if name not in known:
                raise unknown(f"there is no domain '{name}' here", name, known)
        return np.array([known[name] for name in domains], dtype=np.int64)
