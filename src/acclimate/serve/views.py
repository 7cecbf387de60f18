"""What the service says of sites, calls and images: plain values that turn into JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from acclimate.adapt.trust import Trust


@dataclass(frozen=True)
class SiteView:
    """A site: what was stored of it, and what its classifier is made of."""

    name: str
    model: str
    moving_to: str | None  # a model for which enough new images have not come yet
    revision: int  # grows with every change
    images: int  # different ones that came
    kept: int  # of them, those that the classifier is made from
    labelled: int
    method: str
    notes: Sequence[str] = ()
    trust: Trust | None = None
    label_prior: Mapping[str, float] | None = None
    history: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        expected = None if self.trust is None else self.trust.expected_accuracy
        return {
            **asdict(self),
            "notes": list(self.notes),
            "history": [dict(entry) for entry in self.history],
            "expected_accuracy": None if expected is None else expected.accuracy,
            "floor": None if expected is None else expected.floor,
        }


@dataclass(frozen=True)
class SiteSummary:
    """A site among others."""

    name: str
    model: str
    moving_to: str | None
    revision: int
    images: int
    expected_accuracy: float | None  # None where it is not known, too

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Added:
    """What a call of images or labels came to."""

    site: SiteView
    pictures: Sequence[str | None]  # ids, in the order of the call; None: not readable
    added: int
    repeated: int  # that the site had before, or the call had twice
    labelled: int  # labels that are new or other than before
    unreadable: Sequence[Mapping[str, Any]] = ()  # index and reason
    not_kept: Sequence[str] = ()  # labelled, and to be sent again if their labels are to count
    again: bool = False  # the idempotency key was used before

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**values, "site": self.site.to_dict()}


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer for one image: a label, or a problem."""

    label: str | None  # None below the threshold of confidence, too
    probability: float | None  # of the likeliest class
    likeliest: str | None
    probabilities: np.ndarray | None  # [C], in the order of the model's classes
    index: int
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Without the classes that were not chosen."""
        if self.problem is not None:
            return {"index": self.index, "label": None, "probability": None, "error": self.problem}
        unsure = {} if self.label is not None else {"unsure": self.likeliest}
        return {"label": self.label, "probability": self.probability, **unsure}
