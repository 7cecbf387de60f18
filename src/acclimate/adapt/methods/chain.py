"""Methods one after the other, on what a model is for a domain before any of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.adapt.methods.base import Context, Method
from acclimate.adapt.methods.prior import implied_prior, posteriors
from acclimate.core.errors import ConfigError, StateMismatch
from acclimate.core.tensors import require_finite
from acclimate.learn.embeddings import DomainState
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Head, Predictor


@dataclass(frozen=True)
class Chain:
    """Left to right: each method works on the classifier that those before it made."""

    embedding: bool  # whether it starts from the domain's μ
    methods: Mapping[str, Method]

    @property
    def name(self) -> str:
        """`embedding+prior`, or `none`."""
        return "+".join([*(["embedding"] if self.embedding else []), *self.methods]) or "none"

    @property
    def head_only(self) -> bool:
        """Whether the backbone stays, and only its features count."""
        return all(method.changes != "backbone" for method in self.methods.values())

    @property
    def least_images(self) -> int:
        """Statistics of batch norm need two, and the model as it is none."""
        return 0 if not self.methods else 1 if self.head_only else 2

    def require(self, network: nn.Module, *, frozen: bool = False) -> None:
        """Refuse a model that its methods cannot adapt, before it is trained. Of a backbone that is
        `frozen`, scoring sees the features only."""
        for name, method in self.methods.items():
            if frozen and method.changes == "backbone":
                raise ConfigError(
                    f"method '{name}' changes layers of the backbone, which is frozen here: runs "
                    f"see its features only; use prior or t3a, or --set model.freeze=none"
                )
            method.require(network)


def adapt_model(
    model: Model,
    images: Images,
    chain: Chain,
    state: DomainState | None = None,
    labels: Tensor | None = None,
) -> tuple[Predictor, DomainState]:
    """Adapt a model to the domain of `images` by `chain`: THE way, for every caller.

    `state` has counted `images` already. Without one, μ is computed here where the chain starts
    from it. `labels` [n] are classes of the images, -1 where nobody knows. Returns the adapted
    predictor, and the state with what the chain needs to be applied again.
    """
    if state is None:
        state = embed(model, images, chain)
    predictor = model.at(state if chain.embedding else None)
    payloads: dict[str, Mapping[str, Tensor]] = {"embedding": {}} if chain.embedding else {}
    if not chain.methods:
        return predictor, replace(state, payloads=payloads)
    context = _context(model, images, chain, predictor, labels)
    for name, method in chain.methods.items():
        head: Head = predictor
        rows = images
        if method.changes != "backbone":
            head, rows = predictor.head, images.features(predictor.backbone)
        with torch.set_grad_enabled(not method.gradient_free):
            observed = method.observe(head, rows, context)
        for value in observed.values():
            require_finite(value, f"what method '{name}' found")
        payloads[name] = {key: value.cpu() for key, value in observed.items()}
        predictor = _apply(predictor, method, payloads[name])
    return predictor, replace(state, payloads=payloads)


def apply_chain(model: Model, chain: Chain, state: DomainState) -> Predictor:
    """The adapted predictor again, from what the methods kept in `state`."""
    predictor = model.at(state if chain.embedding else None)
    for name, method in chain.methods.items():
        try:
            predictor = _apply(predictor, method, state.payloads[name])
        except (ArithmeticError, KeyError, TypeError, ValueError, RuntimeError):
            raise StateMismatch(
                f"what the domain state holds for method '{name}' does not fit the model; adapt "
                f"again with the model you use"
            ) from None
    return predictor


def _apply(predictor: Predictor, method: Method, payload: Mapping[str, Tensor]) -> Predictor:
    if method.changes == "backbone":
        changed = method.apply(predictor, payload)
        assert isinstance(changed, Predictor)
        return changed
    return Predictor(predictor.backbone, method.apply(predictor.head, payload))


def _context(
    model: Model, images: Images, chain: Chain, start: Predictor, labels: Tensor | None
) -> Context:
    """What methods may know. A model that is not `prior_aware` has learned to take a domain's label
    frequencies into account: which ones, F(·, μ) and F at the centre tell on the images."""
    prior = torch.tensor(model.label_prior, dtype=torch.float64)
    asked = any(method.assumes_label_shift for method in chain.methods.values())
    if asked and chain.embedding and not model.prior_aware:
        at_centre = posteriors(model.at(None), images)
        prior = implied_prior(posteriors(start, images), at_centre, prior)
    ratios = None if model.ratios is None else np.asarray(model.ratios)
    return Context(prior, ratios, model.centre, labels)


@torch.no_grad()
def embed(model: Model, images: Images, chain: Chain) -> DomainState:
    """The state of `images`; a chain without μ counts them only."""
    phi = model.embedding if chain.embedding else None
    state = DomainState.empty("", phi.dim if phi else 0)
    if phi is None:
        return state.updated(torch.zeros(len(images), 0))
    rows = images if model.below_phi is None else images.features(model.below_phi)
    for x in rows.batches():
        state = state.updated(phi.phi(x))
    return state
