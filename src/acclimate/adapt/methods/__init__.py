"""Test-time adaptation on unlabelled images: THE table, and chains of its rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from acclimate.adapt.methods.base import Context, Method
from acclimate.adapt.methods.bn import BatchNorm
from acclimate.adapt.methods.chain import Chain
from acclimate.adapt.methods.labels import Labels
from acclimate.adapt.methods.lame import Lame
from acclimate.adapt.methods.prior import Prior
from acclimate.adapt.methods.sar import SAR
from acclimate.adapt.methods.shift import Shift
from acclimate.adapt.methods.shot import Shot
from acclimate.adapt.methods.t3a import T3A
from acclimate.adapt.methods.tent import Tent
from acclimate.config import AdaptConfig, AlgorithmName, component_settings, merged, nested
from acclimate.core.errors import ConfigError, require_known
from acclimate.learn.embeddings import DomainState

__all__ = [
    "METHODS",
    "Chain",
    "Context",
    "Method",
    "backbone_chains",
    "chain_of",
    "find_chain",
    "method_settings",
    "nothing_to_embed",
    "open_to_labels",
    "scored_chains",
]


class Row(NamedTuple):
    method: type[Method] | None  # None: where a chain starts
    about: str


METHODS: dict[str, Row] = {
    "embedding": Row(
        None, "the domain's embedding μ, folded into the classifier (adaptive models)"
    ),
    "prior": Row(Prior, "class frequencies by EM, and Bayes' correction for them"),
    "shift": Row(Shift, "features moved towards training's mean (rehearsed models)"),
    "labels": Row(Labels, "a few labelled images: the last layer moves as far as they ask for"),
    "bn": Row(BatchNorm, "batch-norm statistics of the new domain"),
    "t3a": Row(T3A, "class templates from the surest images (T3A)"),
    "tent": Row(Tent, "scales of normalisation layers by least entropy (Tent; uses gradients)"),
    "sar": Row(SAR, "Tent on sure images, towards flat minima (SAR; uses gradients)"),
    "shot": Row(Shot, "the last layer by information maximisation (SHOT-IM; uses gradients)"),
    "lame": Row(Lame, "like images of a batch predicted alike: a control, to score with (LAME)"),
    "none": Row(None, "the model as it is; an adaptive one at the training domains' centre"),
}


def method_settings(config: AdaptConfig) -> dict[str, Any]:
    """The settings of every method, checked."""
    kinds = {name: row.method.Config for name, row in METHODS.items() if row.method}
    return component_settings(config, kinds, prefix="adapt.")


def find_chain(
    text: str, config: AdaptConfig | None = None, settings: Mapping[str, Any] | None = None
) -> Chain:
    """`prior`, `embedding+prior`, ...: left to right, with the methods' settings in `config`, and
    before those `settings`, such as {"tent.steps": 3}."""
    names = text.split("+")
    for name in names:
        require_known(name, METHODS, f"there is no adaptation method '{name}'")
        if names.count(name) > 1:
            raise ConfigError(f"method '{text}' has '{name}' twice; name each method once")
    kinds = {name: METHODS[name].method for name in names}
    controls = [name for name, kind in kinds.items() if kind and kind.control]
    for alone in [name for name in names if name in ("none", *controls)]:
        if rest := "+".join(name for name in names if name != alone):
            raise ConfigError(f"method '{text}': '{alone}' stands alone; write '{rest}'")
    blind = [name for name, kind in kinds.items() if kind and not kind.probabilities]
    heads = {name: kind for name, kind in kinds.items() if kind and kind.changes != "backbone"}
    shifts = [name for name, kind in heads.items() if kind.probabilities]
    if blind and shifts:
        raise ConfigError(
            f"method '{text}': {blind[0]} scores by templates, which are no class probabilities to "
            f"correct and leave no bias to keep a correction in; use {shifts[0]} or {blind[0]}"
        )
    if "embedding" in names[1:]:
        rest = "+".join(name for name in names if name != "embedding")
        raise ConfigError(
            f"method '{text}': the others work on the classifier that the embedding makes; "
            f"write 'embedding+{rest}'"
        )
    config = config or AdaptConfig()
    tables = merged(config.components, nested(settings or {}))
    chosen = method_settings(replace(config, components=tables))
    return Chain(
        "embedding" in names, {name: make(chosen[name]) for name, make in kinds.items() if make}
    )


def scored_chains(config: AdaptConfig, algorithm: str) -> list[Chain]:
    """What unseen domains are scored by as well when a run of `algorithm` ends, checked."""
    chains = [find_chain(name, config) for name in config.methods]
    if any(chain.embedding for chain in chains) and not AlgorithmName.of(algorithm).adaptive:
        raise nothing_to_embed(algorithm)
    return chains


def backbone_chains(config: AdaptConfig) -> list[Chain]:
    """What rehearsal tries with the images of held-out domains, checked."""
    chains = [find_chain(name, config) for name in config.rehearse_backbone]
    for chain in chains:
        if chain.head_only or chain.embedding:
            raise ConfigError(
                f"adapt.rehearse_backbone has '{chain.name}', which leaves the backbone alone or "
                f"starts from an embedding; name methods that change it, such as bn"
            )
    return chains


def open_to_labels(chain: str) -> str:
    """The chain without methods after which there is no last layer for labels to change."""
    kinds = {name: METHODS[name].method for name in chain.split("+")}
    return (
        "+".join(name for name, kind in kinds.items() if not kind or kind.probabilities) or "none"
    )


def chain_of(state: DomainState) -> Chain:
    """The chain that made a state."""
    return find_chain("+".join(state.payloads or ["none"]))


def nothing_to_embed(algorithm: str) -> ConfigError:
    """The error of `embedding` on a plain model."""
    return ConfigError(
        f"a plain model ({algorithm}) has no embedding to adapt; choose another --method, such as "
        f"prior, or train with --algorithm da-erm"
    )
