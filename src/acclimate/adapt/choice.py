"""`auto`: the method that rehearsal chose for so many images, unless the new domain is unlike the
domains that it was rehearsed on."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from acclimate.adapt.methods import Chain, chain_of, find_chain, open_to_labels
from acclimate.adapt.methods.labels import with_labels
from acclimate.adapt.methods.prior import em_prior, posteriors
from acclimate.adapt.trust import Trust, judge
from acclimate.config import AdaptConfig, merged, nested
from acclimate.core.errors import ConfigError
from acclimate.core.text import count, percent
from acclimate.learn.embeddings import DomainState
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor
from acclimate.records.doubt import Answer, answer_for, scores_of
from acclimate.records.rehearsal import ENOUGH_DOMAINS_TO_TELL, Promise, Rehearsal, difference

Result = TypeVar("Result")
STRENGTH = 30.0  # of a Dirichlet prior, so that a handful of images does not run away
NOTHING = 2.0  # times what chance alone would change: below, there is nothing to explain


def explained_share(
    posteriors: Tensor, prior: Tensor, target: Tensor, confusion: Tensor
) -> float | None:
    """The share of the change in the mean prediction that the label prior `target` explains, beyond
    sampling error: 1 for all of it, 0 (never less) for nothing.

    posteriors [n, C] of new images; prior [C] of training and `target` [C], estimated for these
    images; confusion [C predicted, C true] of new images of the training domains, in any scale.
    None where nothing has changed, or for one image.
    """
    if len(posteriors) < 2:
        return None
    rows, predicted = posteriors.double(), _predicted_given_class(confusion)
    mean, chance = rows.mean(0), float(rows.var(0).sum()) / len(rows)
    changed = float((mean - predicted @ prior.double()).square().sum())
    if changed <= NOTHING * chance:
        return None
    left = float((mean - predicted @ target.double()).square().sum())
    return max(1 - max(left - chance, 0.0) / (changed - chance), 0.0)


def explained_by_em(posteriors: Tensor, prior: Tensor, confusion: Tensor) -> float | None:
    """`explained_share` of the likeliest frequencies under a fixed strength, so that a new domain
    can be compared with the held-out ones."""
    target, _ = em_prior(posteriors, prior, strength=STRENGTH, tolerance=1e-4, most=200)
    return explained_share(posteriors, prior, target, confusion)


def _predicted_given_class(confusion: Tensor) -> Tensor:
    """Mean prediction for images of each class: columns [C] that sum to 1. A class without images
    counts as always recognised."""
    counts = confusion.double()
    totals = counts.sum(0)
    sure = torch.eye(len(counts), dtype=torch.float64)
    return torch.where(totals > 0, counts / totals.clamp(min=1e-12), sure)


def chain_for(
    rehearsal: Rehearsal | None,
    method: str,
    images: int,
    config: AdaptConfig,
    settings: Mapping[str, Any] | None = None,
    labels: int = 0,
) -> Chain:
    """The chain `method` for so many images and labels: THE way to its settings, named or chosen.
    `settings` go before those in `config`, and these before what rehearsal found for the method."""
    own = merged(config.components, nested(settings or {}))
    rehearsed = {} if rehearsal is None else nested(rehearsal.settings_for(method, images))
    if rehearsal is not None and (strength := rehearsal.label_strength(labels)) is not None:
        rehearsed["labels"] = {"strength": strength}
    if "strength" in own.get("prior", {}):
        rehearsed.get("prior", {}).pop("expect", None)  # which would have no use for a strength
    return find_chain(method, replace(config, components=merged(rehearsed, own)))


def _about_labels(rehearsal: Rehearsal | None, labels: int) -> Iterator[str]:
    """What rehearsal says of so many labels, in a sentence."""
    promise = None if rehearsal is None else rehearsal.with_labels(labels)
    if promise is not None:
        yield f"{count(promise.n, 'label')} in rehearsal: {difference(promise)} more"
    elif labels:
        yield f"what {count(labels, 'label')} gain was not rehearsed"


def _about_named(rehearsal: Rehearsal | None, chain: str, images: int) -> Iterator[str]:
    """What rehearsal says of a chain that the user has named, in sentences."""
    if rehearsal is None or chain == "none" or chain not in rehearsal.chains:
        return
    promise = rehearsal.promise(chain, images)
    yield f"{chain} in rehearsal: {difference(promise)} with {count(promise.n, 'image')}"
    if images < promise.n:
        few = count(images, "image")
        yield f"note: {few} are fewer than were rehearsed with, so that {chain} changes less"


@dataclass(frozen=True)
class MethodChoice:
    """A chain of methods, and the reasons in sentences."""

    method: str
    why: tuple[str, ...] = ()


def choose_method(trained: Trained, images: int, labels: int = 0) -> MethodChoice:
    """What `auto` means for so many images of a new domain, of which some may have labels."""
    rehearsal = trained.rehearsal
    if rehearsal is not None:
        chain = rehearsal.chain_for(images)
        return MethodChoice(chain, (_why(rehearsal, chain, images, labels),))
    if trained.embedding is not None:
        return MethodChoice("embedding")
    if trained.config.adapt.rehearse:
        why = "too few sites, or images of their own, to rehearse: the plain model is used as it is"
    else:
        why = "nothing was rehearsed: the plain model is used as it is; see adapt.rehearse"
    return MethodChoice("none", (why,))


def _why(rehearsal: Rehearsal, chain: str, images: int, labels: int) -> str:
    """Why `chain` is used for so many images, in a sentence."""
    sites = count(rehearsal.domains, "site")
    if chain != "none":
        promise = rehearsal.promise(chain, images)
        return (
            f"{chain} was chosen by rehearsal on {sites}: {difference(promise)} with "
            f"{count(promise.n, 'image')}"
        )
    later = [n for n, other in rehearsal.chosen.items() if other != "none" and n > images]
    if rehearsal.domains < ENOUGH_DOMAINS_TO_TELL:
        reason = f"{sites} cannot tell whether adaptation pays, {ENOUGH_DOMAINS_TO_TELL} can"
    elif later:
        reason = (
            f"{count(images, 'image')} are too few to adapt by: rehearsal on {sites} shows a gain "
            f"from {min(later)} on"
        )
    else:
        never = set(rehearsal.chosen.values()) == {"none"}
        reason = f"adaptation did not pay on your {sites}{'' if never else ' with so many images'}"
    end = "labels are used on the plain model" if labels else "predictions are the plain model's"
    return f"{reason}; {end}"


def adapt_by(
    method: str,
    trained: Trained,
    images: Images,
    config: AdaptConfig,
    adapt: Callable[[Chain], tuple[Result, DomainState]],
    *,
    settings: Mapping[str, Any] | None = None,
    seen: int | None = None,
    labels: int = 0,
) -> tuple[Result, MethodChoice]:
    """Adapt by `method`; for "auto" as rehearsal chose, and by less for as long as the images speak
    against a part of it. Where some images have `labels`, these are used, too.

    `images` are all that were `seen` of the domain, or a sample. `adapt` turns a chain into a
    result and the domain's state. `settings` go before those that rehearsal chose. A method that
    was named stays: an objection is then a note. Returns the last result and the choice that made
    it.
    """
    known = len(images) if seen is None else seen
    named = method != "auto"
    if named:
        choice = MethodChoice(method, tuple(_about_named(trained.rehearsal, method, known)))
    else:
        choice = choose_method(trained, known, labels)
    if labels:
        said = (*choice.why, *_about_labels(trained.rehearsal, labels))
        able = choice.method if named else open_to_labels(choice.method)
        if able != choice.method:
            said = (*said, f"but labels change a last layer: adapted by {with_labels(able)}")
        choice = MethodChoice(with_labels(able), said)
    while True:
        chain = chain_for(trained.rehearsal, choice.method, known, config, settings, labels)
        result, state = adapt(chain)
        objection = object_to(trained, chain, state, images)
        if objection is None:
            return result, choice
        name, reason = objection
        if named:
            return result, replace(choice, why=(*choice.why, f"note: {reason}"))
        rest = "+".join(other for other in choice.method.split("+") if other != name) or "none"
        choice = MethodChoice(rest, (*choice.why, f"but {reason}: adapted without {name}"))


TOO_FAR = 1.5  # times as far from the nearest domain as domains like those in training may lie
MARGIN = 0.1  # a share of the change that label shift may explain less than at held-out domains


def object_to(
    trained: Trained, chain: Chain, state: DomainState, images: Images
) -> tuple[str, str] | None:
    """A method of `chain` to do without, and the reason: the domain is unlike those that a model
    was rehearsed on."""
    if trained.rehearsal is None:
        return None
    if chain.embedding and (reason := _too_far(trained, state)):
        return "embedding", reason
    for name, method in chain.methods.items():
        if method.assumes_label_shift and (
            reason := _no_label_shift(trained, trained.rehearsal, images)
        ):
            return name, reason
    return None


def _too_far(trained: Trained, state: DomainState) -> str | None:
    trust = judge(state, trained.start(embedding=True).table)
    near, usual = trust.beyond_chance, trust.typical_distance
    if near is None or usual is None or near <= TOO_FAR * usual:
        return None
    return (
        f"this domain lies {near / usual:.1f} times as far from every training domain as "
        f"domains like those may"
    )


def _no_label_shift(trained: Trained, rehearsal: Rehearsal, images: Images) -> str | None:
    share, least = explained_here(trained, images), rehearsal.least_explained(len(images))
    if share is None or least is None or share >= least - MARGIN:
        return None
    return (
        f"label frequencies explain {share:.0%} of how predictions change here, and "
        f"{least:.0%} or more at the rehearsed sites"
    )


def explained_here(trained: Trained, images: Images) -> float | None:
    """The share of the change in a rehearsed model's predictions that label frequencies explain."""
    if trained.confusion is None:
        return None
    prior = torch.tensor(trained.label_prior, dtype=torch.float64)
    rows = posteriors(trained.start(embedding=False).predictor, images)
    return explained_by_em(rows, prior, trained.confusion)


def outlook(
    trained: Trained, predictor: Predictor, state: DomainState, images: Images | None
) -> Trust:
    """How far to trust the adapted `predictor`: what μ tells, where there is one, and the accuracy
    to expect, where that was rehearsed; nearer where the `images` are at hand."""
    chain = chain_of(state)
    trust = judge(state, trained.start(embedding=True).table if chain.embedding else None)
    if chain.name == "none":
        trust = replace(trust, warnings=())  # they are about an adaptation
    promise = promise_for(trained, state)
    if promise is None:
        return trust
    scores = None
    # Scores of fewer images than were ever rehearsed with tell too little.
    if images is not None and state.count >= promise.n:
        scores = scores_of(posteriors(predictor, images).cpu().numpy(), trained.label_prior)
    return replace(
        trust,
        expected_accuracy=promise.expected(scores),
        explained_by_labels=None if images is None else explained_here(trained, images),
    )


def promise_for(trained: Trained, state: DomainState | None) -> Promise | None:
    """What rehearsal promises of the classifier of a state, or of the model as it is; None where
    its chain was not rehearsed, or on too few domains to tell."""
    rehearsal = trained.rehearsal
    chain, images = ("none", 0) if state is None else (chain_of(state).name, state.count)
    # Promises are about the settings that rehearsal found.
    if rehearsal is None or trained.config.adapt.components:
        return None
    promise = None
    if chain in rehearsal.chains:
        promise = rehearsal.promise(chain, images)
    elif state is not None and chain == with_labels(open_to_labels(rehearsal.chain_for(images))):
        promise = rehearsal.with_labels(len(state.payloads["labels"]["rows"]))
    return None if promise is None or promise.domains < ENOUGH_DOMAINS_TO_TELL else promise


def sure_answer(trained: Trained, state: DomainState | None, at_least: float) -> Answer:
    """From which confidence on answers are right so often, as rehearsed; an error where no
    threshold promises that."""
    if not 0 < at_least < 1:
        raise ConfigError(f"at least {at_least:g} right: give a share between 0 and 1, e.g. 0.95")
    promise = promise_for(trained, state)
    if promise is None or not promise.answers:
        chain = "none" if state is None else chain_of(state).name
        raise ConfigError(
            f"how often sure answers by '{chain}' are right was not rehearsed on "
            f"{ENOUGH_DOMAINS_TO_TELL} sites or more, so that nothing can be promised; choose a "
            f"threshold of confidence yourself (--unsure-below)"
        )
    answer = answer_for(promise.answers, at_least)
    if answer is None:
        best = max(promise.answers, key=lambda one: one.right)
        raise ConfigError(
            f"no threshold of confidence promises {percent(at_least)} % right: rehearsal on "
            f"{count(promise.domains, 'site')} promises {percent(best.right)} % at most (at "
            f"{best.threshold:g}, {percent(best.share)} % of images answered); ask for that or "
            f"less, or train on more sites"
        )
    return answer
