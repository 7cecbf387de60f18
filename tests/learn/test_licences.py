"""The licence of weights is said, or said to be unknown."""

import pytest

from acclimate.config import ModelConfig
from acclimate.learn.models.licences import weights_licence


@pytest.mark.parametrize(
    ("model", "licence"),
    [
        (ModelConfig(backbone="small-cnn"), "none: no pretrained weights, so that they are yours"),
        (
            ModelConfig(backbone="resnet50", pretrained=False),
            "none: no pretrained weights, so that they are yours",
        ),
        (ModelConfig(backbone="resnet50"), "apache-2.0: timm/resnet50.a1_in1k"),
        (
            ModelConfig(backbone="efficientnet-lite0"),
            "Apache-2.0: EfficientNet-Lite0 of tensorflow/tpu (the package that carries them names "
            "none)",
        ),
        (
            ModelConfig(backbone="resnet50-v1", weights="/from/somewhere/r50.safetensors"),
            "unknown: the backbone started from r50.safetensors; ask where it is from",
        ),
    ],
)
def test_licences(model: ModelConfig, licence: str) -> None:
    assert weights_licence(model) == licence
