"""What an adaptation method is: it looks at unlabelled images and changes the classifier."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from acclimate.config import NoSettings
from acclimate.data.source import Images
from acclimate.learn.models import Plain, Predictor


@dataclass(frozen=True)
class Context:
    """What a method may know of training, and of the classifier that its chain started from."""

    label_prior: Tensor  # [C] float64
    start: Predictor | None = None  # F(·, μ), where a chain starts from the embedding,
    centre: Predictor | None = None  # and F at the training domains' centre
    ratios: np.ndarray | None = None  # how label frequencies vary between them: see `fit_ratios`


class Method(ABC):
    """Adapts a classifier to one domain.

    Subclasses may define `Config`, a frozen dataclass of their settings, which users set as
    `adapt.NAME.key`.

    What `observe` learns goes into the domain's state as it is, and `apply` needs nothing else, not
    even the settings: an adapted classifier can be made again from the model and the state. Neither
    changes the given predictor or its weights.
    """

    Config: ClassVar[type[Any]] = NoSettings
    # What it changes: the logits' scale and bias, the last layer, or layers of the backbone. Where
    # the backbone stays, its features are taken once and serve every method that follows.
    changes: ClassVar[Literal["bias", "head", "backbone"]]
    gradient_free: ClassVar[bool] = True
    mergeable: ClassVar[bool] = False  # whether the tensors of two image sets add up
    probabilities: ClassVar[bool] = True  # whether its logits are still those of probabilities
    calibrates: ClassVar[bool] = False  # whether it divides logits by its setting `temperature`
    assumes_label_shift: ClassVar[bool] = False  # a rehearsed model's guard checks that
    grows: ClassVar[bool] = False  # whether it has `observe_more`

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config

    def require(self, network: nn.Module) -> None:  # noqa: B027 (most work on any network)
        """Refuse a network that lacks what it works on; a backbone alone tells as well."""

    @abstractmethod
    def observe(
        self, predictor: Predictor, images: Images, context: Context
    ) -> Mapping[str, Tensor]:
        """What `images` say, with `predictor` as it is so far."""

    def observe_more(
        self, predictor: Predictor, images: Images, context: Context, earlier: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """What `images` say together with those that `earlier` was learned from."""
        raise NotImplementedError

    @classmethod
    def rehearsed(cls, *, many_domains: bool) -> Sequence[Mapping[str, Any]]:
        """Settings that rehearsal tries, of equal ones the preferred first; none: it is left out.

        `temperature` is not among them: rehearsal fits it for methods that calibrate. Only methods
        that leave the backbone alone are rehearsed, on features.
        """
        return ()

    def shift(self, tensors: Mapping[str, Tensor]) -> tuple[float, Tensor]:
        """Of a method that changes a bias: logits become logits / temperature + shift [C]."""
        raise NotImplementedError

    def apply(self, predictor: Predictor, tensors: Mapping[str, Tensor]) -> Predictor:
        """A new predictor that uses what `observe` found."""
        last, (temperature, shift) = last_layer(predictor), self.shift(tensors)
        if shift.shape != last.bias.shape:
            raise ValueError("a shift of other classes")
        scale = 1 / temperature
        bias = last.bias * scale + shift.to(last.bias)
        return with_last_layer(predictor, last.weight * scale, bias)


def with_tensors(predictor: Predictor, tensors: Mapping[str, Tensor]) -> Predictor:
    """A predictor with `tensors` in the place of those of the same names.

    It shares all other parameters with `predictor`; buffers are its own.
    """
    memo = {id(p): p for name, p in predictor.named_parameters() if name not in tensors}
    changed = copy.deepcopy(predictor, memo)
    unknown = changed.load_state_dict(dict(tensors), strict=False).unexpected_keys
    if unknown:
        raise KeyError(unknown[0])
    return changed


def last_layer(predictor: Predictor) -> nn.Linear:
    """The layer from `Output.hidden` to the logits."""
    assert isinstance(predictor, Plain), "a conditioned predictor is folded before it is adapted"
    return predictor.head.last


def with_last_layer(predictor: Predictor, weight: Tensor, bias: Tensor) -> Plain:
    """`predictor` with another last layer: weight [C, h], bias [C]. Both share the backbone."""
    assert isinstance(predictor, Plain), "a conditioned predictor is folded before it is adapted"
    head = copy.deepcopy(predictor.head)
    head.last.load_state_dict({"weight": weight, "bias": bias})
    changed = Plain.of(predictor.backbone, head)
    changed.training = predictor.training  # not train(): the backbone is shared, keeps its mode
    return changed
