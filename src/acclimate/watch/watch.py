"""The evidence that a site has changed, window by window."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.core.errors import StateMismatch
from acclimate.core.randomness import stream
from acclimate.watch.baseline import NO_HASHES, SCORES, Baseline, Window
from acclimate.watch.evidence import PATIENCE, Ranked, Rare
from acclimate.watch.outcome import LookResult, WatchReport, report_on

LOOKS = (*SCORES, "quality")
THRESHOLD = float(len(LOOKS) * PATIENCE)  # of each look's evidence
USUAL_POOR = 0.05  # share of images that may be unreadable, dark or empty
MOST_KNOWN = 20_000  # hashes of images that a watch remembers: 8 bytes each
MOST_HISTORY = 2_000  # windows
KIND = "watch of a site"
PARTS = ("counts", "seen", "evidence")


@dataclass(frozen=True, eq=False)
class Watch:
    """What is kept of all windows so far: a pure function of the baseline and of them, in which an
    image that was seen before changes nothing."""

    baseline: str  # digest of the site as it was adapted to
    ranked: Mapping[str, Ranked]  # by score
    quality: Rare
    alarms: Mapping[str, int]  # by look: how many images there were at its first alarm
    images: int = 0
    known: Tensor = NO_HASHES  # [k] int64: hashes of the last images, in the order of their coming
    history: tuple[Mapping[str, float], ...] = ()  # after each window: images, evidence by look

    @classmethod
    def start(cls, baseline: Baseline, usual_poor: float = USUAL_POOR) -> "Watch":
        """`usual_poor` is the share of the site's images that may be unreadable, dark or empty."""
        ranked = {
            name: Ranked.start(counts, baseline.bins(name))
            for name, counts in baseline.counts.items()
        }
        return cls(baseline.digest, ranked, Rare.start(usual_poor), {})

    def look(self, baseline: Baseline, window: Window) -> tuple["Watch", WatchReport]:
        """With a further window, and what it says: of images that were seen before the same as
        then."""
        if self.baseline != baseline.digest:
            raise StateMismatch(
                "this watch is of another state of the site, or of another model; begin a new one "
                "after each adaptation"
            )
        assert baseline.site.state is not None
        new = window.without(torch.cat([self.known, baseline.site.state.seen]))
        after = self._after(baseline, new) if new.total else self
        return after, report_on(baseline, after.looks, window, new.total)

    def _after(self, baseline: Baseline, new: Window) -> "Watch":
        first = torch.cat([new.hashes, new.unreadable])[0]
        draw = stream(0, "watch", self.baseline, self.images, int(first))
        levels, images = baseline.levels(new), self.images + new.total
        poor = draw.permutation(np.concatenate([new.poor, np.ones(len(new.unreadable), bool)]))
        quality, path = self.quality.after(poor)
        ranked, paths = {}, {"quality": path}
        for name, before in self.ranked.items():
            ranked[name], paths[name] = before.after(levels[name], draw.random(len(new)))
        raised = [name for name in LOOKS if (paths[name] >= THRESHOLD).any()]
        after = replace(
            self,
            ranked=ranked,
            quality=quality,
            alarms={**dict.fromkeys(raised, images), **self.alarms},
            images=images,
            known=torch.cat([self.known, new.hashes, new.unreadable])[-MOST_KNOWN:],
        )
        entry = {"images": float(images), **{look.name: look.evidence for look in after.looks}}
        return replace(after, history=(*self.history, entry)[-MOST_HISTORY:])

    @property
    def looks(self) -> tuple[LookResult, ...]:
        """The evidence so far."""
        each: dict[str, Ranked | Rare] = {**self.ranked, "quality": self.quality}
        return tuple(
            LookResult(name, float(each[name].value), THRESHOLD, self.alarms.get(name))
            for name in LOOKS
        )

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON holds."""
        return {
            "kind": KIND,
            "baseline": self.baseline,
            "ranked": {
                name: {part: getattr(one, part).tolist() for part in PARTS}
                for name, one in self.ranked.items()
            },
            "quality": {"usual": self.quality.usual, "evidence": self.quality.evidence.tolist()},
            "alarms": dict(self.alarms),
            "images": self.images,
            "known": base64.b64encode(self.known.numpy().astype("<i8").tobytes()).decode(),
            "history": [dict(entry) for entry in self.history],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Watch":
        """From what `to_dict` gave."""
        try:
            if stored["kind"] != KIND:
                raise ValueError(KIND)
            ranked, quality = stored["ranked"], stored["quality"]
            known = np.frombuffer(base64.b64decode(stored["known"], validate=True), "<i8").astype(
                np.int64
            )
            return cls(
                str(stored["baseline"]),
                {
                    name: Ranked(*(np.array(ranked[name][part], float) for part in PARTS))
                    for name in SCORES
                },
                Rare(float(quality["usual"]), np.array(quality["evidence"], float)),
                {str(name): int(images) for name, images in stored["alarms"].items()},
                int(stored["images"]),
                torch.from_numpy(known),
                tuple({name: float(entry[name]) for name in entry} for entry in stored["history"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StateMismatch(
                "this is no watch of a site, or it is damaged; begin a new one"
            ) from None
