"""What the evidence comes to, in words: as before, adapt again, or label some images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from acclimate.adapt.choice import chain_for, choose_method, explained_here, object_to
from acclimate.adapt.methods.chain import embed
from acclimate.adapt.suggest import spread
from acclimate.core.text import count, percent
from acclimate.learn.images import Images
from acclimate.records.doubt import Forecast
from acclimate.watch.baseline import Baseline, Window

WatchOutcome = Literal["as before", "adapt again", "label"]
OUTCOMES: Mapping[WatchOutcome, str] = {
    "as before": "as before",
    "adapt again": "adapt again",
    "label": "promises no longer reach this site; label these images",
}
ABOUT = {  # what an alarm of each look means
    "appearance": "images lie elsewhere than those that the site was adapted to",
    "frequencies": "classes are predicted in other shares",
    "accuracy": "the model is more sure, or less, than it was",
    "quality": "more images than usual are unreadable, dark or empty",
}
TO_LABEL = 20  # images


@dataclass(frozen=True)
class LookResult:
    """The evidence of one look."""

    name: str
    evidence: float
    threshold: float
    since: int | None  # how many images there were at its first alarm; None: it raised none


@dataclass(frozen=True)
class WatchReport:
    """What a window says, with all those before it."""

    outcome: WatchOutcome
    looks: tuple[LookResult, ...]
    images: int  # of the window, new ones
    repeats: int  # that were seen before, or that the site was adapted to
    poor: int  # unreadable, dark or empty
    reasons: tuple[str, ...] = ()  # in sentences
    expected: Forecast | None = None  # accuracy on the window
    promised: Forecast | None = None  # when the site was adapted to
    label_mix: Mapping[str, float] | None = None  # class frequencies of the window
    site_mix: Mapping[str, float] | None = None  # and of the site as it was adapted to
    gain: tuple[float, float | None] | None = None  # rehearsed, of adapting, and its standard error
    to_label: tuple[int, ...] = ()  # places of images among those that were given

    @property
    def alarm(self) -> bool:
        return self.outcome != "as before"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "alarm": self.alarm, "words": OUTCOMES[self.outcome]}


def report_on(
    baseline: Baseline, looks: Sequence[LookResult], window: Window, new: int
) -> WatchReport:
    """What a window, of which so many images are `new`, and the evidence of all `looks` come to."""
    report = WatchReport(
        "as before",
        tuple(looks),
        images=new,
        repeats=window.total - new,
        poor=int(window.poor.sum()) + len(window.unreadable),
        promised=baseline.promised,
        site_mix=baseline.mix(baseline.sample),
    )
    images = baseline.images(window)
    if len(window):
        report = replace(report, expected=baseline.expected(images), label_mix=baseline.mix(images))
    raised = [look.name for look in looks if look.since is not None]
    if not raised:
        return report
    reasons = [f"{name}: {ABOUT[name]}" for name in raised]
    share = explained_here(baseline.site.trained, images) if len(window) else None
    if share is not None:
        reasons.append(f"label frequencies explain {share:.0%} of how predictions change here")
    beyond = list(_beyond(baseline, report, raised, images))
    if beyond:
        chosen = _to_label(baseline, window)
        return replace(report, outcome="label", reasons=(*reasons, *beyond), to_label=chosen)
    trained = baseline.site.trained
    choice, rehearsal, gain = choose_method(trained, len(window)), trained.rehearsal, None
    if rehearsal is not None and choice.method != "none" and choice.method in rehearsal.chains:
        promise = rehearsal.promise(choice.method, len(window))
        gain = promise.gain, promise.error
    return replace(report, outcome="adapt again", reasons=(*reasons, *choice.why), gain=gain)


@torch.no_grad()
def _to_label(baseline: Baseline, window: Window) -> tuple[int, ...]:
    """Images to label, as different from each other as those that show anything are."""
    good = np.flatnonzero(~window.poor)
    if not len(good):
        return ()
    hidden = baseline.images(window).outputs(baseline.plain).hidden
    rows = good[spread(hidden[torch.from_numpy(good)], TO_LABEL)]
    return tuple(int(row if window.places is None else window.places[row]) for row in rows)


def _beyond(
    baseline: Baseline, report: WatchReport, raised: Sequence[str], images: Images
) -> Iterator[str]:
    """Why promises do not reach the site any longer, in sentences."""
    if "quality" in raised:
        yield f"{count(report.poor, 'image')} of this window are unreadable, dark or empty"
    expected, promised = report.expected, report.promised
    if expected is not None and promised is not None and expected.accuracy < promised.floor:
        yield (
            f"expected accuracy is {percent(expected.accuracy)} %, below the promised floor of "
            f"{percent(promised.floor)} %"
        )
    if len(images):
        yield from _objections(baseline, images)


def _objections(baseline: Baseline, images: Images) -> Iterator[str]:
    """What speaks against adapting to these images, as the guard of `adapt` has it."""
    trained, n = baseline.site.trained, len(images)
    model = trained.start(embedding=True)
    names = [choose_method(trained, n).method]
    if model.below_phi is not None and not names[0].startswith("embedding"):
        names.append("embedding")  # how far off the site lies is known all the same
    for name in names:
        chain = chain_for(trained.rehearsal, name, n, trained.config.adapt)
        if chain.embedding and model.below_phi is None:
            continue  # Φ takes images, and features are what there is
        state = embed(trained.start(embedding=chain.embedding), images, chain)
        objection = object_to(trained, chain, state, images)
        if objection is not None:
            yield objection[1]
