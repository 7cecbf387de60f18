"""`auto`: the method that rehearsal chose for so many images, unless the new domain is unlike the
domains that it was rehearsed on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from acclimate.adapt.methods import Chain, chain_of, find_chain
from acclimate.adapt.methods.prior import em_prior, posteriors
from acclimate.adapt.trust import Trust, judge
from acclimate.config import AdaptConfig
from acclimate.core.text import count, percent, signed
from acclimate.learn.embeddings import DomainState, DomainTable
from acclimate.learn.images import Images
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor
from acclimate.records.folder import REHEARSAL
from acclimate.records.rehearsal import ENOUGH_DOMAINS_TO_TELL, Rehearsal

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


@dataclass(frozen=True)
class MethodChoice:
    """A chain of methods, the settings to use it with, and the reasons in sentences."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: tuple[str, ...] = ()


def choose_method(trained: Trained, images: int, into: DomainState | None = None) -> MethodChoice:
    """What `auto` means for `images` of a new domain, of which `into` has seen others before."""
    rehearsal = rehearsal_of(trained)
    if into is not None:
        return _continue(chain_of(into).name, rehearsal, into.count + images)
    if rehearsal is not None:
        return rehearsed_choice(rehearsal, images)
    if trained.embedding is not None:
        return MethodChoice("embedding")
    if trained.config.adapt.rehearse:
        why = "too few sites or images to rehearse with: the plain model is used as it is"
    else:
        why = "nothing was rehearsed: the plain model is used as it is; see adapt.rehearse"
    return MethodChoice("none", why=(why,))


def rehearsed_choice(rehearsal: Rehearsal, images: int) -> MethodChoice:
    """What rehearsal chose for so many images of a new domain."""
    chain = rehearsal.chain_for(images)
    return MethodChoice(chain, rehearsal.settings_for(chain), (_why(rehearsal, chain, images),))


def _continue(begun: str, rehearsal: Rehearsal | None, images: int) -> MethodChoice:
    """A state is gone on with by the chain that made it; by now another one may be due."""
    if rehearsal is None:
        return MethodChoice(begun)
    due, why = rehearsal.chain_for(images), f"with {count(images, 'image')} rehearsal would choose"
    notes = () if due == begun else (f"{why} {due}; adapt anew on all of them",)
    return MethodChoice(begun, rehearsal.settings_for(begun), notes)


def rehearsal_of(trained: Trained) -> Rehearsal | None:
    """The record of a rehearsed model's rehearsal."""
    stored = trained.rehearsal
    return None if stored is None else Rehearsal.from_dict(stored, where=REHEARSAL)


def _why(rehearsal: Rehearsal, chain: str, images: int) -> str:
    """Why `chain` is used for so many images, in a sentence."""
    sites = count(rehearsal.domains, "site")
    if chain != "none":
        promise = rehearsal.promise(chain, images)
        error = "" if promise.error is None else f" ± {percent(promise.error)}"
        return (
            f"{chain} was chosen by rehearsal on {sites}: {signed(promise.gain)}{error} points "
            f"with {count(promise.n, 'image')}"
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
    return f"{reason}; predictions are the plain model's"


TOO_FAR = 1.5  # times as far from the nearest domain as domains like those in training may lie
MARGIN = 0.1  # a share of the change that label shift may explain less than at held-out domains


@dataclass(frozen=True)
class Guard:
    """Compares a new domain with those that a model was rehearsed on."""

    trained: Trained
    rehearsal: Rehearsal

    @classmethod
    def of(cls, trained: Trained) -> "Guard | None":
        """The guard of a rehearsed model, None for any other."""
        rehearsal = rehearsal_of(trained)
        return None if rehearsal is None else cls(trained, rehearsal)

    def simpler_choice(
        self, choice: MethodChoice, state: DomainState | None, images: Images
    ) -> MethodChoice | None:
        """A simpler method, where this domain is unlike those that `choice` was rehearsed on."""
        objection = self.objection(choice.method, state, images)
        if objection is None:
            return None
        part, reason = objection
        rest = "+".join(name for name in choice.method.split("+") if name != part) or "none"
        why = f"but {reason}: adapted without {part}"
        return MethodChoice(rest, self.rehearsal.settings_for(rest), (*choice.why, why))

    def objection(
        self, chain: str, state: DomainState | None, images: Images
    ) -> tuple[str, str] | None:
        """A part of `chain` to do without, and the reason."""
        steps = find_chain(chain)
        if steps.embedding and state is not None and (reason := self._too_far(state)):
            return "embedding", reason
        for name, method in steps.methods.items():
            if method.assumes_label_shift and (reason := self._no_label_shift(images)):
                return name, reason
        return None

    def explained(self, images: Images) -> float | None:
        """The share of the change in predictions here that label frequencies explain."""
        confusion, temperature = self.trained.confusion, self.rehearsal.temperature("none")
        if confusion is None or temperature is None:
            return None
        prior = torch.tensor(self.trained.label_prior, dtype=torch.float64)
        rows = posteriors(self.trained.predictor, images, temperature)
        return explained_by_em(rows, prior, confusion)

    def expected(self, chain: str, predictor: Predictor, images: Images) -> tuple[float, float]:
        """The 90 % interval of the adapted predictor's accuracy."""
        calibrated = find_chain(chain).calibrates
        temperature = 1.0 if calibrated else self.rehearsal.temperature(chain)
        promise, confidence = self.rehearsal.promise(chain, len(images)), None
        # Confidence on fewer images than were ever rehearsed with tells too little.
        if temperature is not None and len(images) >= promise.n:
            confidence = float(posteriors(predictor, images, temperature).amax(1).mean())
        return promise.expected(confidence)

    def _too_far(self, state: DomainState) -> str | None:
        trust = judge(state, self.trained.start(embedding=True).table)
        near, usual = trust.beyond_chance, trust.typical_distance
        if near is None or usual is None or near <= TOO_FAR * usual:
            return None
        return (
            f"this domain lies {near / usual:.1f} times as far from every training domain as "
            f"domains like those may"
        )

    def _no_label_shift(self, images: Images) -> str | None:
        share, least = self.explained(images), self.rehearsal.least_explained(len(images))
        if share is None or least is None or share >= least - MARGIN:
            return None
        return (
            f"label frequencies explain {share:.0%} of how predictions change here, and "
            f"{least:.0%} or more at the rehearsed sites"
        )


def adapt_by_choice(
    choice: MethodChoice,
    guard: Guard | None,
    images: Images,
    config: AdaptConfig,
    adapt: Callable[[Chain], tuple[Result, DomainState | None]],
    *,
    settings: Mapping[str, Any] | None = None,
    into: DomainState | None = None,
) -> tuple[Result, MethodChoice]:
    """Adapt as `choice` says, and by less for as long as the guard objects to a part of it.

    `adapt` turns a chain into a result and the domain's state. `settings` go before those of the
    choice. A state that is gone on with (`into`) keeps its chain: an objection is then a note.
    Returns the last result and the choice that made it.
    """
    while True:
        chain = find_chain(choice.method, config, {**choice.settings, **(settings or {})})
        result, state = adapt(chain)
        if guard is None:
            return result, choice
        if into is not None:
            if (objection := guard.objection(choice.method, state, images)) is not None:
                part, reason = objection
                why = f"but {reason}: adapt anew on all the images, which leaves out {part}"
                choice = replace(choice, why=(*choice.why, why))
            return result, choice
        simpler = guard.simpler_choice(choice, state, images)
        if simpler is None:
            return result, choice
        choice = simpler


def outlook(
    guard: Guard | None,
    predictor: Predictor,
    state: DomainState,
    table: DomainTable | None,
    images: Images,
) -> Trust:
    """How far to trust the adapted `predictor`: what μ tells, where there is one, and the accuracy
    to expect, where that was rehearsed."""
    trust, chain = judge(state, table), chain_of(state).name
    if chain == "none":
        trust = replace(trust, warnings=())  # they are about an adaptation
    if guard is None or chain not in guard.rehearsal.chains:
        return trust
    if guard.rehearsal.promise(chain, len(images)).domains < ENOUGH_DOMAINS_TO_TELL:
        return trust
    return replace(
        trust,
        expected_accuracy=guard.expected(chain, predictor, images),
        explained_by_labels=guard.explained(images),
    )
