"""T3A: class templates from the images the classifier is surest of (Iwasawa & Matsuo 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from acclimate.adapt.methods.base import Context, Method
from acclimate.config import setting
from acclimate.learn.images import Images
from acclimate.learn.models import Head


def templates(hidden: Tensor, logits: Tensor, weight: Tensor, keep: int) -> Tensor:
    """One template of length 1 per class: [n, h], [n, C], [C, h] -> [C, h].

    The direction of the sum of the class's weight and of its `keep` images of lowest entropy, each
    scaled to length 1. An image's class is the most probable one.
    """
    guess = logits.argmax(1)
    entropy = torch.special.entr(logits.double().softmax(1)).sum(1)
    units = normalize(hidden, dim=1)
    sums = normalize(weight.detach(), dim=1)
    for label in range(len(sums)):
        rows = (guess == label).nonzero()[:, 0]
        surest = rows[entropy[rows].argsort(stable=True)[:keep]]
        sums[label] += units[surest].sum(0)
    return normalize(sums, dim=1)


@dataclass(frozen=True, kw_only=True)
class T3AConfig:
    keep: int = setting(100, "images of lowest entropy that a class's template keeps", at_least=0)


@final
class T3A(Method):
    """The batch variant: published, templates change with every image that is predicted; here they
    are made once, from all images adapted on, and prediction has no memory.

    The class with the largest inner product of template and hidden layer wins; there is no bias.
    """

    Config = T3AConfig
    changes = "head"
    probabilities = False

    @classmethod
    def rehearsed(cls, *, many_domains: bool) -> Sequence[Mapping[str, Any]]:
        return [{}]

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        logits, hidden = images.outputs(classifier)
        weight, keep = classifier.last.weight, self.config.keep
        return {"templates": templates(hidden.float(), logits, weight, keep)}

    def apply(self, classifier: Head, tensors: Mapping[str, Tensor]) -> Head:
        return classifier.with_last(tensors["templates"], torch.zeros_like(classifier.last.bias))
