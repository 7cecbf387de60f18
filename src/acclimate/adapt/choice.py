"""`auto`: which method to adapt by, from what rehearsal found and how many images there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from acclimate.adapt.methods import chain_of, find_chain
from acclimate.adapt.methods.prior import em_prior, posteriors
from acclimate.adapt.trust import Trust, judge
from acclimate.core.text import count, percent, signed
from acclimate.data.source import Images
from acclimate.learn.embeddings import DomainState, DomainTable
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor
from acclimate.records.folder import REHEARSAL
from acclimate.records.rehearsal import ENOUGH_DOMAINS_TO_TELL, Rehearsal

STRENGTH = 30.0  # of a Dirichlet prior, so that a handful of images does not run away
NOTHING = 2.0  # times what chance alone would change: below, there is nothing to explain


def explained_share(
    posteriors: Tensor, prior: Tensor, target: Tensor, confusion: Tensor
) -> float | None:
    """How much of the change in the mean prediction `target` takes away, beyond sampling error: 1
    where it explains all of it, 0 (never less) where it explains nothing.

    posteriors [n, C] of new images; prior [C] of training and `target` [C], found for these images;
    confusion [C predicted, C true] of new images of the training domains, in any scale. None where
    nothing has changed, or for one image.
    """
    if len(posteriors) < 2:
        return None
    rows, given = posteriors.double(), _given_class(confusion)
    found, chance = rows.mean(0), float(rows.var(0).sum()) / len(rows)
    changed = float((found - given @ prior.double()).square().sum())
    if changed <= NOTHING * chance:
        return None
    left = float((found - given @ target.double()).square().sum())
    return max(1 - max(left - chance, 0.0) / (changed - chance), 0.0)


def explained_by_em(posteriors: Tensor, prior: Tensor, confusion: Tensor) -> float | None:
    """The same for the likeliest frequencies, whatever else is expected of them: so a domain can be
    compared with the domains that were rehearsed."""
    target, _ = em_prior(posteriors, prior, strength=STRENGTH, tolerance=1e-4, most=200)
    return explained_share(posteriors, prior, target, confusion)


def _given_class(confusion: Tensor) -> Tensor:
    """What images of each class are predicted as, on average: columns [C] that sum to 1. A class
    without images counts as always recognised."""
    counts = confusion.double()
    totals = counts.sum(0)
    sure = torch.eye(len(counts), dtype=torch.float64)
    return torch.where(totals > 0, counts / totals.clamp(min=1e-12), sure)


@dataclass(frozen=True)
class MethodChoice:
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: tuple[str, ...] = ()


def choose_method(trained: Trained, images: int, into: DomainState | None = None) -> MethodChoice:
    """What `auto` means for `images` of a new domain, of which `into` has seen others before."""
    found = rehearsal_of(trained)
    if into is not None:
        return _going_on(chain_of(into).name, found, into.count + images)
    if found is None:
        if trained.embedding is not None:
            return MethodChoice("embedding")
        asked = trained.config.adapt.rehearse
        why = "too few sites or images to rehearse with" if asked else "nothing was rehearsed"
        remedy = "" if asked else "; see adapt.rehearse"
        return MethodChoice("none", why=(f"{why}: the plain model is used as it is{remedy}",))
    return rehearsed_choice(found, images)


def rehearsed_choice(found: Rehearsal, images: int) -> MethodChoice:
    """What rehearsal chose for so many images of a new domain."""
    chain = found.chain_for(images)
    return MethodChoice(chain, found.settings_for(chain), (_why(found, chain, images),))


def _going_on(begun: str, found: Rehearsal | None, images: int) -> MethodChoice:
    """A state is gone on with as it was begun; by now another method may be due."""
    if found is None:
        return MethodChoice(begun)
    settings = found.settings_for(begun) if begun in found.chains else {}
    due = found.chain_for(images)
    if due == begun:
        return MethodChoice(begun, settings)
    why = f"with {count(images, 'image')} rehearsal would choose {due}; adapt anew on all of them"
    return MethodChoice(begun, settings, (why,))


def rehearsal_of(trained: Trained) -> Rehearsal | None:
    stored = trained.rehearsal
    return None if stored is None else Rehearsal.from_dict(stored, where=REHEARSAL)


def _why(found: Rehearsal, chain: str, images: int) -> str:
    sites = count(found.domains, "site")
    if chain != "none":
        promise = found.promise(chain, images)
        error = "" if promise.error is None else f" ± {percent(promise.error)}"
        return (
            f"{chain} was chosen by rehearsal on {sites}: {signed(promise.gain)}{error} points "
            f"with {count(promise.n, 'image')}"
        )
    if found.domains < ENOUGH_DOMAINS_TO_TELL:
        return (
            f"{sites} cannot tell whether adaptation pays, {ENOUGH_DOMAINS_TO_TELL} can; "
            f"predictions are the plain model's"
        )
    later = [n for n, other in found.chosen.items() if other != "none" and n > images]
    if later:
        return (
            f"{count(images, 'image')} are too few to adapt by: rehearsal on {sites} shows a gain "
            f"from {min(later)} on; predictions are the plain model's"
        )
    with_so_many = "" if set(found.chosen.values()) == {"none"} else " with so many images"
    return (
        f"adaptation did not pay on your {sites}{with_so_many}; predictions are the plain model's"
    )


TOO_FAR = 1.5  # times as far from the nearest domain as domains like those in training may lie
MARGIN = 0.1  # a share of the change that label shift may explain less than at rehearsed domains


@dataclass(frozen=True)
class Guard:
    """What a rehearsed model knows of the domains that it was rehearsed on."""

    rehearsal: Rehearsal
    plain: Predictor
    label_prior: Sequence[float]
    confusion: Tensor | None  # of `plain`, on new images of its own domains
    table: DomainTable | None  # where there is a path by embedding

    @classmethod
    def of(cls, trained: Trained) -> "Guard | None":
        found = rehearsal_of(trained)
        if found is None:
            return None
        table = trained.start(embedding=True).table
        return cls(found, trained.predictor, trained.label_prior, trained.confusion, table)

    def reconsidered(
        self, choice: MethodChoice, state: DomainState | None, images: Images
    ) -> MethodChoice | None:
        """A simpler method, where this domain is unlike those that `choice` was rehearsed on."""
        found = self._objection(choice.method, state, images)
        if found is None:
            return None
        part, against = found
        rest = "+".join(name for name in choice.method.split("+") if name != part) or "none"
        why = f"but {against}: adapted without {part}"
        return MethodChoice(rest, self.rehearsal.settings_for(rest), (*choice.why, why))

    def objection(self, chain: str, state: DomainState, images: Images) -> str | None:
        """What speaks against going on with a state that was made by `chain`."""
        found = self._objection(chain, state, images)
        if found is None:
            return None
        part, against = found
        return f"but {against}: adapt anew on all the images, which leaves out {part}"

    def _objection(
        self, chain: str, state: DomainState | None, images: Images
    ) -> tuple[str, str] | None:
        """A part of `chain` to do without, and why."""
        steps = find_chain(chain)
        if steps.embedding and state is not None and (against := self._too_far(state)):
            return "embedding", against
        for name, method in steps.methods.items():
            if method.assumes_label_shift and (against := self._no_label_shift(images)):
                return name, against
        return None

    def explained(self, images: Images) -> float | None:
        """Of how predictions change here, the share that label frequencies explain."""
        temperature = self.rehearsal.temperature("none")
        if self.confusion is None or temperature is None:
            return None
        prior = torch.tensor(self.label_prior, dtype=torch.float64)
        return explained_by_em(posteriors(self.plain, images, temperature), prior, self.confusion)

    def expected(self, chain: str, predictor: Predictor, images: Images) -> tuple[float, float]:
        """Where the accuracy of the adapted `predictor` is expected, in nine cases of ten."""
        calibrated = find_chain(chain).calibrates
        temperature = 1.0 if calibrated else self.rehearsal.temperature(chain)
        promise, sure = self.rehearsal.promise(chain, len(images)), None
        # How sure it is of fewer images than were ever rehearsed with tells too little.
        if temperature is not None and len(images) >= promise.n:
            sure = float(posteriors(predictor, images, temperature).amax(1).mean())
        return promise.expected(sure)

    def _too_far(self, state: DomainState) -> str | None:
        trust = judge(state, self.table)
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
        trust = replace(trust, warnings=())  # of an adaptation that there is not
    if guard is None or chain not in guard.rehearsal.chains:
        return trust
    if guard.rehearsal.promise(chain, len(images)).domains < ENOUGH_DOMAINS_TO_TELL:
        return trust
    return replace(
        trust,
        expected_accuracy=guard.expected(chain, predictor, images),
        explained_by_labels=guard.explained(images),
    )
