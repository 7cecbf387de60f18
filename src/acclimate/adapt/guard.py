"""What unlabelled images say against an adaptation, and of the accuracy to expect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from acclimate.adapt.choice import MethodChoice, rehearsal_of
from acclimate.adapt.methods import chain_of, find_chain
from acclimate.adapt.methods.prior import posteriors
from acclimate.adapt.second_opinion import explained_by_em
from acclimate.adapt.trust import Trust, judge
from acclimate.data.source import Images
from acclimate.learn.embeddings import DomainState, DomainTable
from acclimate.learn.model import Trained
from acclimate.learn.models import Predictor
from acclimate.records.rehearsal import ENOUGH_DOMAINS_TO_TELL, Rehearsal

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
