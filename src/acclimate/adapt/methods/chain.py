"""Methods one after the other, on what a model is for a domain before any of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.adapt.methods.base import Context, Method
from acclimate.core.errors import ConfigError, StateMismatch
from acclimate.core.tensors import require_finite
from acclimate.data.source import Images
from acclimate.learn.embeddings import DomainState, DomainTable, Payload
from acclimate.learn.model import StartingPoint
from acclimate.learn.models import Conditioned, Paired, Predictor


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
    def calibrates(self) -> bool:
        """Whether its classifier's logits are divided by a temperature already."""
        return any(method.calibrates for method in self.methods.values())

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

    def context(
        self,
        predictor: Predictor,
        table: DomainTable | None,
        label_prior: Sequence[float],
        *,
        prior_aware: bool = False,
        ratios: Sequence[float] | None = None,
    ) -> Context:
        """What its methods may know of a trained model. One that is `prior_aware` stands under
        `label_prior` in every domain; of another, the centre helps to tell."""
        shifted = self.embedding and not prior_aware
        return Context(
            torch.tensor(label_prior, dtype=torch.float64),
            centre=base_predictor(predictor, table, None) if shifted else None,
            ratios=None if ratios is None else np.asarray(ratios),
        )

    def adapt(
        self,
        predictor: Predictor,
        images: Images,
        context: Context,
        earlier: Mapping[str, Payload] | None = None,
    ) -> tuple[Predictor, dict[str, Payload]]:
        """The adapted predictor, and what each method keeps; `earlier` is what they kept of images
        before these."""
        context = replace(context, start=predictor)
        payloads = {}
        for name, method in self.methods.items():
            given = (predictor, images, context)
            with torch.set_grad_enabled(not method.gradient_free):
                if earlier:
                    observed = method.observe_more(*given, earlier[name].tensors)
                else:
                    observed = method.observe(*given)
            for value in observed.values():
                require_finite(value, f"what method '{name}' found")
            tensors = {key: value.cpu() for key, value in observed.items()}
            payloads[name] = Payload(tensors, method.mergeable)
            predictor = method.apply(predictor, tensors)
        return predictor, payloads

    def apply(self, predictor: Predictor, payloads: Mapping[str, Payload]) -> Predictor:
        """The adapted predictor again, from what the methods kept."""
        for name, method in self.methods.items():
            try:
                predictor = method.apply(predictor, payloads[name].tensors)
            except (ArithmeticError, KeyError, TypeError, ValueError, RuntimeError):
                raise _unfit(name) from None
        return predictor


def _unfit(name: str) -> StateMismatch:
    return StateMismatch(
        f"what the domain state holds for method '{name}' does not fit the model; adapt again with "
        f"the model you use"
    )


def base_predictor(
    predictor: Predictor, table: DomainTable | None, state: DomainState | None
) -> Predictor:
    """What a chain starts from: F(·, μ), or, where `state` holds no μ, F at the training domains'
    centre. A plain predictor is its own start."""
    if not isinstance(predictor, Conditioned | Paired):
        return predictor
    assert table is not None
    centre = table.means.mean(0)
    mu = state.mean if state is not None and holds_mu(state) else centre
    if mu.shape != centre.shape:
        raise _unfit("embedding")
    return predictor.fold(mu.to(next(predictor.parameters()).device)).eval()


def holds_mu(state: DomainState) -> bool:
    """States made without `embedding` count images, and their sums of Φ are empty."""
    return len(state.total) > 0


def no_phi(count: int) -> Tensor:
    """What such a state is given of `count` images: [count, 0]."""
    return torch.zeros(count, 0)


def adapt_model(
    start: StartingPoint, images: Images, chain: Chain, state: DomainState | None = None
) -> tuple[Predictor, DomainState]:
    """Adapt a model to the domain of `images` by `chain`: THE way, for every caller.

    `state` has counted `images` already, and holds what the methods kept of earlier ones. Without
    one, μ is computed here where the chain starts from it. Returns the adapted predictor, and the
    state with what the methods keep.
    """
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
