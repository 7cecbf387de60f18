"""What adaptation changed: predictions of the same images, before and after."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.core.wording import percent
from acclimate.data.source import Images
from acclimate.learn.models import Plain, Predictor

MOST_NAMED = 3  # moves that a sentence names


@dataclass(frozen=True)
class Changes:
    """Of `images`, how many moved from one predicted class to another, the most frequent first."""

    images: int
    moves: Mapping[tuple[str, str], int]

    @classmethod
    def between(cls, before: Tensor, after: Tensor, classes: Sequence[str]) -> "Changes":
        """Predicted classes by number: [n], [n]"""
        moved = (before != after).nonzero()[:, 0].tolist()
        pairs = Counter((classes[int(before[row])], classes[int(after[row])]) for row in moved)
        return cls(len(before), dict(sorted(pairs.items(), key=lambda item: (-item[1], item[0]))))

    @property
    def changed(self) -> int:
        return sum(self.moves.values())

    def to_dict(self) -> dict[str, Any]:
        moves = [{"from": a, "to": b, "images": n} for (a, b), n in self.moves.items()]
        share = self.changed / self.images if self.images else None
        return {"images": self.images, "changed": self.changed, "share": share, "moves": moves}

    def __str__(self) -> str:
        """In a sentence."""
        if not self.changed:
            return f"adaptation changed none of {self.images} predictions"
        named = [f"{a} → {b} {n}" for (a, b), n in list(self.moves.items())[:MOST_NAMED]]
        rest = ", …" if len(self.moves) > len(named) else ""
        return (
            f"adaptation changed {percent(self.changed / self.images)} % of predictions "
            f"({self.changed} of {self.images}): {', '.join(named)}{rest}"
        )


@torch.no_grad()
def changes_on(
    images: Images, before: Predictor, after: Predictor, classes: Sequence[str]
) -> Changes:
    guesses = [
        torch.stack([logits.argmax(1).cpu() for logits in side_by_side(x, before, after)])
        for x in images.batches()
    ]
    was, now = torch.cat(guesses, dim=1)
    return Changes.between(was, now, classes)


def side_by_side(x: Tensor, *predictors: Predictor) -> list[Tensor]:
    """Logits of each; what they have below their heads in common sees the images once."""
    lowest = [predictor.backbone.extractor or predictor.backbone for predictor in predictors]
    if x.ndim < 3 or any(network is not lowest[0] for network in lowest):
        return [predictor(x).logits for predictor in predictors]
    features = lowest[0](x)
    return [_of_features(predictor, features) for predictor in predictors]


def _of_features(predictor: Predictor, features: Tensor) -> Tensor:
    """Logits, from what its lowest network makes of images."""
    assert isinstance(predictor, Plain), "a conditioned predictor is folded before it predicts"
    if predictor.backbone.extractor is not None:
        features = predictor.backbone(features)
    logits: Tensor = predictor.head(features).logits
    return logits
