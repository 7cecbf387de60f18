"""From trials to what `adapt` will do: arithmetic only.

A `Trial` is a training domain that was held out, adapted to from n unlabelled images by one chain
of methods, and scored on its other images. From the trials follow, for each n, the chain to use and
what it promises at an unseen domain.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from acclimate.adapt.trust import Reach
from acclimate.records.doubt import answers, forecasts
from acclimate.records.rehearsal import (
    ENOUGH_DOMAINS_TO_TELL,
    LEAST_ERROR,
    Frequencies,
    Promise,
    Rehearsal,
    quantile,
    simplicity,
)

ONE_SIGMA = 0.8413  # the share of the normal distribution below 1
DOUBT = 0.1  # that a choice may leave
ALLOWED_LOSS = 0.003  # of accuracy, where label frequencies stay as they are
AS_GOOD = 0.005  # of accuracy: settings within so much of the best do as well
Tried = tuple[tuple[str, float | str], ...]  # settings, hashable
_Key = tuple[str, Tried, str, int, str]  # chain, settings, domain, n, frequencies


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A held-out domain adapted to by a chain from `n` of its images, and scored on others."""

    domain: str
    chain: str
    n: int
    frequencies: Frequencies
    accuracy: float
    scored: int = 0  # images; 0: not known
    scores: Mapping[str, float] = field(default_factory=dict)  # of the `n` images, without labels
    answers: tuple[tuple[int, int], ...] = ()  # on the others; see `doubt.count_answers`
    settings: Tried = ()  # of its methods, where several were tried
    explained: float | None = None  # of how predictions change here, by label shift


def conclude(
    trials: Sequence[Trial],
    temperatures: Mapping[str, float],
    *,
    exact: bool,
    idle: Collection[str] = (),
) -> Rehearsal:
    """From every trial to the chains that `adapt` will use; never one that is `idle` here, whatever
    it seems to gain."""
    table = _Table.of(trials)
    able = {*table.chains} - {*idle, "none"}
    promises = tuple(
        promise
        for n in table.sizes
        for frequencies in table.kinds
        for chain in table.chains
        if (promise := table.promise(chain, n, frequencies)) is not None
    )
    chosen: dict[int, str] = {}
    for n in table.sizes:
        before = chosen[max(chosen)] if chosen else "none"
        chosen[n] = _choose([p for p in promises if p.n == n], table, able, before)
    explained: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.explained is not None:
            explained[trial.n].append(trial.explained)
    return Rehearsal(
        promises=promises,
        chosen=chosen,
        temperatures=temperatures,
        domains=len(table.domains),
        exact=exact,
        explained={
            n: 1 - Reach.of(1 - np.asarray(shares)).distance
            for n, shares in explained.items()
            if len(shares) >= ENOUGH_DOMAINS_TO_TELL
        },
    )


def conclude_labels(trials: Sequence[Trial]) -> tuple[tuple[Promise, ...], dict[int, float]]:
    """From trials of `labels` with settings "labels.strength", beside "none" without labels, to
    what so many labels promise, and the strengths that gained most."""
    promises, strengths = [], {}
    for k in sorted({trial.n for trial in trials}):
        table = _Table.of([trial for trial in trials if trial.n == k])
        promise = table.promise("labels", k, "as they are")
        if promise is not None and promise.domains > 1:
            promises.append(promise)
            strengths[k] = float(promise.settings["labels.strength"])
    return tuple(promises), strengths


def promises_beside(trials: Sequence[Trial]) -> tuple[Promise, ...]:
    """Each chain of trials of one size beside "none", which comes first."""
    table = _Table.of(trials)
    size, kind = trials[0].n, trials[0].frequencies
    own = (table.promise(chain, size, kind) for chain in table.chains)
    return tuple(promise for promise in own if promise is not None)


def with_controls(rehearsal: Rehearsal, trials: Sequence[Trial]) -> Rehearsal:
    """A rehearsal whose promises for chosen chains say what the same chain gains without images of
    the domain ("neutral"), and with another domain's ("other"): trials of these names, by chain."""
    sizes = {trial.n for trial in trials}
    beside = {n: promises_beside([trial for trial in trials if trial.n == n]) for n in sizes}

    def known(promise: Promise) -> Promise:
        if promise.frequencies != "as they are" or rehearsal.chosen.get(promise.n) != promise.chain:
            return promise
        gains = {one.chain: one.gain for one in beside.get(promise.n, ())}
        return replace(promise, neutral=gains.get("neutral"), other=gains.get("other"))

    return replace(rehearsal, promises=tuple(map(known, rehearsal.promises)))


def _choose(
    promises: Sequence[Promise], table: "_Table", able: Collection[str], before: str
) -> str:
    """The simplest of the chains that pay and do as well as the best of them, on real sites.

    What gains less than the best by no more than the standard error of their difference, domain by
    domain, is as good as it. Where nothing pays, the chain that was chosen `before`, for fewer
    images, stays, unless it loses: that more images show no gain is no evidence against it.
    """
    real = {p.chain: p for p in promises if p.frequencies == "as they are"}
    paying = _paying(promises, able)
    if not paying:
        return "none" if before not in real or _chance(real[before]) > 1 - DOUBT else before
    best = max(paying, key=lambda chain: real[chain].gain)
    one_sigma = quantile(real[best].domains, ONE_SIGMA)
    return next(
        chain
        for chain in sorted(paying, key=simplicity)
        if real[best].gain - real[chain].gain
        <= one_sigma * table.error_between(best, chain, real[best].n)
    )


def _paying(promises: Sequence[Promise], able: Collection[str]) -> list[str]:
    """Chains of which it is sure, to 10 % over all that were tried (Holm), that they gain where
    frequencies are shifted, and lose no more than `ALLOWED_LOSS` at the sites as they are."""
    anew = any(p.frequencies == "drawn anew" for p in promises)
    chances: dict[str, float] = {}
    for promise in promises:
        if promise.chain in able and promise.domains >= ENOUGH_DOMAINS_TO_TELL:
            allowed = ALLOWED_LOSS if anew and promise.frequencies == "as they are" else 0.0
            known = chances.get(promise.chain, 0.0)
            chances[promise.chain] = max(_chance(promise, allowed), known)  # both must hold
    ranked = sorted(chances, key=chances.__getitem__)
    doubtful = (chances[chain] * (len(ranked) - i) > DOUBT for i, chain in enumerate(ranked))
    return ranked[: next((i for i, so in enumerate(doubtful) if so), len(ranked))]


def _chance(promise: Promise, allowed: float = 0.0) -> float:
    """The probability of such a gain, or of a larger one, for a chain that loses `allowed`."""
    if promise.domains < ENOUGH_DOMAINS_TO_TELL or not promise.error:
        return 0.5
    return float(stdtr(promise.domains - 1, -(promise.gain + allowed) / promise.error))


class _Cell(NamedTuple):
    """Means over the draws of a domain."""

    accuracy: float
    scored: int
    images: float  # that the accuracy is as good as
    scores: Mapping[str, float]  # of one draw: a new site is one
    answers: np.ndarray  # [thresholds, 2], or none


@dataclass(frozen=True)
class _Table:
    """Accuracies by (domain, n, frequencies) of each chain and its settings."""

    domains: tuple[str, ...]
    sizes: tuple[int, ...]
    kinds: tuple[Frequencies, ...]
    chains: tuple[str, ...]
    cells: Mapping[_Key, _Cell]

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> "_Table":
        draws: dict[_Key, list[Trial]] = defaultdict(list)
        held_out: dict[int, set[str]] = defaultdict(set)
        for trial in trials:
            key = (trial.chain, trial.settings, trial.domain, trial.n, trial.frequencies)
            draws[key].append(trial)
            held_out[trial.n].add(trial.domain)
        domains = tuple(dict.fromkeys(t.domain for t in trials))
        # A size that only a few large domains have says little of the others.
        return cls(
            domains,
            tuple(sorted(n for n, able in held_out.items() if 2 * len(able) >= len(domains))),
            tuple(dict.fromkeys(t.frequencies for t in trials)),
            tuple(sorted(dict.fromkeys(t.chain for t in trials), key=simplicity)),
            {key: _cell(own) for key, own in draws.items()},
        )

    def gain(self, chain: str, settings: Tried, domain: str, n: int, kind: str) -> float | None:
        mine = self.cells.get((chain, settings, domain, n, kind))
        plain = self.cells.get(("none", (), domain, n, kind))
        return None if mine is None or plain is None else mine.accuracy - plain.accuracy

    def best(self, chain: str, n: int, without: str | None = None) -> Tried:
        """The settings that gained most with `n` images where frequencies are shifted, over all
        domains (but one). Of those that do as well the first, which change the model least: what is
        next to nothing here may be a loss at a new site."""
        shifted = max(self.kinds)  # "drawn anew" where it was tried

        def gains(settings: Tried) -> list[float]:
            return [
                gain
                for domain in self.domains
                if domain != without
                and (gain := self.gain(chain, settings, domain, n, shifted)) is not None
            ]

        tried = dict.fromkeys(settings for of, settings, *_ in self.cells if of == chain)
        worth = {one: fmean(own) if (own := gains(one)) else -math.inf for one in tried}
        return next(one for one in tried if worth[one] >= max(worth.values()) - AS_GOOD)

    def others_choice(self, chain: str, n: int, domain: str) -> Tried:
        """The settings that the other domains choose: a promise is not its own judge."""
        return self.best(chain, n, domain if len(self.domains) > 1 else None)

    def error_between(self, one: str, other: str, n: int) -> float:
        """Standard error of how much more `one` gains than `other`, over the domains as they are;
        few can agree by chance, so it is never nothing."""
        pairs = (
            [
                self.gain(chain, self.others_choice(chain, n, domain), domain, n, "as they are")
                for chain in (one, other)
            ]
            for domain in self.domains
        )
        gaps = [a - b for a, b in pairs if a is not None and b is not None]
        return max(stdev(gaps) / math.sqrt(len(gaps)), LEAST_ERROR)

    def promise(self, chain: str, n: int, kind: Frequencies) -> Promise | None:
        """What a chain gained at the held-out domains; None where none has so many images."""
        gains, cells = [], []
        for domain in self.domains:
            own = self.others_choice(chain, n, domain)
            gain = self.gain(chain, own, domain, n, kind)
            if gain is not None:
                gains.append(gain)
                cells.append(self.cells[chain, own, domain, n, kind])
        if not gains:
            return None
        several, accuracies = len(gains) > 1, [cell.accuracy for cell in cells]
        error = stdev(gains) / math.sqrt(len(gains)) if several else None
        if error is not None and chain != "none":
            # Few domains can agree by chance, and none tells more than one image of those scored.
            images = (1 / cell.scored for cell in cells if cell.scored)
            error = max(error, LEAST_ERROR, math.hypot(*images) / len(gains))
        names = set[str].intersection(*({*cell.scores} for cell in cells))
        counts = [cell.answers for cell in cells if kind == "as they are" and len(cell.answers)]
        return Promise(
            chain=chain,
            n=n,
            frequencies=kind,
            gain=fmean(gains),
            error=error,
            accuracy=fmean(accuracies),
            domains=len(gains),
            settings=dict(self.best(chain, n)),
            forecasts=forecasts(
                accuracies,
                [cell.images for cell in cells],
                {name: [cell.scores[name] for cell in cells] for name in sorted(names)},
            ),
            answers=answers(np.stack(counts)) if len(counts) == len(cells) else (),
        )


def _cell(draws: Sequence[Trial]) -> _Cell:
    accuracy, scored = fmean(trial.accuracy for trial in draws), draws[0].scored
    # Each draw scores half of the images: the mean of several is as good as more of them.
    images = scored * 2 * len(draws) / (len(draws) + 1)
    answered = np.array([trial.answers for trial in draws]).sum(0)
    return _Cell(accuracy, scored, images, draws[0].scores, answered)
