"""Learning rates that fall from layer to layer of a backbone, by the layers that timm knows."""

from typing import Any

from torch import nn

from acclimate.config import OptimiserConfig
from acclimate.core.errors import ConfigError
from acclimate.learn.models.weights import import_timm
from acclimate.runs.device import trained_backbones


def layer_groups(module: nn.Module, settings: OptimiserConfig) -> list[dict[str, Any]]:
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
    return [{**one, "lr_scale": one["lr_scale"] * settings.layer_decay} for one in groups]
