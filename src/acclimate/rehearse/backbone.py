"""Methods that change the backbone, rehearsed where a user names them: a held-out domain's images
pass through the backbone that they have changed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.methods import Chain, backbone_chains
from acclimate.adapt.methods.chain import adapt_model
from acclimate.data.source import ImageSource, Source, readable
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Backbone, Predictor
from acclimate.runs.session import Session


class Pixels(NamedTuple):
    """The images of a run, the backbone whose features heads are fitted on, and what to try."""

    source: Source
    backbone: Backbone
    chains: Sequence[Chain]

    @classmethod
    def of(cls, now: Session, backbone: Backbone) -> "Pixels | None":
        """None where no method was asked for."""
        chains, source = backbone_chains(now.plan.config.adapt), now.source
        if not chains:
            return None
        if now.extractor is not None:  # the run itself has features only
            gpu, data = now.world.device.type == "cuda", now.plan.config.data
            decoded = now.plan.manifest, now.size, replace(data, cache_gib=0.0), now.quarantine
            source = ImageSource(*decoded, make_pack=False, processes=gpu)
        return cls(source, backbone, chains)

    def predict(
        self, model: Model, seen: np.ndarray, scored: np.ndarray
    ) -> Iterator[tuple[str, Tensor]]:
        """Adapt a model of features, on this backbone, to the images of the rows `seen`: the name
        of each chain, and the classes that it takes the rows `scored` for; -1: cannot be read."""
        start = model._replace(predictor=Predictor(self.backbone, model.predictor.head))
        stored = torch.cat([stored for _, stored in readable(self.source, seen)])
        for chain in self.chains:
            adapted, _ = adapt_model(start, Images(stored, self.backbone.mean.device), chain)
            guesses = torch.full((len(scored),), -1)
            with torch.no_grad():
                for places, some in readable(self.source, scored):
                    images = Images(some, self.backbone.mean.device)
                    guesses[places] = images.outputs(adapted).logits.argmax(1).cpu()
            yield chain.name, guesses
