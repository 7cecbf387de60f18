"""What an adaptation method is: it looks at unlabelled images and changes the classifier."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from torch import Tensor, nn

from acclimate.config import NoSettings
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Head

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Context:
    """What a method may know beside the images."""

    # [C] float64: those that the classifier a chain starts from stands under, read off the images
    # where it is not known from training.
    label_prior: Tensor
    ratios: np.ndarray | None = None  # how they vary between training domains: see `fit_ratios`
    centre: Tensor | None = None  # [h] float64: the training domains' mean hidden layer
    labels: Tensor | None = None  # [n]: classes of the images; -1: not labelled


class Method(ABC):
    """Adapts a classifier to one domain.

    Subclasses may define `Config`, a frozen dataclass of their settings, which users set as
    `adapt.NAME.key`.

    What `observe` learns goes into the domain's state as it is, and `apply` needs nothing else, not
    even the settings: an adapted classifier can be made again from the model and the state. Neither
    changes the given classifier or its weights. A method that changes the backbone gets the whole
    predictor as `classifier`, and images; any other gets a head, and the features that it is on.
    """

    Config: ClassVar[type[Any]] = NoSettings
    # What it changes: the logits' scale and bias, the last layer, or layers of the backbone. Only
    # after the latter are features taken again.
    changes: ClassVar[Literal["bias", "head", "backbone"]]
    gradient_free: ClassVar[bool] = True
    probabilities: ClassVar[bool] = True  # whether its logits are still those of probabilities
    assumes_label_shift: ClassVar[bool] = False  # a rehearsed model's guard checks that
    control: ClassVar[bool] = False  # it changes scores alone: `observe` refuses
    needs: ClassVar[str] = ""  # a field of `Context` that it cannot do without

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config

    def require(self, network: nn.Module) -> None:  # noqa: B027 (most work on any network)
        """Refuse a network that lacks what it works on; a backbone alone tells as well."""

    @classmethod
    def able(cls, model: Model) -> bool:
        """Whether a model has what the method needs, beside images."""
        return not cls.needs or getattr(model, cls.needs, None) is not None

    @abstractmethod
    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        """What `images` say, with `classifier` as it is so far."""

    @classmethod
    def rehearsed(cls, *, many_domains: bool) -> Sequence[Mapping[str, Any]]:
        """Settings that rehearsal tries, of equal ones the preferred first; none: it is left out.

        Only methods that leave the backbone alone are rehearsed, on features.
        """
        return ()

    def shift(self, tensors: Mapping[str, Tensor]) -> tuple[float, Tensor]:
        """Of a method that changes a bias: logits become logits / temperature + shift [C]."""
        raise NotImplementedError

    def apply(self, classifier: Head, tensors: Mapping[str, Tensor]) -> Head:
        """A new classifier that uses what `observe` found."""
        last, (temperature, shift) = classifier.last, self.shift(tensors)
        if shift.shape != last.bias.shape:
            raise ValueError("a shift of other classes")
        scale = 1 / temperature
        bias = last.bias * scale + shift.to(last.bias)
        return classifier.with_last(last.weight * scale, bias)


def with_tensors(network: Network, tensors: Mapping[str, Tensor]) -> Network:
    """A network with `tensors` in the place of those of the same names.

    It shares all other parameters with `network`; buffers are its own.
    """
    memo = {id(p): p for name, p in network.named_parameters() if name not in tensors}
    changed = copy.deepcopy(network, memo)
    unknown = changed.load_state_dict(dict(tensors), strict=False).unexpected_keys
    if unknown:
        raise KeyError(unknown[0])
    return changed
