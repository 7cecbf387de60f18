"""The evidence that a site has changed, window by window, and what it comes to in words."""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.choice import chain_for, choose_method, object_to
from acclimate.adapt.methods.chain import embed
from acclimate.adapt.methods.prior import em_prior, posteriors
from acclimate.adapt.suggest import spread
from acclimate.core.errors import StateMismatch
from acclimate.core.randomness import stream
from acclimate.core.text import count, percent
from acclimate.records.doubt import Forecast
from acclimate.watch.baseline import Baseline, Window
from acclimate.watch.evidence import PATIENCE, Ranked, Rare

Outcome = Literal["as before", "adapt again", "label"]
OUTCOMES: Mapping[Outcome, str] = {
    "as before": "as before",
    "adapt again": "adapt again",
    "label": "promises no longer reach this site; label these images",
}
RANKED = ("appearance", "frequencies", "accuracy")
LOOKS = (*RANKED, "quality")
USUAL_POOR = 0.05  # share of images that may be unreadable, dark or empty
TO_LABEL = 20
MOST_KNOWN = 20_000  # hashes of images that a watch remembers


@dataclass(frozen=True)
class Look:
    """The evidence of one look after a window."""

    name: str
    evidence: float
    threshold: float
    alarm: bool  # now, or before


@dataclass(frozen=True)
class WatchReport:
    """What a window says."""

    outcome: Outcome
    looks: tuple[Look, ...]
    images: int  # of the window, those that are new
    repeats: int  # that were seen before, or that the site was adapted to
    poor: int  # unreadable, dark or empty
    reasons: tuple[str, ...]
    expected: Forecast | None = None  # accuracy on the window
    promised: Forecast | None = None  # when the site was adapted to
    label_mix: Mapping[str, float] | None = None  # of the window
    gain: tuple[float, float | None] | None = None  # of adapting again, with its standard error
    to_label: tuple[int, ...] = ()  # places of images among those that were given

    @property
    def alarm(self) -> bool:
        return self.outcome != "as before"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "alarm": self.alarm, "words": OUTCOMES[self.outcome]}


@dataclass(frozen=True, eq=False)
class Watch:
    """All that is kept of the windows so far. It is a pure function of the baseline and of them,
    and windows that were seen change nothing."""

    baseline: str  # digest of the site as it was adapted to
    ranked: Mapping[str, Ranked]
    quality: Rare
    alarms: Mapping[str, int]  # how many images there were when a look raised its alarm
    images: int
    known: Tensor  # [k] int64: hashes of images, in the order of their coming
    history: tuple[Mapping[str, float], ...] = ()  # evidence by look after each window

    @classmethod
    def start(cls, baseline: Baseline, usual_poor: float = USUAL_POOR) -> "Watch":
        """`usual_poor` is the share of the site's images that may be unreadable, dark or empty."""
        ranked = {name: Ranked.start(baseline.counts[name]) for name in RANKED}
        known = torch.zeros(0, dtype=torch.int64)
        return cls(baseline.digest, ranked, Rare.start(usual_poor), {}, 0, known)

    def look(self, baseline: Baseline, window: Window) -> tuple["Watch", WatchReport]:
        """With a further window, and what it says."""
        if self.baseline != baseline.digest:
            raise StateMismatch(
                "the log is about another state of the site, or another model; start another log "
                "after every adaptation"
            )
        state = baseline.site.state
        assert state is not None
        new = window.without(torch.cat([self.known, state.seen]))
        repeats = len(window) - len(new) + len(window.unreadable) - len(new.unreadable)
        after = self._after(baseline, new) if len(new) or len(new.unreadable) else self
        return after, _report(baseline, after, new, repeats)

    def _after(self, baseline: Baseline, new: Window) -> "Watch":
        draw = stream(0, "watch", baseline.digest, self.images, *new.hashes[:1].tolist())
        total = len(new) + len(new.unreadable)
        levels, ranked, alarms = baseline.levels(new), dict(self.ranked), dict(self.alarms)
        for name in RANKED:
            ranked[name], highest = ranked[name].after(levels[name], draw.random(len(new)))
            if highest >= THRESHOLD:
                alarms.setdefault(name, self.images + total)
        poor = np.concatenate([new.poor, np.ones(len(new.unreadable), bool)])
        quality, highest = self.quality.after(draw.permutation(poor))
        if highest >= THRESHOLD:
            alarms.setdefault("quality", self.images + total)
        known = torch.cat([self.known, new.hashes, new.unreadable])[-MOST_KNOWN:]
        after = replace(
            self,
            ranked=ranked,
            quality=quality,
            alarms=alarms,
            images=self.images + total,
            known=known,
        )
        entry = {"images": float(after.images), **after.evidence}
        return replace(after, history=(*self.history, entry))

    @property
    def evidence(self) -> dict[str, float]:
        """By look."""
        own = {name: float(ranked.value) for name, ranked in self.ranked.items()}
        return {**own, "quality": float(self.quality.value)}

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "baseline": self.baseline,
            "ranked": {
                name: {
                    "counts": one.counts.tolist(),
                    "seen": one.seen.tolist(),
                    "evidence": one.evidence.tolist(),
                }
                for name, one in self.ranked.items()
            },
            "quality": {"usual": self.quality.usual, "evidence": self.quality.evidence.tolist()},
            "alarms": dict(self.alarms),
            "images": self.images,
            "known": base64.b64encode(self.known.numpy().astype("<i8").tobytes()).decode(),
            "history": [dict(one) for one in self.history],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Watch":
        """From what `to_dict` gave."""
        try:
            if stored["kind"] != KIND:
                raise ValueError
            ranked = {
                name: Ranked(*(np.array(stored["ranked"][name][part], float) for part in PARTS))
                for name in RANKED
            }
            quality = stored["quality"]
            known = np.frombuffer(base64.b64decode(stored["known"]), "<i8").astype(np.int64)
            return cls(
                str(stored["baseline"]),
                ranked,
                Rare(float(quality["usual"]), np.array(quality["evidence"], float)),
                {str(name): int(images) for name, images in stored["alarms"].items()},
                int(stored["images"]),
                torch.from_numpy(known),
                tuple({k: float(v) for k, v in one.items()} for one in stored["history"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StateMismatch(
                "the log of a watch is damaged, or is none; start another one"
            ) from None


KIND = "watch of a site"
PARTS = ("counts", "seen", "evidence")
THRESHOLD = float(len(LOOKS) * PATIENCE)


def _report(baseline: Baseline, watch: Watch, new: Window, repeats: int) -> WatchReport:
    """What a window says, with all those before it."""
    site, evidence = baseline.site, watch.evidence
    looks = tuple(Look(name, evidence[name], THRESHOLD, name in watch.alarms) for name in evidence)
    report = WatchReport(
        "as before",
        looks,
        images=len(new),
        repeats=repeats,
        poor=int(new.poor.sum()) + len(new.unreadable),
        reasons=tuple(f"{name} has changed: {ABOUT[name]}" for name in watch.alarms),
        promised=baseline.promised,
    )
    if len(new):
        report = replace(
            report, expected=baseline.expected(new), label_mix=_label_mix(baseline, new)
        )
    if not watch.alarms:
        return report
    images = baseline.images(new) if len(new) else baseline.sample
    choice = choose_method(site.trained, max(len(new), 1))
    rehearsal = site.trained.rehearsal
    reasons, beyond = list(report.reasons), list(_beyond(baseline, watch, report, images))
    if beyond:
        hidden = images.outputs(site.predictor).hidden
        rows = spread(hidden, TO_LABEL) if len(new) else np.zeros(0, int)
        assert new.places is not None
        places = tuple(int(place) for place in new.places[rows])
        return replace(report, outcome="label", reasons=(*reasons, *beyond), to_label=places)
    gain = None
    if rehearsal is not None and choice.method in rehearsal.chains:
        promise = rehearsal.promise(choice.method, max(len(new), 1))
        gain = promise.gain, promise.error
    return replace(report, outcome="adapt again", reasons=(*reasons, *choice.why), gain=gain)


ABOUT = {
    "appearance": "images look unlike those that the site was adapted to",
    "frequencies": "classes are predicted more or less often",
    "accuracy": "the model is more or less sure",
    "quality": "more images than usual are unreadable, dark or empty",
}


def _beyond(baseline: Baseline, watch: Watch, report: WatchReport, images: Any) -> Iterator[str]:
    """Why promises do not reach the site any longer, in sentences."""
    if "quality" in watch.alarms:
        yield f"{count(report.poor, 'image')} of this window are unreadable, dark or empty"
    expected, promised = report.expected, report.promised
    if expected is not None and promised is not None and expected.accuracy < promised.floor:
        yield (
            f"expected accuracy is {percent(expected.accuracy)} %, below the floor that was "
            f"promised, {percent(promised.floor)} %"
        )
    trained = baseline.site.trained
    if not report.images:
        return
    chain = chain_for(
        trained.rehearsal,
        choose_method(trained, len(images)).method,
        len(images),
        trained.config.adapt,
    )
    state = embed(trained.start(embedding=chain.embedding), images, chain)
    objection = object_to(trained, chain, state, images)
    if objection is not None:
        yield objection[1]


def _label_mix(baseline: Baseline, new: Window) -> dict[str, float]:
    """Class frequencies of a window, by EM."""
    trained = baseline.site.trained
    prior = torch.tensor(trained.label_prior, dtype=torch.float64)
    plain = trained.start(embedding=False).at(None)
    mix, _ = em_prior(
        posteriors(plain, baseline.images(new)), prior, strength=30.0, tolerance=1e-4, most=200
    )
    return dict(zip(trained.classes, mix.tolist(), strict=True))
