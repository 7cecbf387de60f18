"""Backbones, pretrained weights and the predictors on top of them."""

from acclimate.learn.models.backbones import (
    Backbone,
    Preprocess,
    accelerate,
    build_backbone,
    default_backbone,
    engine_used,
    freeze_batch_norm,
    list_backbones,
    may_draw,
)
from acclimate.learn.models.predictors import (
    Conditioned,
    Output,
    Paired,
    Plain,
    Predictor,
    build_plain,
    head_alone,
    takes_features,
)

__all__ = [
    "Backbone",
    "Conditioned",
    "Output",
    "Paired",
    "Plain",
    "Predictor",
    "Preprocess",
    "accelerate",
    "build_backbone",
    "build_plain",
    "default_backbone",
    "engine_used",
    "freeze_batch_norm",
    "head_alone",
    "list_backbones",
    "may_draw",
    "takes_features",
]
