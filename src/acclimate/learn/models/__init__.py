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
    over_features,
    takes_features,
)
from acclimate.learn.models.weights import fit_weights, read_weights

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
    "fit_weights",
    "freeze_batch_norm",
    "list_backbones",
    "may_draw",
    "over_features",
    "read_weights",
    "takes_features",
]
