"""What the service says of sites, calls and images: plain values that turn into JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from acclimate.adapt.classifier import Adapted
from acclimate.serve.store import Kept


@dataclass(frozen=True)
class SiteView:
    """A site: what was stored of it, and what its classifier is."""

    name: str
    model: str
    moving_to: str | None  # a model for which enough new images have not come yet
    revision: int  # grows with every change
    images: int  # different ones that came
    kept: int  # of them, those that the classifier is made from
    labelled: int
    method: str
    expected_accuracy: float | None = None  # at this site, where rehearsal tells
    floor: float | None = None  # nine of ten such sites lie above it
    notes: Sequence[str] = ()  # why this method, and what speaks against it
    trust: Mapping[str, Any] | None = None  # the fields of `adapt.Trust`
    label_prior: Mapping[str, float] | None = None
    changes: Mapping[str, Any] | None = None  # of predictions by adaptation; see `adapt.Changes`
    point: Sequence[float] | None = None  # in the model's part of `Service.training_map`
    drift: float | None = None  # evidence that the site has changed: 1 raises an alarm
    history: Sequence[Mapping[str, Any]] = ()  # the last changes; not where sites are listed

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def facts_of(adapted: Adapted, kept: Kept, point: Sequence[float] | None) -> dict[str, Any]:
    """What is written down of a site's classifier: fields of `SiteView` that turn into JSON."""
    expected = None if adapted.trust is None else adapted.trust.expected_accuracy
    return {
        "images": kept.images,
        "kept": len(kept.hashes),
        "labelled": len(kept.labels),
        "method": adapted.method,
        "expected_accuracy": None if expected is None else expected.accuracy,
        "floor": None if expected is None else expected.floor,
        "notes": adapted.notes,
        "trust": None if adapted.trust is None else asdict(adapted.trust),
        "label_prior": adapted.label_prior,
        "changes": None if adapted.changes is None else adapted.changes.to_dict(),
        "point": point,
    }


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

    index: int  # of the image in the call
    label: str | None = None  # None below the threshold of confidence, too
    probability: float | None = None  # of the likeliest class
    likeliest: str | None = None
    probabilities: np.ndarray | None = None  # [C], in the order of the model's classes
    problem: str | None = None

    @classmethod
    def of(
        cls, row: np.ndarray, classes: Sequence[str], unsure_below: float, index: int
    ) -> "Prediction":
        """From probabilities [C]."""
        likeliest, probability = classes[int(row.argmax())], float(row.max())
        label = likeliest if probability >= unsure_below else None
        return cls(index, label, probability, likeliest, row)

    def to_dict(self) -> dict[str, Any]:
        """Without the probabilities of all classes."""
        if self.problem is not None:
            return {"index": self.index, "label": None, "probability": None, "error": self.problem}
        unsure = {} if self.label is not None else {"unsure": self.likeliest}
        return {"label": self.label, "probability": self.probability, **unsure}
