"""What rehearsal found, and what follows from it: arithmetic only.

Training domains have played "new site" in turn: each was adapted to from n unlabelled images by
every chain of methods and scored on its other images. A `Trial` is one such score. From the trials
follow, for each n, the chain to use, what it promises at a site nobody has seen, and the words for
both.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from acclimate.adapt.reach import Reach
from acclimate.core.errors import RunError
from acclimate.core.wording import count, percent, signed

FORMAT = "acclimate-rehearsal-1"
CHAINS = ("none", "prior", "embedding", "embedding+prior")  # the simpler first
ENOUGH_DOMAINS = 10  # from here on, the domains themselves tell how label frequencies vary
FREE = 0.001  # an accuracy that a choice may cost where label frequencies stay: nothing to speak of
EM_TOLERANCE, EM_ITERATIONS = 1e-4, 200  # thousands of estimates are made: enough to be of use
ENOUGH_DOMAINS_TO_TELL = 3  # a gain from chance
TELLS_NOTHING = 0.6  # the width from which a range of accuracies does
LEAST_SPREAD = 0.01  # of accuracies: a few domains that agree do so by chance
ONE_SIGMA, TWO_SIGMA = 0.8413, 0.9772  # shares of the normal distribution below 1 and 2
PRIOR = "prior"
LEARNED: Literal["learned"] = "learned"
Frequencies = Literal["as they are", "drawn anew"]
Strength = float | Literal["learned"]  # of Dirichlet smoothing; or how frequencies vary is learned
_Cell = tuple[str, Strength | None, str, int, str]  # chain, strength, domain, n, frequencies


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A held-out domain adapted to by a chain from `n` of its images, and scored on others."""

    domain: str
    chain: str
    n: int
    frequencies: Frequencies
    accuracy: float
    confidence: float | None = None  # mean probability of what is predicted for the `n` images
    strength: Strength | None = None  # of the label prior


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a chain gained over the plain model at the held-out domains, with `n` images each."""

    chain: str
    n: int
    frequencies: Frequencies
    gain: float  # in accuracy; mean over domains
    error: float | None  # its standard error; None for one domain
    accuracy: float
    low: float  # where the accuracy at a new domain is expected, in nine cases of ten
    high: float
    domains: int
    beyond_confidence: float | None = None  # accuracy less the confidence: mean over domains,
    spread: float | None = None  # and standard deviation

    def expected(self, confidence: float | None) -> tuple[float, float]:
        """Where the accuracy at a new domain is expected, in nine cases of ten, with the classifier
        so sure of what it says there: by that, or by the other domains' accuracy, whichever says
        more."""
        if confidence is None or self.beyond_confidence is None or self.spread is None:
            return self.low, self.high
        reach = _reach(self.domains, max(self.spread, LEAST_SPREAD))
        if 2 * reach > self.high - self.low:
            return self.low, self.high
        middle = confidence + self.beyond_confidence
        return min(max(middle - reach, 0.0), 1.0), max(min(middle + reach, 1.0), 0.0)

    def expected_gain(self, domains: int = 1) -> tuple[float, float] | None:
        """Where the gain is expected at a new domain, or its mean over so many of them, in nine
        cases of ten; None where one domain alone has been seen."""
        if self.error is None:
            return None
        spread = max(self.error, FREE) * math.sqrt(self.domains)  # few may agree by chance
        reach = _reach(self.domains, spread, domains)
        return self.gain - reach, self.gain + reach


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The outcome. `chosen` has the chain for each n that was rehearsed, ascending."""

    promises: tuple[Promise, ...]
    chosen: Mapping[int, str]
    temperatures: Mapping[str, float]  # of the label prior, by chain
    strengths: Mapping[str, Strength]
    domains: int
    exact: bool  # the backbone had not seen the held-out domains
    # By n: of how predictions change at a held-out domain, what label shift explains at least.
    explained: Mapping[int, float] = field(default_factory=dict)
    # How much more often the model is right than those that learned from fewer domains.
    ahead: float = 0.0
    plain_scale: float = 1.0  # puts the plain logits on the scale of the heads that stood in

    @property
    def chains(self) -> frozenset[str]:
        """Those that were rehearsed."""
        return frozenset(promise.chain for promise in self.promises)

    def has(self, frequencies: Frequencies) -> bool:
        return any(promise.frequencies == frequencies for promise in self.promises)

    def chain_for(self, n: int) -> str:
        """What to do with `n` images: as rehearsed with the most that were not more."""
        known = [size for size in self.chosen if size <= n]
        return self.chosen[max(known)] if known else "none"

    def settings_for(self, chain: str) -> dict[str, Any]:
        """The methods' settings, as `adapt` takes them."""
        if "prior" not in chain.split("+"):
            return {}
        chosen = prior_settings(self.temperatures[chain], self.strengths[chain])
        return {f"prior.{key}": value for key, value in chosen.items()}

    def temperature(self, chain: str) -> float | None:
        """What the logits that `chain` starts from are divided by to be as sure as they are right;
        None where nobody fitted it."""
        return self.temperatures.get(f"embedding+{PRIOR}" if "embedding" in chain else PRIOR)

    def least_explained(self, n: int) -> float | None:
        """As rehearsed with the most images that were not more than `n`."""
        known = [size for size in self.explained if size <= n]
        return self.explained[max(known)] if known else None

    def promise(self, chain: str, n: int, frequencies: Frequencies = "as they are") -> Promise:
        """What it gained, as rehearsed with the most images that were not more than `n`."""
        same = [p for p in self.promises if (p.chain, p.frequencies) == (chain, frequencies)]
        return max(
            (p for p in same if p.n <= n), key=lambda p: p.n, default=min(same, key=lambda p: p.n)
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **asdict(self),
            "chosen": [{"n": n, "chain": chain} for n, chain in self.chosen.items()],
            "explained": [{"n": n, "share": share} for n, share in self.explained.items()],
            "verdict": verdict(self),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], *, where: str) -> "Rehearsal":
        try:
            if stored["format"] != FORMAT:
                raise RunError(
                    f"{where}: format {stored['format']}, this version reads {FORMAT}; "
                    f"use the version of acclimate that wrote it"
                )
            return cls(
                promises=tuple(Promise(**found) for found in stored["promises"]),
                chosen={int(found["n"]): str(found["chain"]) for found in stored["chosen"]},
                temperatures=dict(stored["temperatures"]),
                strengths=dict(stored["strengths"]),
                domains=int(stored["domains"]),
                exact=bool(stored["exact"]),
                explained={
                    int(found["n"]): float(found["share"]) for found in stored.get("explained", [])
                },
                ahead=float(stored.get("ahead", 0.0)),
                plain_scale=float(stored.get("plain_scale", 1.0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"{where} is damaged; delete it and repeat the training") from None


def prior_settings(temperature: float, strength: Strength) -> dict[str, Any]:
    """How frequencies are estimated in rehearsal, and by `adapt` afterwards: a `PriorConfig`."""
    if strength == LEARNED:
        return {"temperature": temperature, "expect": LEARNED}
    smoothed = {"temperature": temperature, "strength": strength}
    return {**smoothed, "tolerance": EM_TOLERANCE, "iterations": EM_ITERATIONS}


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
    strengths = {
        chain: table.best_strength(chain) for chain in table.chains if chain in temperatures
    }
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
        temperatures={chain: temperatures[chain] for chain in strengths},
        strengths=strengths,
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
            and gains[chain] > errors[chain] * _quantile(found[0].domains, TWO_SIGMA)
            and all(p.gain >= -FREE for p in found if p.frequencies == "as they are")
        )
    ]
    stays = before is not None and promises[0].domains < before.domains
    if able == ["none"] and before is not None and stays and gains.get(before.chain, -1.0) >= 0:
        return before.chain
    best = max(able, key=lambda chain: gains[chain])
    one_sigma = _quantile(by_chain[best][0].domains, ONE_SIGMA)
    return next(
        chain
        for chain in CHAINS
        if chain in able
        and gains[best] - gains[chain]
        <= one_sigma * table.error_between(best, chain, promises[0].n)
    )


def _error(promises: Sequence[Promise]) -> float:
    """Of the mean gain. Few domains can agree by chance, so it is never nothing; and the same
    domains are in each promise, so their errors do not average out."""
    if promises[0].chain == "none":
        return 0.0
    return fmean(max(p.error or 0.0, FREE) for p in promises)


def _quantile(domains: int, share: float) -> float:
    """Student's t below which `share` lies, for a mean over so many domains."""
    from scipy.special import stdtrit

    return float(stdtrit(max(domains - 1, 1), share))


@dataclass(frozen=True)
class _Gains:
    """Accuracies by (domain, n, frequencies) of each chain and strength, and what they show."""

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
            key = (trial.chain, trial.strength, trial.domain, trial.n, trial.frequencies)
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
            tuple(chain for chain in CHAINS if any(t.chain == chain for t in trials)),
            ahead,
            {key: fmean(values) for key, values in cells.items()},
            {key: fmean(values) for key, values in sure.items()},
            {key: _hidden(cells[key], values) for key, values in sure.items()},
        )

    def strengths(self, chain: str) -> list[Strength | None]:
        return list(dict.fromkeys(s for c, s, *_ in self.accuracy if c == chain))

    def gain(
        self, chain: str, strength: Strength | None, domain: str, n: int, kind: str
    ) -> float | None:
        mine = self.accuracy.get((chain, strength, domain, n, kind))
        plain = self.accuracy.get(("none", None, domain, n, kind))
        return None if mine is None or plain is None else mine - plain

    def best_strength(self, chain: str, without: str | None = None) -> Strength:
        """The strength that gained most over all domains (but one); ties go to the stronger."""

        def worth(strength: Strength | None) -> tuple[float, float]:
            found = [
                gain
                for domain in self.domains
                for n in self.sizes
                for kind in self.kinds
                if domain != without
                and (gain := self.gain(chain, strength, domain, n, kind)) is not None
            ]
            smoothing = 0.0 if strength is None or strength == LEARNED else strength
            return fmean(found) if found else -math.inf, smoothing

        best = max(self.strengths(chain), key=worth)
        return best or 0.0

    def others_choice(self, chain: str, domain: str) -> Strength | None:
        """The strength that the other domains choose: a promise is not its own judge."""
        strengths = self.strengths(chain)
        if len(strengths) == 1:
            return strengths[0]
        return self.best_strength(chain, domain if len(self.domains) > 1 else None)

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
    """Where the next one lies, in nine cases of ten, if it is drawn as these were."""
    if len(accuracies) < 2:
        return 0.0, 1.0
    spread = max(stdev(accuracies), LEAST_SPREAD)
    middle, reach = fmean(accuracies), _reach(len(accuracies), spread)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)


def _reach(drawn: int, spread: float, coming: int = 1) -> float:
    """How far the next of a normal distribution, or the mean of so many, lies from the mean of
    those that were `drawn`, in nine cases of ten at most."""
    return _quantile(drawn, 0.95) * spread * math.sqrt(1 / coming + 1 / drawn)


def verdict(found: Rehearsal) -> list[str]:
    """What a user should know, in sentences."""
    most = max(found.chosen)
    chain = found.chosen[most]
    said = [_paid(found, chain, most)]
    promise = found.promise(chain, most)
    if promise.domains < ENOUGH_DOMAINS_TO_TELL:
        said.append(f"Accuracy where a site was held out: {percent(promise.accuracy)} %.")
    elif promise.high - promise.low > TELLS_NOTHING:
        said.append(
            f"Accuracy where a site was held out: {percent(promise.accuracy)} % on average; the "
            f"sites are too few, or too unlike each other, to say what to expect at a new one."
        )
    else:
        said.append(
            f"Expected accuracy at a new site: {percent(promise.low)} to {percent(promise.high)} %."
        )
    if not found.exact:
        said.append(
            "The network had seen the rehearsed sites in training, so that a new one may differ "
            "more from them than these numbers say."
        )
    return said


def unrehearsed(domains: int) -> str:
    """What a user should know of a model that was to be rehearsed, and could not be."""
    if domains < 2:
        return (
            "With one site nothing can be rehearsed, and what to expect at another is not known; "
            "the plain model is what `predict` uses."
        )
    return (
        "Nothing was rehearsed: the sites have too few images to play a new site with; the plain "
        "model is what `predict` uses."
    )


def _paid(found: Rehearsal, chain: str, most: int) -> str:
    sites = count(found.domains, "site")
    if found.domains < ENOUGH_DOMAINS_TO_TELL:
        return (
            f"Only {sites} could play a new site, and it takes {ENOUGH_DOMAINS_TO_TELL} to tell "
            f"whether adaptation pays; the plain model is what `predict` uses."
        )
    if set(found.chosen.values()) == {"none"}:
        tried = [found.promise(chain, most) for chain in sorted(found.chains - {"none"})]
        return (
            f"With {sites} adaptation did not pay{_at_best(tried)}; the plain model is what "
            f"`predict` uses."
        )
    uses = ", ".join(f"{used} from {count(n, 'image')} on" for n, used in _changes(found.chosen))
    if chain == "none":
        return f"Rehearsed on {sites}: `adapt` uses {uses}."
    anew = ""
    if found.has("drawn anew"):
        shifted = found.promise(chain, most, "drawn anew")
        anew = f" ({_gain(shifted)} where label frequencies are drawn anew)"
    return (
        f"Rehearsed on {sites}, {chain} gained {_gain(found.promise(chain, most))} points with "
        f"{most} unlabelled images{anew}; `adapt` uses {uses}."
    )


def _at_best(tried: Sequence[Promise]) -> str:
    """What the best of them brought, or cost."""
    best = max(tried, key=lambda promise: promise.gain, default=None)
    if best is None:
        return ""
    if round(100 * best.gain, 1) >= 0:
        return f": {_gain(best)} points at best ({best.chain})"
    who = best.chain if len(tried) == 1 else f"even the best way, {best.chain},"
    return f": {who} lost {percent(-best.gain)}{_plus_minus(best)} points"


def _changes(chosen: Mapping[int, str]) -> Iterable[tuple[int, str]]:
    """Each number of images from which on another chain is used, ascending."""
    before = "none"
    for n, chain in chosen.items():
        if chain != before:
            yield n, chain
        before = chain


def _gain(promise: Promise) -> str:
    return signed(promise.gain) + _plus_minus(promise)


def _plus_minus(promise: Promise) -> str:
    return "" if promise.error is None else f" ± {percent(promise.error)}"


def rows(found: Rehearsal) -> Iterable[tuple[str, ...]]:
    """The table of a rehearsal: what, images, label frequencies, accuracy, gain."""
    for promise in found.promises:
        chosen = " *" if found.chosen[promise.n] == promise.chain else ""
        yield (
            promise.chain + chosen,
            str(promise.n),
            promise.frequencies,
            percent(promise.accuracy),
            _gain(promise),
        )
