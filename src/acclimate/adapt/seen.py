"""All images of a domain: those of an earlier state, and those that are given now."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.methods import Chain, nothing_to_embed
from acclimate.core.errors import ConfigError, StateMismatch
from acclimate.core.text import count
from acclimate.data.source import to_float
from acclimate.learn.embeddings import DomainState
from acclimate.learn.embeddings.pictures import UNLABELLED, Pictures, picture_hashes
from acclimate.learn.embeddings.state import MOST_SEEN
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features


def begin_state(trained: Trained, into: DomainState | None, keep: int | None) -> DomainState:
    """The state to add images to: an empty one, or a copy of the earlier one."""
    if keep is not None and not 0 <= keep <= MOST_SEEN:
        raise ConfigError(f"keep is {keep}; a state keeps from 0 to {MOST_SEEN} images")
    digest = trained.digest()
    if into is None:
        embedding = trained.start(embedding=True).embedding
        empty = DomainState.empty(digest, embedding.dim if embedding else 0)
        return empty if keep is None else replace(empty, keep=keep)
    into.require(digest)
    if not into.pictures.fit(trained.predictor.backbone.features, len(trained.classes)):
        raise StateMismatch(
            "the domain state keeps features that this model does not make; adapt again with the "
            "model you use"
        )
    return into if keep is None else replace(into, keep=min(keep, into.keep))


def require_able(trained: Trained, chain: Chain, into: DomainState | None) -> None:
    """Refuse a chain that the model, or what an earlier state keeps, is not enough for."""
    if chain.embedding and not trained.adaptive:
        raise nothing_to_embed(trained.config.algorithm)
    if into is None:
        return
    anew = "adapt anew on all the images"
    for name, method in chain.methods.items():
        if method.changes == "backbone":
            raise StateMismatch(
                f"method '{name}' needs the images themselves, and a state keeps their features; "
                f"{anew}, or choose another method"
            )
        if not into.keep and into.count:
            raise StateMismatch(
                f"method '{name}' needs the features of earlier images, and this state keeps none "
                f"(--keep 0); {anew}, or by the embedding alone"
            )


class Seen(NamedTuple):
    """A domain's images so far."""

    state: DomainState  # that counts them, not adapted yet
    pictures: Pictures  # to adapt by: all, or a sample of what earlier ones are a sample of
    images: Images  # the same for methods, which find their features
    repeats: int  # that were seen before, or given twice

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.repeats:
            return ()
        were = "was" if self.repeats == 1 else "were"
        repeats = count(self.repeats, "image")
        return (f"note: {repeats} {were} seen before, or given twice; each counts once",)


@torch.no_grad()
def look(
    trained: Trained,
    batches: Iterable[tuple[np.ndarray, Tensor]],
    labels: Tensor | None,
    chain: Chain | None,
    state: DomainState,
) -> Seen:
    """What `state` and images, stored in `batches`, come to; `chain` is None where any may be."""
    backbone, known, repeats = trained.predictor.backbone, set(state.seen.tolist()), 0
    parts, held, whole = [state.pictures], [], state.whole
    for places, stored in batches:
        hashes, new = picture_hashes(stored, known)
        own = torch.full((len(places),), UNLABELLED) if labels is None else labels[places]
        repeats += len(new) - int(new.sum())
        use = new | (own != UNLABELLED)
        if not use.any():
            continue
        x = to_float(stored[use], trained.device)
        features = backbone(x)
        phi = _phi(trained, x, features)[new[use].to(features.device)]
        state = state.updated(phi).note_seen(hashes[new])
        parts.append(Pictures(hashes[use], features.float().cpu(), own[use]))
        if chain is not None and not chain.methods:  # which look at no image twice
            parts = [Pictures.union(parts).sample(state.keep)]
        if chain is not None and not chain.head_only:
            held.append(stored[use])
    pictures = Pictures.union(parts)
    pictures = pictures if whole else pictures.sample(state.keep)
    images = Images(pictures.features, trained.device)
    if held:
        order = np.unique(torch.cat([part.hashes for part in parts]), return_index=True)[1]
        images = Images(torch.cat(held)[order], trained.device)
    images.keep(backbone, pictures.features)
    kept = pictures.sample(state.keep)
    kept = kept if takes_features(trained.predictor) else kept.halved()
    return Seen(replace(state, pictures=kept), pictures, images, repeats)


def _phi(trained: Trained, x: Tensor, features: Tensor) -> Tensor:
    """Φ of images x, of which the backbone makes `features`: [n, d]; d is 0 without a Φ."""
    model = trained.start(embedding=True)
    if model.embedding is None:
        return features[:, :0]
    return model.embedding.phi(x if model.below_phi is None else features)
