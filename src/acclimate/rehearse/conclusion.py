"""From trials to what `adapt` will do: arithmetic only.

A `Trial` is a training domain that was held out, adapted to from n unlabelled images by one chain
of methods, and scored on its other images. From the trials follow, for each n, the chain to use and
what it promises at an unseen domain.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

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
_Cell = tuple[str, Tried, str, int, str]  # chain, settings, domain, n, frequencies


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


def conclude(
    trials: Sequence[Trial],
    temperatures: Mapping[str, float],
    *,
    exact: bool,
    explained: Mapping[int, Sequence[float]] | None = None,
    ahead: float = 0.0,
) -> Rehearsal:
    """From every trial, and what label shift explained at each domain, to what will be done.

    `ahead` is how much more often the model itself is right than those that stood in for it.
    """
    table = _Gains.of(trials, ahead)
    promises = tuple(
        promise
        for n in table.sizes
        for frequencies in table.kinds
        for chain in table.chains
        if (promise := table.promise(chain, n, frequencies)) is not None
    )
    chosen: dict[int, str] = {}
    for n in table.sizes:
        chosen[n] = _choose([p for p in promises if p.n == n], table, _at(promises, chosen))
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
            for n, shares in (explained or {}).items()
            if len(shares) >= ENOUGH_DOMAINS_TO_TELL
        },
    )


def _at(promises: Sequence[Promise], chosen: Mapping[int, str]) -> Promise | None:
    """What the chain promised that was chosen for the largest size so far."""
    most = max(chosen, default=0)
    found = (p for p in promises if p.n == most and p.chain == chosen[most])
    return next(found, None)


def _choose(promises: Sequence[Promise], table: "_Gains", before: Promise | None = None) -> str:
    """The simplest chain that does as well as the best one, as far as can be told.

    A chain must gain beyond noise at `ENOUGH_DOMAINS_TO_TELL` domains or more, and where label
    frequencies stay as they are it must cost nothing: it may be that they do not shift at the new
    site. What gains less than the best by no more than the standard error of their difference,
    domain by domain, is as good as it. Where fewer domains could play than `before`, with fewer
    images, their silence is no evidence: what was chosen there stays, unless it lost.
    """
    by_chain: dict[str, list[Promise]] = {}
    for promise in promises:
        by_chain.setdefault(promise.chain, []).append(promise)
    gains = {chain: fmean(p.gain for p in found) for chain, found in by_chain.items()}
    errors = {chain: _error(found) for chain, found in by_chain.items()}
    able = [
        chain
        for chain, found in by_chain.items()
        if chain == "none"
        or (
            found[0].domains >= ENOUGH_DOMAINS_TO_TELL
            and gains[chain] > errors[chain] * quantile(found[0].domains, TWO_SIGMA)
            and all(p.gain >= -FREE for p in found if p.frequencies == "as they are")
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


@dataclass(frozen=True)
class _Gains:
    """Accuracies by (domain, n, frequencies) of each chain and its settings, and what they show."""

    domains: tuple[str, ...]
    sizes: tuple[int, ...]
    kinds: tuple[Frequencies, ...]
    chains: tuple[str, ...]
    ahead: float
    accuracy: Mapping[_Cell, float]
    confidence: Mapping[_Cell, float]
    scatter: Mapping[_Cell, float]  # of accuracy less confidence, between draws: see `_hidden`

    @classmethod
    def of(cls, trials: Sequence[Trial], ahead: float = 0.0) -> "_Gains":
        cells: dict[_Cell, list[float]] = {}
        sure: dict[_Cell, list[float]] = {}
        for trial in trials:
            key = (trial.chain, trial.settings, trial.domain, trial.n, trial.frequencies)
            cells.setdefault(key, []).append(trial.accuracy)
            if trial.confidence is not None:
                sure.setdefault(key, []).append(trial.confidence)
        kinds: list[Frequencies] = list(dict.fromkeys(t.frequencies for t in trials))
        domains = tuple(dict.fromkeys(t.domain for t in trials))
        playing = {n: len({t.domain for t in trials if t.n == n}) for n in {t.n for t in trials}}
        # What only a few large domains could play says little of the others.
        few = min(len(domains), ENOUGH_DOMAINS_TO_TELL)
        sizes = [n for n, count in playing.items() if count >= max(len(domains) / 2, few)]
        return cls(
            domains,
            tuple(sorted(sizes)),
            tuple(kinds),
            tuple(sorted({trial.chain for trial in trials}, key=simplicity)),
            ahead,
            {key: fmean(values) for key, values in cells.items()},
            {key: fmean(values) for key, values in sure.items()},
            {key: _hidden(cells[key], values) for key, values in sure.items()},
        )

    def gain(self, chain: str, settings: Tried, domain: str, n: int, kind: str) -> float | None:
        mine = self.accuracy.get((chain, settings, domain, n, kind))
        plain = self.accuracy.get(("none", (), domain, n, kind))
        return None if mine is None or plain is None else mine - plain

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

        tried = dict.fromkeys(settings for of, settings, *_ in self.accuracy if of == chain)
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
            found = [a - b for a, b in pairs if a is not None and b is not None]
            if found:
                by_domain.append(fmean(found))
        if len(by_domain) < 2:
            return FREE
        return max(stdev(by_domain) / math.sqrt(len(by_domain)), FREE)

    def promise(self, chain: str, n: int, kind: Frequencies) -> Promise | None:
        gains, accuracies, beyond, hidden = [], [], [], []
        for domain in self.domains:
            own = self.others_choice(chain, domain)
            gain = self.gain(chain, own, domain, n, kind)
            if gain is not None:
                gains.append(gain)
                cell = (chain, own, domain, n, kind)
                accuracies.append(self.accuracy[cell])
                if cell in self.confidence:
                    beyond.append(self.accuracy[cell] - self.confidence[cell])
                    hidden.append(self.scatter[cell])
        if not gains:
            return None
        low, high = _expected([accuracy + self.ahead for accuracy in accuracies])
        return Promise(
            chain=chain,
            n=n,
            frequencies=kind,
            gain=fmean(gains),
            error=stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None,
            accuracy=fmean(accuracies),
            low=low,
            high=high,
            domains=len(gains),
            beyond_confidence=fmean(beyond) + self.ahead if len(beyond) == len(gains) else None,
            spread=(
                math.sqrt(stdev(beyond) ** 2 + fmean(hidden))
                if len(beyond) == len(gains) > 1
                else None
            ),
        )


def _hidden(accuracies: Sequence[float], confidences: Sequence[float]) -> float:
    """Of the variance of accuracy less confidence between draws of a domain, what their mean leaves
    out: a new site is one draw."""
    draws = len(accuracies)
    if draws < 2 or len(confidences) != draws:
        return 0.0
    beyond = [a - c for a, c in zip(accuracies, confidences, strict=True)]
    return stdev(beyond) ** 2 * (1 - 1 / draws)


def _expected(accuracies: Sequence[float]) -> tuple[float, float]:
    """The 90 % interval for the next one, if it is drawn as these were."""
    if len(accuracies) < 2:
        return 0.0, 1.0
    spread = max(stdev(accuracies), LEAST_SPREAD)
    middle, half = fmean(accuracies), half_width(len(accuracies), spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)
