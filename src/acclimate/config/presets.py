"""The paper's settings by name, as changes to the defaults, with the grids it searched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acclimate.config.values import Search, choice, nested
from acclimate.core.errors import unknown

# The PyTorch Model Zoo's weights, as the paper says: timm's plain `resnet50` means others.
RESNET_50 = "resnet50.tv_in1k"


@dataclass(frozen=True)
class Preset:
    about: str
    settings: Mapping[str, Any]
    grids: Mapping[str, Search]  # where the paper searched; draws take these settings from here
    # By algorithm: what the paper did not search for it, though its range is declared.
    fixed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


RECIPE = "rehearsed"  # for those who name neither a preset nor an algorithm

PRESETS: dict[str, Preset] = {
    "rehearsed": Preset(
        about="ERM that ends with a rehearsal: how to adapt is chosen on your own domains",
        settings={"algorithm": "erm", "adapt.rehearse": True, "model.dropout": 0.5},
        grids={},
    ),
    "small-scale": Preset(
        about="DomainBed's five image benchmarks: ResNet-50, Adam, domain mixup in Step A",
        settings={
            "model.backbone": RESNET_50,
            "model.freeze": "none",
            "model.freeze_batch_norm": "statistics",
            "data.image_size": 224,
            "data.augment": "domainbed",
            "embedding.dim": 1024,
            "embedding.steps": 1000,
            "embedding.domains_per_step": 4,
            "embedding.per_domain": 32,
            "embedding.support": 0.5,
            "embedding.mixup": "on",
            "embedding.points": 200,
            "embedding.optimiser.name": "adam",
            "embedding.optimiser.lr": 1e-6,
            "embedding.optimiser.weight_decay": 1e-5,
            "train.steps": 5000,
            "train.per_domain": 32,
            "train.domains_per_step": 0,
            "train.evaluate_every": 300,
            "train.optimiser.name": "adam",
            "train.optimiser.lr": 5e-5,
            "train.optimiser.weight_decay": 0.0,
            "adapt.points": 200,
            "adapt.source": "test",
        },
        grids={},
        fixed={"da-mmd": ("hparams.penalty",), "da-coral": ("hparams.penalty",)},  # γ = 1
    ),
    "lt-imagenet": Preset(
        about="LT-ImageNet(50, 100, 350, 0.1): ResNet-50, SGD with momentum, 5 epochs",
        settings={
            "model.backbone": RESNET_50,
            "model.freeze": "none",
            "data.image_size": 224,
            "data.augment": "domainbed",
            "embedding.dim": 1024,
            "embedding.steps": 1300,
            "embedding.domains_per_step": 4,
            "embedding.per_domain": 100,
            "embedding.support": 0.5,
            "embedding.mixup": "off",
            "embedding.points": 300,
            "embedding.optimiser.name": "sgd",
            "embedding.optimiser.lr": 1e-3,
            "embedding.optimiser.weight_decay": 1e-5,
            "train.epochs": 5.0,
            "train.per_domain": 100,
            "train.domains_per_step": 8,
            "train.optimiser.name": "sgd",
            "train.optimiser.lr": 5e-3,
            "train.optimiser.weight_decay": 1e-5,
            "adapt.points": 300,
            "adapt.source": "held-out",
        },
        grids={
            "embedding.optimiser.lr": choice(1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
            "hparams.penalty": Search("uniform", 0.0, 5.0),
        },
    ),
    "geo-yfcc": Preset(
        about="Geo-YFCC (40 training, 7 validation, 15 test countries): ResNet-50, SGD, 6 epochs",
        settings={
            "model.backbone": RESNET_50,
            "model.freeze": "none",
            "data.image_size": 224,
            "data.augment": "domainbed",
            "embedding.dim": 1024,
            "embedding.steps": 1300,
            "embedding.domains_per_step": 4,
            "embedding.per_domain": 80,
            "embedding.support": 0.8,
            "embedding.mixup": "off",
            "embedding.points": 5000,
            "embedding.optimiser.name": "sgd",
            "embedding.optimiser.lr": 2e-2,
            "embedding.optimiser.weight_decay": 1e-5,
            "train.epochs": 6.0,
            "train.per_domain": 80,
            "train.domains_per_step": 0,
            "train.optimiser.name": "sgd",
            "train.optimiser.lr": 0.04,
            "train.optimiser.weight_decay": 1e-5,
            "adapt.points": 5000,
            "adapt.source": "held-out",
        },
        grids={
            "embedding.optimiser.lr": choice(1e-2, 1e-3, 1e-4, 1e-5),
            "embedding.optimiser.weight_decay": choice(1e-4, 1e-5, 1e-6),
            "train.epochs": choice(3.0, 6.0, 12.0, 25.0),
            "hparams.penalty": Search("uniform", 0.0, 1.5),
        },
    ),
}


def preset(name: str) -> dict[str, Any]:
    """The preset's settings, nested, ready to be merged below the user's own."""
    if name not in PRESETS:
        raise unknown(f"there is no preset '{name}'", name, PRESETS)
    return nested(PRESETS[name].settings)
