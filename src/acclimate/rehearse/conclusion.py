"""From trials to what `adapt` will do: arithmetic only.

A `Trial` is a training domain that was held out, adapted to from n unlabelled images by one chain
of methods, and scored on its other images. From the trials follow, for each n, the chain to use and
what it promises at an unseen domain.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from acclimate.adapt.trust import Reach
from acclimate.records.rehearsal import (
    ENOUGH_DOMAINS_TO_TELL,
    FREE,
    LEAST_SPREAD,
    Frequencies,
    Promise,
    Rehearsal,
    half_width,
    quantile,
    simplicity,
)

ONE_SIGMA, TWO_SIGMA = 0.8413, 0.9772  # shares of the normal distribution below 1 and 2
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
    confidence: float | None = None  # mean probability of what is predicted for the `n` images
    settings: Tried = ()  # of its methods, where several were tried
    explained: float | None = None  # of how predictions change here, by label shift


def conclude(
    trials: Sequence[Trial],
    temperatures: Mapping[str, float],
    *,
    exact: bool,
    ahead: float = 0.0,
) -> Rehearsal:
    """From every trial to the chains that `adapt` will use.

    `ahead` is how much more accurate the model itself is than those that stood in for it.
    """
    table = _Table.of(trials, ahead)
    promises = tuple(
        promise
        for n in table.sizes
        for frequencies in table.kinds
        for chain in table.chains
        if (promise := table.promise(chain, n, frequencies)) is not None
    )
    chosen: dict[int, str] = {}
    for n in table.sizes:
        # What the chain promised that was chosen for the largest size so far.
        most = max(chosen, default=0)
        before = next((p for p in promises if p.n == most and p.chain == chosen[most]), None)
        chosen[n] = _choose([p for p in promises if p.n == n], table, before)
    explained: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.explained is not None:
            explained[trial.n].append(trial.explained)
    return Rehearsal(
        promises=promises,
        chosen=chosen,
        settings={chain: dict(best) for chain in table.chains if (best := table.best(chain))},
        temperatures=temperatures,
        domains=len(table.domains),
        exact=exact,
        ahead=ahead,
        explained={
            n: 1 - Reach.of(1 - np.asarray(shares)).distance
            for n, shares in explained.items()
            if len(shares) >= ENOUGH_DOMAINS_TO_TELL
        },
    )


def _choose(promises: Sequence[Promise], table: "_Table", before: Promise | None = None) -> str:
    """The simplest chain that does as well as the best one, as far as domains can show.

    A chain must gain beyond noise at `ENOUGH_DOMAINS_TO_TELL` domains or more, and where label
    frequencies stay as they are it must cost nothing: it may be that they do not shift at the new
    site. What gains less than the best by no more than the standard error of their difference,
    domain by domain, is as good as it. Where fewer domains could be held out than `before`, with
    fewer images, that they show no gain is no evidence: that choice stays, unless it lost.
    """
    by_chain: dict[str, list[Promise]] = {}
    for promise in promises:
        by_chain.setdefault(promise.chain, []).append(promise)
    gains = {chain: fmean(p.gain for p in own) for chain, own in by_chain.items()}
    errors = {chain: _error(own) for chain, own in by_chain.items()}
    able = [
        chain
        for chain, own in by_chain.items()
        if chain == "none"
        or (
            own[0].domains >= ENOUGH_DOMAINS_TO_TELL
            and gains[chain] > errors[chain] * quantile(own[0].domains, TWO_SIGMA)
            and all(p.gain >= -FREE for p in own if p.frequencies == "as they are")
        )
    ]
    stays = before is not None and promises[0].domains < before.domains
    if able == ["none"] and before is not None and stays and gains.get(before.chain, -1.0) >= 0:
        return before.chain
    best = max(able, key=lambda chain: gains[chain])
    one_sigma = quantile(by_chain[best][0].domains, ONE_SIGMA)
    return next(
        chain
        for chain in sorted(able, key=simplicity)
        if gains[best] - gains[chain] <= one_sigma * table.error_between(best, chain, promises[0].n)
    )


def _error(promises: Sequence[Promise]) -> float:
    """Of the mean gain. Few domains can agree by chance, so it is never nothing; and the same
    domains are in each promise, so their errors do not average out."""
    if promises[0].chain == "none":
        return 0.0
    return fmean(max(p.error or 0.0, FREE) for p in promises)


class _Cell(NamedTuple):
    """Means over the draws of a domain."""

    accuracy: float
    confidence: float | None
    scatter: float  # of accuracy less confidence, between draws: see `_hidden_variance`


@dataclass(frozen=True)
class _Table:
    """Accuracies by (domain, n, frequencies) of each chain and its settings."""

    domains: tuple[str, ...]
    sizes: tuple[int, ...]
    kinds: tuple[Frequencies, ...]
    chains: tuple[str, ...]
    ahead: float
    cells: Mapping[_Key, _Cell]

    @classmethod
    def of(cls, trials: Sequence[Trial], ahead: float) -> "_Table":
        draws: dict[_Key, list[Trial]] = defaultdict(list)
        held_out: dict[int, set[str]] = defaultdict(set)
        for trial in trials:
            key = (trial.chain, trial.settings, trial.domain, trial.n, trial.frequencies)
            draws[key].append(trial)
            held_out[trial.n].add(trial.domain)
        domains = tuple(dict.fromkeys(t.domain for t in trials))
        # A size that only a few large domains have says little of the others.
        few = max(len(domains) / 2, min(len(domains), ENOUGH_DOMAINS_TO_TELL))
        return cls(
            domains,
            tuple(sorted(n for n, able in held_out.items() if len(able) >= few)),
            tuple(dict.fromkeys(t.frequencies for t in trials)),
            tuple(sorted({trial.chain for trial in trials}, key=simplicity)),
            ahead,
            {key: _cell(own) for key, own in draws.items()},
        )

    def gain(self, chain: str, settings: Tried, domain: str, n: int, kind: str) -> float | None:
        mine = self.cells.get((chain, settings, domain, n, kind))
        plain = self.cells.get(("none", (), domain, n, kind))
        return None if mine is None or plain is None else mine.accuracy - plain.accuracy

    def best(self, chain: str, without: str | None = None) -> Tried:
        """The settings that gained most over all domains (but one); of equal ones, those that were
        tried first."""

        def worth(settings: Tried) -> float:
            gains = [
                gain
                for domain in self.domains
                for n in self.sizes
                for kind in self.kinds
                if domain != without
                and (gain := self.gain(chain, settings, domain, n, kind)) is not None
            ]
            return fmean(gains) if gains else -math.inf

        tried = dict.fromkeys(settings for of, settings, *_ in self.cells if of == chain)
        return max(tried, key=worth)

    def others_choice(self, chain: str, domain: str) -> Tried:
        """The settings that the other domains choose: a promise is not its own judge."""
        return self.best(chain, domain if len(self.domains) > 1 else None)

    def error_between(self, one: str, other: str, n: int) -> float:
        """Standard error of how much more `one` gains than `other`, over domains, each by all kinds
        of frequencies; few domains can agree by chance, so it is never nothing."""
        by_domain = []
        for domain in self.domains:
            first, second = (self.others_choice(chain, domain) for chain in (one, other))
            pairs = [
                (self.gain(one, first, domain, n, kind), self.gain(other, second, domain, n, kind))
                for kind in self.kinds
            ]
            gaps = [a - b for a, b in pairs if a is not None and b is not None]
            if gaps:
                by_domain.append(fmean(gaps))
        if len(by_domain) < 2:
            return FREE
        return max(stdev(by_domain) / math.sqrt(len(by_domain)), FREE)

    def promise(self, chain: str, n: int, kind: Frequencies) -> Promise | None:
        """What a chain gained at the held-out domains; None where none has so many images."""
        gains, cells = [], []
        for domain in self.domains:
            own = self.others_choice(chain, domain)
            gain = self.gain(chain, own, domain, n, kind)
            if gain is not None:
                gains.append(gain)
                cells.append(self.cells[chain, own, domain, n, kind])
        if not gains:
            return None
        several, accuracies = len(gains) > 1, [cell.accuracy for cell in cells]
        beyond = [cell.accuracy - cell.confidence for cell in cells if cell.confidence is not None]
        known = len(beyond) == len(cells)
        hidden = fmean(cell.scatter for cell in cells)
        low, high = _interval([accuracy + self.ahead for accuracy in accuracies])
        return Promise(
            chain=chain,
            n=n,
            frequencies=kind,
            gain=fmean(gains),
            error=stdev(gains) / math.sqrt(len(gains)) if several else None,
            accuracy=fmean(accuracies),
            low=low,
            high=high,
            domains=len(gains),
            beyond_confidence=fmean(beyond) + self.ahead if known else None,
            spread=math.sqrt(stdev(beyond) ** 2 + hidden) if known and several else None,
        )


def _cell(draws: Sequence[Trial]) -> _Cell:
    accuracy = fmean(trial.accuracy for trial in draws)
    sure = [trial.confidence for trial in draws if trial.confidence is not None]
    if len(sure) < len(draws):
        return _Cell(accuracy, None, 0.0)
    beyond = [trial.accuracy - own for trial, own in zip(draws, sure, strict=True)]
    return _Cell(accuracy, fmean(sure), _hidden_variance(beyond))


def _hidden_variance(beyond: Sequence[float]) -> float:
    """Of the variance of accuracy less confidence between draws of a domain, the part that their
    mean leaves out: a new site is one draw."""
    draws = len(beyond)
    return stdev(beyond) ** 2 * (1 - 1 / draws) if draws > 1 else 0.0


def _interval(accuracies: Sequence[float]) -> tuple[float, float]:
    """The 90 % interval for the next one, if it is drawn as these were."""
    if len(accuracies) < 2:
        return 0.0, 1.0
    spread = max(stdev(accuracies), LEAST_SPREAD)
    middle, half = fmean(accuracies), half_width(len(accuracies), spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)
