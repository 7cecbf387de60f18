"""All images of a domain: those of an earlier state, and those that are given now."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.methods import Chain, nothing_to_embed
from acclimate.core.errors import StateMismatch
from acclimate.data.source import to_float
from acclimate.learn.embeddings import DomainState
from acclimate.learn.embeddings.pictures import UNLABELLED, Pictures, picture_hashes
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features


def begin_state(trained: Trained, into: DomainState | None) -> DomainState:
    """The state to add images to: an empty one, or `into`."""
    if into is None:
        embedding = trained.start(embedding=True).embedding
        return DomainState.empty(trained.digest(), embedding.dim if embedding else 0)
    into.require(trained.digest())
    if not into.pictures.fit(trained.predictor.backbone.features, len(trained.classes)):
        raise StateMismatch(
            "the domain state keeps features that this model does not make; adapt again with the "
            "model you use"
        )
    return into


@torch.no_grad()
def stored_state(trained: Trained, pictures: Pictures, phi: Tensor | None = None) -> DomainState:
    """The state of images of which only their features are left, for `adapt(trained, [], into=…)`.
    `phi` [k, d] is needed where Φ is one of images."""
    embedding = trained.start(embedding=True).embedding
    if embedding is None:
        phi = torch.zeros(len(pictures), 0)
    elif phi is None:
        phi = embedding.phi(pictures.features.float().to(trained.device))
    state = begin_state(trained, None).updated(phi).note_seen(pictures.hashes)
    return replace(state, pictures=pictures)


def require_able(trained: Trained, chain: Chain, into: DomainState | None) -> None:
    """Refuse a chain that the model, or what an earlier state keeps, is not enough for."""
    if chain.embedding and not trained.adaptive:
        raise nothing_to_embed(trained.config.algorithm)
    if into is None:
        return
    sums_only = not into.whole and not len(into.pictures)
    for name, method in chain.methods.items():
        if method.changes == "backbone" or sums_only:
            needs = "more than sums (--keep 0)" if sums_only else "the images themselves"
            raise StateMismatch(
                f"method '{name}' needs {needs}, which the state does not keep of earlier images; "
                f"adapt anew on all the images, or by another method"
            )


class Seen(NamedTuple):
    """A domain's images so far."""

    state: DomainState  # that counts them, not adapted yet
    pictures: Pictures  # to adapt by: all, or a sample of what earlier ones are a sample of
    images: Images  # the same for methods, which find their features
    repeats: int  # that were seen before, or given twice


@torch.no_grad()
def look(
    trained: Trained,
    batches: Iterable[tuple[np.ndarray, Tensor]],
    labels: Tensor,
    chain: Chain | None,
    state: DomainState,
    keep: int,
) -> Seen:
    """What `state` and images, stored in `batches`, come to; the state keeps at most `keep` of
    them, and no more than so far if those are a sample.

    `labels` [n] of the images, or UNLABELLED. `chain` says what has to stay in memory: the images
    if it changes the backbone, their features if it has methods, or is None and may be any, and
    otherwise those that the state keeps.
    """
    model, backbone = trained.start(embedding=True), trained.predictor.backbone
    known, repeats, whole = {seen: seen for seen in state.seen.tolist()}, 0, state.whole
    parts, held = [state.pictures], []
    keep = keep if whole else min(keep, len(state.pictures))
    for places, stored in batches:
        hashes, new = picture_hashes(stored, known)
        repeats += len(new) - int(new.sum())
        own = labels[places]
        use = new | (own != UNLABELLED)
        if not use.any():
            continue
        x = to_float(stored[use], trained.device)
        features = backbone(x)
        phi = features[:, :0]  # without a Φ images are counted
        if model.embedding is not None:
            phi = model.embedding.phi(x if model.below_phi is None else features)
        state = state.updated(phi[new[use].to(phi.device)]).note_seen(hashes[new])
        parts.append(Pictures(hashes[use], features.float().cpu(), own[use]))
        if chain is not None and not chain.head_only:
            held.append(stored[use])
        elif chain is not None and not chain.methods:
            parts = [Pictures.union(parts).sample(keep)]
    pictures = Pictures.union(parts)
    if not whole:
        pictures = pictures.sample(keep)
    stored = pictures.features
    if held:
        order = np.unique(torch.cat([part.hashes for part in parts]), return_index=True)[1]
        stored = torch.cat(held)[order]
    images = Images(stored, trained.device)
    images.keep(backbone, pictures.features)
    kept = pictures.sample(keep)
    if not takes_features(trained.predictor):
        kept = kept.halved()
    return Seen(replace(state, pictures=kept), pictures, images, repeats)
