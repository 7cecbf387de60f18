"""SHOT's information maximisation, on the last layer (SHOT-IM: Liang et al. 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import final

import torch
from torch import Tensor

from acclimate.adapt.methods.base import Context, Method
from acclimate.adapt.methods.gradients import entropies, set_gradients
from acclimate.config import setting
from acclimate.learn.images import Images
from acclimate.learn.models import Head


def information(logits: Tensor) -> Tensor:
    """Mutual information of image and prediction, in nats: the entropy of the mean prediction less
    the mean entropy. [n, C] -> []"""
    log_p = logits.float().log_softmax(1)
    log_mean = log_p.logsumexp(0) - log(len(log_p))  # finite where a probability rounds to 0
    return -(log_mean.exp() * log_mean).sum() - entropies(logits).mean()


@dataclass(frozen=True, kw_only=True)
class ShotConfig:
    steps: int = setting(10, "steps of Adam, each on all images", at_least=0)
    lr: float = setting(1e-3, "its learning rate", at_least=0)


@final
class Shot(Method):
    """Maximises the mutual information over the last layer.

    As published, the classifier stays and the backbone learns, with pseudo-labels beside it. Here
    the features stay, so that images pass the backbone once. The most information is there where
    all classes are equally frequent: where they are not, it pulls predictions the wrong way.
    """

    Config = ShotConfig
    changes = "head"
    gradient_free = False

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        with torch.no_grad():
            hidden = images.outputs(classifier).hidden.float()
        last = classifier.last
        weight, bias = (
            part.detach().clone().requires_grad_(True) for part in (last.weight, last.bias)
        )
        optimiser = torch.optim.Adam([weight, bias], lr=self.config.lr)
        for _ in range(self.config.steps):
            set_gradients(-information(hidden @ weight.T + bias), [weight, bias])
            optimiser.step()
        return {"weight": weight.detach(), "bias": bias.detach()}

    def apply(self, classifier: Head, tensors: Mapping[str, Tensor]) -> Head:
        return classifier.with_last(tensors["weight"], tensors["bias"])
