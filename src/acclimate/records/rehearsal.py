"""The `Rehearsal` record: what `train` measured when it held out its domains in turn.

It says which chain of methods `adapt` uses for how many images, with which settings, what that
promises at an unseen domain, and the words for all of it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from acclimate.config import from_dict
from acclimate.core.errors import AcclimateError, RunError
from acclimate.core.plots import axes_or_new
from acclimate.core.text import count, percent, signed
from acclimate.records.doubt import TARGETS, Answer, Forecast, answer_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from acclimate.core.grid import Grid

T = TypeVar("T")
NETWORK = "network"  # the plain head that a run has trained,
PAIR = "pair"  # and its mean with the second path at the training domains' centre
CLASS_VECTORS = "class-vector head"  # from a file, without training
STARTS = ("none", "embedding")  # of chains: the plain model, or F(·, μ) beside it
LEAST_ERROR = 0.001  # of a mean gain: a few domains that agree do so by chance
ENOUGH_DOMAINS_TO_TELL = 3  # a gain from chance
Frequencies = Literal["as they are", "drawn anew"]
Settings = Mapping[str, Any]  # of methods, as `adapt` takes them: {"prior.strength": 30.0}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a chain gained over the plain model at the held-out domains, with `n` images each."""

    chain: str
    n: int
    frequencies: Frequencies
    gain: float  # in accuracy; mean over domains
    error: float | None  # its standard error, never less than chance leaves; None for one domain
    accuracy: float
    domains: int
    settings: Settings = field(default_factory=dict)  # of its methods, that all domains choose
    forecasts: tuple[Forecast, ...] = ()  # of the accuracy at a new domain; see `doubt.forecasts`
    answers: tuple[Answer, ...] = ()  # where only sure images are answered

    # Of a chosen chain: what it gains at the training domains' centre, without an image of the
    # domain, and with another domain's images instead.
    neutral: float | None = None
    other: float | None = None

    @property
    def nothing(self) -> bool:
        """Whether the gain is no difference: within its standard error."""
        return self.error is not None and abs(self.gain) <= self.error

    def expected(self, scores: Mapping[str, float] | None = None) -> Forecast | None:
        """The forecast for a new domain, by its own scores where they are given and tell anything;
        None where too few domains were held out."""
        if self.domains < ENOUGH_DOMAINS_TO_TELL or not self.forecasts:
            return None
        anywhere, *narrower = self.forecasts
        own = (one.at(scores[one.by]) for one in narrower if scores and one.by in scores)
        return next(own, anywhere)

    def expected_gain(self, domains: int = 1) -> tuple[float, float] | None:
        """The 90 % interval of the gain at a new domain, or of its mean over so many; None where
        one domain alone was held out."""
        if self.error is None:
            return None
        half = half_width(self.domains, self.error * math.sqrt(self.domains), domains)
        return self.gain - half, self.gain + half


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The outcome. `chosen` has the chain for each n that was rehearsed, ascending."""

    promises: tuple[Promise, ...]
    chosen: Mapping[int, str]
    temperatures: Mapping[str, float]  # of "none" and "embedding": `start` divides logits by it
    domains: int
    exact: bool  # the backbone had not seen the held-out domains
    # By n: of how predictions change at a held-out domain, what label shift explains at least.
    explained: Mapping[int, float] = field(default_factory=dict)
    # What so many labels gained over the chain chosen for a site's images without them, and how
    # firmly `labels` is to hold to it, by their number.
    labels: tuple[Promise, ...] = ()
    label_strengths: Mapping[int, float] = field(default_factory=dict)
    plain_scale: float = 1.0  # puts the plain logits on the scale of the heads that stood in
    head: str = NETWORK  # the plain head in use,
    heads: tuple[Promise, ...] = ()  # and all that were tried, beside the network ("none")
    another_site: Promise | None = None  # what the last of the sites added to a regression
    # Chains that change the backbone beside what `adapt` does ("none"), with as many images.
    backbone: tuple[Promise, ...] = ()

    @property
    def chains(self) -> tuple[str, ...]:
        """Those that were rehearsed, the simpler first."""
        return tuple(sorted(dict.fromkeys(p.chain for p in self.promises), key=simplicity))

    def chain_for(self, n: int) -> str:
        """What to do with `n` images: as rehearsed with the most that were not more."""
        return _rehearsed(self.chosen, n) or "none"

    def settings_for(self, chain: str, n: int | None = None) -> dict[str, Any]:
        """The settings of the chain's methods, as `adapt` takes them: those that each had after the
        same start, as rehearsed with the most images that were not more than `n`. A strength grows
        where these are fewer than in any rehearsal."""
        steps, settings = chain.split("+"), dict[str, Any]()
        images, rehearsed = max(self.chosen) if n is None else n, self.chains
        for step in steps:
            name = f"embedding+{step}" if "embedding" in steps else step
            settings |= self.promise(name, images).settings if name in rehearsed else {}
        missing = max(min(self.chosen) / max(images, 1), 1.0)
        return {
            key: value * missing if key.endswith(".strength") else value
            for key, value in settings.items()
        }

    def label_strength(self, labels: int) -> float | None:
        """Interpolated in the logarithms of both; None where no labels were rehearsed."""
        known = self.label_strengths
        if not known:
            return None
        found = np.interp(math.log(max(labels, 1)), np.log([*known]), np.log([*known.values()]))
        return float(np.exp(found))

    def with_labels(self, labels: int) -> Promise | None:
        """What labels gained, as rehearsed with the most that were not more."""
        return max(
            (p for p in self.labels if p.n <= labels), key=lambda promise: promise.n, default=None
        )

    def least_explained(self, n: int) -> float | None:
        """As rehearsed with the most images that were not more than `n`."""
        return _rehearsed(self.explained, n)

    def promise(self, chain: str, n: int, frequencies: Frequencies = "as they are") -> Promise:
        """What it gained, as rehearsed with the most images that were not more than `n`."""
        same = [p for p in self.promises if (p.chain, p.frequencies) == (chain, frequencies)]
        return max(
            (p for p in same if p.n <= n), key=lambda p: p.n, default=min(same, key=lambda p: p.n)
        )

    @property
    def grid(self) -> "Grid":
        """A row per promise."""
        from acclimate.records.gains import gains_grid

        return gains_grid(self)

    def _repr_html_(self) -> str:
        kept = tuple(row for row in self.grid.rows if row[2].text == "as they are")
        return replace(self.grid, rows=kept).to_html(verdict(self)[0])

    def plot(self, ax: "Axes | None" = None, frequencies: Frequencies = "as they are") -> "Axes":
        """Gains over the plain model by the number of images, on `ax` or new axes."""
        from acclimate.records.gains import draw_gains

        axes = axes_or_new(ax)
        draw_gains(self, axes, frequencies)
        axes.set_xlabel("unlabelled images of the new site")
        axes.legend()
        return axes

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "chosen": [{"n": n, "chain": chain} for n, chain in self.chosen.items()],
            "explained": [{"n": n, "share": share} for n, share in self.explained.items()],
            "label_strengths": [{"n": n, "s": s} for n, s in self.label_strengths.items()],
            "verdict": verdict(self),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], *, where: str) -> "Rehearsal":
        try:
            values = {key: value for key, value in stored.items() if key != "verdict"}
            values["chosen"] = {int(one["n"]): one["chain"] for one in stored["chosen"]}
            values["explained"] = {int(one["n"]): one["share"] for one in stored["explained"]}
            strengths = {int(one["n"]): float(one["s"]) for one in stored["label_strengths"]}
            values["label_strengths"] = strengths
            return from_dict(cls, values, where=where)
        except (AcclimateError, KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"{where} is damaged; delete it and repeat the training") from None


def _rehearsed(by_size: Mapping[int, T], n: int) -> T | None:
    """What belongs to the largest size that is not more than `n`."""
    return by_size.get(max((size for size in by_size if size <= n), default=0))


def quantile(domains: int, share: float) -> float:
    """Student's t below which `share` lies, for a mean over so many domains."""
    from scipy.special import stdtrit

    return float(stdtrit(max(domains - 1, 1), share))


def half_width(drawn: int, spread: float, coming: int = 1) -> float:
    """Of the 90 % interval for the next of a normal distribution, or for the mean of so many that
    are `coming`, around the mean of those that were `drawn`."""
    return quantile(drawn, 0.95) * spread * math.sqrt(1 / coming + 1 / drawn)


def simplicity(chain: str) -> tuple[bool, int]:
    """A key that sorts the simpler chains first: the plain model before F(·, μ)."""
    parts = {*chain.split("+")} - {"none"}
    return "embedding" in parts, len(parts)


def verdict(rehearsal: Rehearsal) -> list[str]:
    """What a user should know, in sentences."""
    # What sites too few to tell played with is no size to speak of.
    least = min(rehearsal.domains, ENOUGH_DOMAINS_TO_TELL)
    most = max(p.n for p in rehearsal.promises if p.chain == "none" and p.domains >= least)
    chain = rehearsal.chosen[most]
    said = [_paid(rehearsal, chain, most)]
    promise = rehearsal.promise(chain, most)
    expected = promise.expected()
    if expected is None:
        said.append(f"Accuracy where a site was held out: {percent(promise.accuracy)} %.")
    elif expected.vague:
        said.append(
            f"Accuracy where a site was held out: {percent(promise.accuracy)} % on average; the "
            f"sites are too few, or too unlike each other, to say what to expect at a new one."
        )
    else:
        said.append(f"Expected accuracy at a new site: {expected}.")
    if promise.answers:
        said.append(_about_answers(promise))
    said += [*_about_heads(rehearsal), *_about_backbone(rehearsal), *_next_steps(rehearsal, most)]
    if not rehearsal.exact:
        said.append(
            "The network had seen the rehearsed sites in training, so that a new one may differ "
            "more from them than these numbers say."
        )
    return said


def _about_heads(rehearsal: Rehearsal) -> Iterable[str]:
    """The plain model beside logistic regression on the same features, in a sentence."""
    if len(rehearsal.heads) > 1:
        scores = {NETWORK if p.chain == "none" else p.chain: p for p in rehearsal.heads}
        others = [
            f"{name} {percent(p.accuracy)} %"
            for name, p in scores.items()
            if name != rehearsal.head
        ]
        own = percent(scores[rehearsal.head].accuracy)
        yield (
            f"The plain model is a {rehearsal.head}: {own} % where a site was held out; on the "
            f"same features {', '.join(others)}."
        )


def _about_backbone(rehearsal: Rehearsal) -> Iterable[str]:
    """The best chain that changes the backbone beside the one in use, in a sentence."""
    beside = [promise for promise in rehearsal.backbone if promise.chain != "none"]
    if beside:
        best = max(beside, key=lambda promise: promise.gain)
        yield (
            f"{best.chain}, which changes the backbone, beside what `adapt` does with {best.n} "
            f"images: {difference(best)}; `adapt` uses it where it is named (--method)."
        )


def _next_steps(rehearsal: Rehearsal, most: int) -> Iterable[str]:
    """What would help at a new site, the largest gain first, in a sentence."""
    steps: list[tuple[Promise, str]] = []
    for promise in rehearsal.labels:
        how = "" if steps else "; `acclimate suggest` names the images"
        steps.append((promise, f"{count(promise.n, 'label')} of it ({gain_text(promise)}{how})"))
    if rehearsal.another_site is not None:
        gain = gain_text(rehearsal.another_site)
        steps.append((rehearsal.another_site, f"one more labelled site to train on ({gain})"))
    chain = rehearsal.chosen[most]
    if steps and chain != "none":
        promise = rehearsal.promise(chain, most)
        steps.append((promise, f"{most} unlabelled images ({gain_text(promise)})"))
    sure = [(p, said) for p, said in steps if p.gain > (p.error or math.inf)]
    if sure:
        ranked = sorted(sure, key=lambda step: -step[0].gain)
        yield f"What helps at a new site, in points: {', '.join(said for _, said in ranked)}."
    elif steps:
        yield "Neither labels of a new site nor one more site to train on gained beyond noise."


def _about_answers(promise: Promise) -> str:
    """What `predict --at-least` can promise, in a sentence."""
    found = {target: answer_for(promise.answers, target) for target in TARGETS}
    able = [
        f"{percent(target)} % right ({percent(answer.share)} % of images answered)"
        for target, answer in found.items()
        if answer is not None
    ]
    least = next((target for target, answer in found.items() if answer is None), None)
    if not able:
        return f"`predict --at-least` cannot promise {percent(TARGETS[0])} % right answers."
    end = "" if least is None else f", and not {percent(least)} %"
    return f"With sure images alone, `predict --at-least` can promise {', '.join(able)}{end}."


def unrehearsed(domains: int) -> str:
    """What a user should know of a model that was to be rehearsed, and could not be."""
    if domains < 2:
        return (
            "With one site nothing can be rehearsed: the table says how new images of this site "
            "fare, and what to expect at another is not known; the plain model is what `predict` "
            "uses."
        )
    return (
        "Nothing was rehearsed: the sites have too few images of their own (a picture that others "
        "have does not count) to hold one out; the plain model is what `predict` uses."
    )


def _paid(rehearsal: Rehearsal, chain: str, most: int) -> str:
    sites = count(rehearsal.domains, "site")
    if rehearsal.domains < ENOUGH_DOMAINS_TO_TELL:
        return (
            f"Only {sites} could play a new site, and it takes {ENOUGH_DOMAINS_TO_TELL} to tell "
            f"whether adaptation pays; the plain model is what `predict` uses."
        )
    if set(rehearsal.chosen.values()) == {"none"}:
        tried = [rehearsal.promise(c, most) for c in sorted(rehearsal.chains) if c != "none"]
        best = max(tried, key=lambda promise: promise.gain, default=None)
        came = "made no difference" if best is not None and best.nothing else "did not pay"
        at_best = "" if best is None else f": {gain_text(best)} points at best ({best.chain})"
        return f"With {sites} adaptation {came}{at_best}; the plain model is what `predict` uses."
    uses = ", ".join(
        f"{used} from {count(n, 'image')} on" for n, used in _changes(rehearsal.chosen)
    )
    if chain == "none":
        return f"Rehearsed on {sites}: `adapt` uses {uses}."
    promise, anew = rehearsal.promise(chain, most), ""
    if any(promise.frequencies == "drawn anew" for promise in rehearsal.promises):
        shifted = difference(rehearsal.promise(chain, most, "drawn anew"))
        anew = f" ({shifted} where label frequencies are drawn anew)"
    came = (
        f"{chain} {'made' if promise.nothing else 'gained'} {difference(promise)}{_parts(promise)}"
    )
    return f"Rehearsed on {sites}, {came} with {most} unlabelled images{anew}; `adapt` uses {uses}."


def _parts(promise: Promise) -> str:
    """Which part of a gain is the site's own images', in brackets."""
    if promise.neutral is None or promise.other is None:
        return ""
    own = signed(promise.gain - promise.neutral)
    return f" ({own} by the site's own images, {signed(promise.other)} with another site's)"


def _changes(chosen: Mapping[int, str]) -> Iterable[tuple[int, str]]:
    """Each number of images from which on another chain is used, ascending."""
    before = "none"
    for n, chain in chosen.items():
        if chain != before:
            yield n, chain
        before = chain


def difference(promise: Promise) -> str:
    """`+1.2 ± 0.3 points`, or `no difference (+0.1 ± 0.6 points)`."""
    points = f"{gain_text(promise)} points"
    return f"no difference ({points})" if promise.nothing else points


def gain_text(promise: Promise) -> str:
    """`+1.2 ± 0.3`, in points."""
    error = "" if promise.error is None else f" ± {percent(promise.error)}"
    return signed(promise.gain) + error
