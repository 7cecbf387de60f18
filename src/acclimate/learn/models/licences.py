"""Under which licence the weights came that a model started from: whoever passes it on needs it."""

from pathlib import Path

from acclimate.config import ModelConfig
from acclimate.learn.models.timm_import import import_timm

_OWN = "none: no pretrained weights, so that they are yours"
_LITE0 = (
    "Apache-2.0: EfficientNet-Lite0 of tensorflow/tpu (the package that carries them names none)"
)


def weights_licence(model: ModelConfig) -> str:
    """In words, of the backbone that `model` describes; what is not known is said to be so."""
    if model.weights:
        return (
            f"unknown: the backbone started from {Path(model.weights).name}; ask where it is from"
        )
    if not model.pretrained or model.backbone in ("small-cnn", "mlp"):
        return _OWN
    if model.backbone == "efficientnet-lite0":
        return _LITE0
    source = import_timm().models.get_pretrained_cfg(model.backbone)
    licence = getattr(source, "license", None)
    where = getattr(source, "hf_hub_id", None) or getattr(source, "url", None) or "timm"
    if not licence:
        return f"unknown: {where} names none; ask there"
    return f"{licence}: {where}"
