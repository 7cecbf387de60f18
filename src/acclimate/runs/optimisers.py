"""The optimiser of a phase: groups of parameters with their settings, and the learning rate."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from acclimate.config import OptimiserConfig
from acclimate.core.errors import ConfigError
from acclimate.learn.models.weights import import_timm
from acclimate.learn.objective import Adversary
from acclimate.runs.device import trained_backbones

KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def make_optimiser(
    module: nn.Module, settings: OptimiserConfig, adversary: Adversary | None = None
) -> torch.optim.Optimizer:
    """One optimiser. The first group is of what has the full learning rate; the layers of a
    backbone may follow; an adversary's parameters come last, with settings of their own."""
    theirs = list(adversary.module.parameters()) if adversary else []
    layers = _layers(module, settings) if settings.layer_decay < 1 else []
    known = {id(parameter) for parameter in theirs}
    known |= {id(parameter) for layer in layers for parameter in layer["params"]}
    own = [p for p in module.parameters() if p.requires_grad and id(p) not in known]
    groups = [_group(own, settings), *layers]
    if adversary is not None:
        other = adversary.optimiser
        lr = settings.lr if other.lr is None else other.lr
        # Schedule, warm-up and kind are the run's.
        against = replace(settings, lr=lr, weight_decay=other.weight_decay, beta1=other.beta1)
        groups.append({**_group(theirs, against), "adversary": True})
    # One kernel for all weights. On a CPU the plain one stays: its sums round otherwise.
    fused = all(parameter.is_cuda for parameter in own)
    made: torch.optim.Optimizer = KINDS[settings.name](groups, **({"fused": True} if fused else {}))
    return made


def _group(parameters: Sequence[nn.Parameter], settings: OptimiserConfig) -> dict[str, Any]:
    """Parameters of an optimiser with their `settings`, of which the schedule is made."""
    return {
        "params": parameters,
        "lr": settings.lr,
        "weight_decay": settings.weight_decay,
        **({"momentum": settings.momentum} if settings.name == "sgd" else {}),
        **({} if settings.name == "sgd" else {"betas": (settings.beta1, 0.999)}),
        "settings": settings,
        "lr_scale": 1.0,
        "adversary": False,
    }


def _layers(module: nn.Module, settings: OptimiserConfig) -> list[dict[str, Any]]:
    """Groups of a backbone's parameters as timm makes them: layer by layer, with the decay to the
    power of the layers above, the head among them, as `lr_scale`; and without weight decay on
    biases and norms."""
    bodies: list[Any] = [backbone.body for backbone in trained_backbones(module)]
    if not bodies or not all(hasattr(body, "group_matcher") for body in bodies):
        raise ConfigError(
            f"layer_decay={settings.layer_decay:g} slows the layers of a backbone of timm that is "
            f"fine-tuned, and this run has none that timm knows the layers of; leave it out, or "
            f"use --set model.freeze=none and a backbone of timm"
        )
    import_timm()
    from timm.optim import param_groups_layer_decay

    groups: list[dict[str, Any]] = []
    for body in bodies:
        skipped = body.no_weight_decay() if hasattr(body, "no_weight_decay") else ()
        groups += param_groups_layer_decay(
            body, settings.weight_decay, skipped, layer_decay=settings.layer_decay
        )
    # timm counts from the uppermost layer, which is the head of a network that has one.
    return [
        {**_group((), settings), **layer, "lr_scale": layer["lr_scale"] * settings.layer_decay}
        for layer in groups
    ]


def learning_rate(settings: OptimiserConfig, step: int, steps: int) -> float:
    """Linear warm-up over `warmup` steps, then constant or a half cosine to 0 at `steps`."""
    assert settings.lr is not None, "the plan decides the learning rate"
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    along = (step - settings.warmup) / max(steps - settings.warmup, 1)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * along))
