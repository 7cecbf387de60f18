"""Features of the new domain moved towards where training's lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from acclimate.adapt.methods.base import Context, Method
from acclimate.config import setting
from acclimate.core.errors import ConfigError
from acclimate.learn.images import Images
from acclimate.learn.models import Head


@dataclass(frozen=True, kw_only=True)
class ShiftConfig:
    amount: float = setting(0.5, "share of the way to training's mean", at_least=0, at_most=1)


@final
class Shift(Method):
    """Moves the hidden layer by a share of training's mean less the domain's, which folds into the
    bias. Of a mean of few images, what chance alone would give is taken off (James-Stein).

    It keeps sums over the images, so that more can be added.
    """

    Config = ShiftConfig
    changes = "bias"
    grows = True
    needs = "centre"

    @classmethod
    def rehearsed(cls, *, many_domains: bool) -> Sequence[Mapping[str, Any]]:
        return [{"amount": amount} for amount in (0.25, 0.5, 1.0)]

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        none = torch.zeros((), dtype=torch.float64)
        earlier = {"count": none, "total": none, "squares": none}
        return self.observe_more(classifier, images, context, earlier)

    def observe_more(
        self, classifier: Head, images: Images, context: Context, earlier: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        if context.centre is None:
            raise ConfigError(
                "method 'shift' needs the mean of training's features, which rehearsal measures; "
                "train with --set adapt.rehearse=true, or choose another method"
            )
        hidden = images.outputs(classifier).hidden.double().cpu()
        count = earlier["count"] + len(hidden)
        total = earlier["total"] + hidden.sum(0)
        squares = earlier["squares"] + hidden.square().sum()
        away = total / count - context.centre
        # Of one image nothing tells the domain from chance: what is divided by 0 is infinite.
        scatter = (squares - total.square().sum() / count) / (count - 1)
        by_chance = (scatter / count / away.square().sum()).nan_to_num(1.0)
        move = self.config.amount * (1 - by_chance).clamp(min=0) * away
        return {
            "count": count,
            "total": total,
            "squares": squares,
            "shift": -(classifier.last.weight.detach().double().cpu() @ move),
        }

    def shift(self, tensors: Mapping[str, Tensor]) -> tuple[float, Tensor]:
        return 1.0, tensors["shift"]
