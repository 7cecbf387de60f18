"""The one function that adapts: a model, images of one domain and a chain of methods in, the
classifier of that domain and its state out."""

from dataclasses import replace

import torch

from acclimate.adapt.methods.chain import Chain, base_predictor, no_phi
from acclimate.data.source import Images
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import StartingPoint
from acclimate.learn.models import Predictor


def adapt_model(
    start: StartingPoint, images: Images, chain: Chain, state: DomainState | None = None
) -> tuple[Predictor, DomainState]:
    """`state` has counted `images` already, and holds what the methods kept of earlier ones.
    Without one, μ is computed here where the chain starts from it."""
    if state is None:
        state = embed(start, images, chain)
    base = base_predictor(start.predictor, start.table, state)
    if not chain.methods:
        return base, state
    context = chain.context(
        start.predictor,
        start.table,
        start.label_prior,
        prior_aware=start.prior_aware,
        ratios=start.ratios,
    )
    predictor, payloads = chain.adapt(base, images, context, state.payloads)
    return predictor, replace(state, payloads=payloads)


@torch.no_grad()
def embed(
    start: StartingPoint, images: Images, chain: Chain, state: DomainState | None = None
) -> DomainState:
    """`state`, or an empty one, with Φ of `images` added; a chain without μ counts them only."""
    embedding = start.embedding if chain.embedding else None
    if state is None:
        state = DomainState.empty("", embedding.dim if embedding else 0)
    for x in images.batches():
        state = state.updated(embedding.phi(x) if embedding else no_phi(len(x)))
    return state
