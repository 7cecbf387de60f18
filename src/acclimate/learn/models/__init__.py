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
from acclimate.learn.models.predictors import Head, Output, Predictor, build_head, takes_features

__all__ = [
    "Backbone",
    "Head",
    "Output",
    "Predictor",
    "Preprocess",
    "accelerate",
    "build_backbone",
    "build_head",
    "default_backbone",
    "engine_used",
    "freeze_batch_norm",
    "list_backbones",
    "may_draw",
    "takes_features",
]
