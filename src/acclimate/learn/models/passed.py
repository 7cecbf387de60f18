"""One pass of a batch for many classifiers: backbones see it once, and heads are cheap."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.learn.models.backbones import Backbone
from acclimate.learn.models.predictors import Predictor, _LinearHead, _MlpHead


class Passed:
    """A batch, and what backbones made of it: each sees it once."""

    def __init__(self, x: Tensor | None) -> None:
        self.x = x
        self._features: dict[Backbone, Tensor] = {}

    @classmethod
    def before(cls, backbone: Backbone, features: Tensor) -> "Passed":
        """One that is no more, but for what that backbone made of it."""
        found = cls(None)
        found._features[backbone] = features
        return found

    def features(self, backbone: Backbone) -> Tensor:
        if backbone not in self._features:
            below, x = backbone.extractor, self.x
            assert x is not None, "it passed another backbone alone"
            # A backbone on an extractor takes what that makes of images as well as images.
            over = below is not None and x.ndim > 2
            self._features[backbone] = backbone(self.features(below) if below and over else x)
        return self._features[backbone]

    def logits(
        self, predictor: Predictor, mu: Tensor | None = None, which: Tensor | None = None
    ) -> Tensor:
        """Of each input, or of those at the places `which` [n], any of them as often as it is
        there; `mu` goes with those."""
        features = self.features(predictor.backbone)
        return predictor.on_features(features if which is None else features[which], mu).logits


def each_by_its_own(heads: Sequence[nn.Module]) -> Callable[[Tensor, Tensor], Tensor]:
    """Features [b, f] and the number of each row's head [b] -> logits [b, C].

    Heads that differ in their biases alone, as μ and a label prior make them, are one head with a
    bias gathered for each row; others take their own rows.
    """
    first = heads[0]
    if isinstance(first, _LinearHead) and _agree(heads, "last.weight"):
        last = _biases(heads, "last")
        return lambda x, which: F.linear(x, first.last.weight) + last[which]
    weights = ("project.weight", "project.bias", "first.weight", "last.weight")
    if isinstance(first, _MlpHead) and _agree(heads, *weights):
        inner, last = _biases(heads, "first"), _biases(heads, "last")

        def classify(x: Tensor, which: Tensor) -> Tensor:
            hidden = F.relu(F.linear(first.project(x), first.first.weight) + inner[which])
            return F.linear(hidden, first.last.weight) + last[which]

        return classify
    return lambda x, which: _one_by_one(heads, x, which)


def _one_by_one(heads: Sequence[nn.Module], x: Tensor, which: Tensor) -> Tensor:
    found: Tensor | None = None
    for number in torch.unique(which).tolist():
        rows = which == number
        logits: Tensor = heads[number](x[rows]).logits
        if found is None:
            found = logits.new_empty(len(x), logits.shape[1])
        found[rows] = logits
    assert found is not None
    return found


def _agree(heads: Sequence[nn.Module], *names: str) -> bool:
    def same(head: nn.Module, name: str) -> bool:
        one, two = heads[0].get_parameter(name), head.get_parameter(name)
        return one is two or torch.equal(one, two)

    alike = all(type(head) is type(heads[0]) for head in heads)
    return alike and all(same(head, name) for head in heads for name in names)


def _biases(heads: Sequence[nn.Module], layer: str) -> Tensor:
    """[heads, outputs]"""
    return torch.stack([head.get_parameter(f"{layer}.bias").detach() for head in heads])
