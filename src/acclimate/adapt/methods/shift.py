"""Features of the new domain moved towards where training's lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

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
    """

    Config = ShiftConfig
    changes = "bias"
    needs = "centre"

    @classmethod
    def rehearsed(cls, *, many_domains: bool) -> Sequence[Mapping[str, Any]]:
        return [{"amount": amount} for amount in (0.25, 0.5, 1.0)]

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        if context.centre is None:
            raise ConfigError(
                "method 'shift' needs the mean of training's features, which rehearsal measures; "
                "train with --set adapt.rehearse=true, or choose another method"
            )
        hidden = images.outputs(classifier).hidden.double().cpu()
        mean = hidden.mean(0)
        away = mean - context.centre
        # Of one image nothing tells the domain from chance: 0 / 0 is not a number.
        scatter = (hidden - mean).square().sum() / (len(hidden) - 1)
        by_chance = (scatter / len(hidden) / away.square().sum()).nan_to_num(1.0)
        move = self.config.amount * (1 - by_chance).clamp(min=0) * away
        return {"shift": -(classifier.last.weight.detach().double().cpu() @ move)}

    def shift(self, tensors: Mapping[str, Tensor]) -> tuple[float, Tensor]:
        return 1.0, tensors["shift"]
