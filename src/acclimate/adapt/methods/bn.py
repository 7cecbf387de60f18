"""Batch-norm statistics of the new domain in the place of the training domains'."""

from collections.abc import Mapping
from typing import final

from torch import Tensor

from acclimate.adapt.methods.base import Context, Images, Method, with_tensors
from acclimate.adapt.methods.norms import batch_norms, image_statistics, without_norms
from acclimate.learn.models import Predictor


@final
class BatchNorm(Method):
    def observe(
        self, predictor: Predictor, images: Images, context: Context
    ) -> Mapping[str, Tensor]:
        if not batch_norms(predictor):
            raise without_norms("bn", "batch norm", predictor)
        return image_statistics(with_tensors(predictor, {}), images)

    def apply(self, predictor: Predictor, tensors: Mapping[str, Tensor]) -> Predictor:
        return with_tensors(predictor, tensors)
