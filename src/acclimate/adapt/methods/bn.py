"""Batch-norm statistics of the new domain in the place of, or beside, the training domains'."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from acclimate.adapt.methods.base import Context, Method, with_tensors
from acclimate.adapt.methods.norms import batch_norms, image_statistics, without_norms
from acclimate.config import setting
from acclimate.learn.images import Images
from acclimate.learn.models import Head


@dataclass(frozen=True, kw_only=True)
class BatchNormConfig:
    weight: float = setting(
        1.0, "share of the new domain's statistics beside training's", at_least=0, at_most=1
    )


@final
class BatchNorm(Method):
    """With a weight below 1, means and variances lie between the two (Schneider et al. 2020)."""

    Config = BatchNormConfig
    changes = "backbone"

    def require(self, network: nn.Module) -> None:
        if not batch_norms(network):
            raise without_norms("bn", "batch norm", network)

    def observe(self, classifier: Head, images: Images, context: Context) -> Mapping[str, Tensor]:
        self.require(classifier)
        statistics = image_statistics(with_tensors(classifier, {}), images)
        return {
            name: classifier.get_buffer(name).cpu().lerp(new, self.config.weight)
            for name, new in statistics.items()
        }

    def apply(self, classifier: Head, tensors: Mapping[str, Tensor]) -> Head:
        return with_tensors(classifier, tensors)
