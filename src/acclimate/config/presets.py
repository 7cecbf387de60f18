"""Presets, which are the paper's settings and grids by name, and how presets, files, flags and
assignments become one configuration."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.config.settings import RunConfig
from acclimate.config.values import Search, choice, flat, from_dict, merged, nested
from acclimate.core.errors import ConfigError, unknown

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

_PAPER: dict[str, Any] = {
    "model.backbone": RESNET_50,
    "model.freeze": "none",
    "data.image_size": 224,
    "data.augment": "domainbed",
    "embedding.dim": 1024,
    "embedding.domains_per_step": 4,
    "embedding.optimiser.weight_decay": 1e-5,
}
_LARGE = _PAPER | {
    "embedding.steps": 1300,
    "embedding.mixup": "off",
    "embedding.optimiser.name": "sgd",
    "train.optimiser.name": "sgd",
    "train.optimiser.weight_decay": 1e-5,
    "adapt.source": "held-out",
}

PRESETS: dict[str, Preset] = {
    "rehearsed": Preset(
        about="ERM that ends with a rehearsal: how to adapt is chosen on your own domains",
        settings={"algorithm": "erm", "adapt.rehearse": True, "model.dropout": 0.5},
        grids={},
    ),
    "small-scale": Preset(
        about="DomainBed's five image benchmarks: ResNet-50, Adam, domain mixup in Step A",
        settings={
            **_PAPER,
            "model.freeze_batch_norm": "statistics",
            "embedding.steps": 1000,
            "embedding.per_domain": 32,
            "embedding.support": 0.5,
            "embedding.mixup": "on",
            "embedding.points": 200,
            "embedding.optimiser.name": "adam",
            "embedding.optimiser.lr": 1e-6,
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
            **_LARGE,
            "embedding.per_domain": 100,
            "embedding.support": 0.5,
            "embedding.points": 300,
            "embedding.optimiser.lr": 1e-3,
            "train.epochs": 5.0,
            "train.per_domain": 100,
            "train.domains_per_step": 8,
            "train.optimiser.lr": 5e-3,
            "adapt.points": 300,
        },
        grids={
            "embedding.optimiser.lr": choice(1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
            "hparams.penalty": Search("uniform", 0.0, 5.0),
        },
    ),
    "geo-yfcc": Preset(
        about="Geo-YFCC (40 training, 7 validation, 15 test countries): ResNet-50, SGD, 6 epochs",
        settings={
            **_LARGE,
            "embedding.per_domain": 80,
            "embedding.support": 0.8,
            "embedding.points": 5000,
            "embedding.optimiser.lr": 2e-2,
            "train.epochs": 6.0,
            "train.per_domain": 80,
            "train.domains_per_step": 0,
            "train.optimiser.lr": 0.04,
            "adapt.points": 5000,
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
    """The settings of a preset, nested, ready to be merged below the user's own."""
    if name not in PRESETS:
        raise unknown(f"there is no preset '{name}'", name, PRESETS)
    return nested(PRESETS[name].settings)


def gather(
    name: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    recipe: str | None = None,
    where: str = "settings",
) -> RunConfig:
    """Defaults < preset `name` < file < flags < changes.

    `flags` are by dotted name, and one that is None or empty was not given; `changes` are nested.
    `recipe` is the preset where neither a preset nor an algorithm is named anywhere.
    `where` is what errors call the whole; those of a file name the file.
    """
    written = {} if file is None else read_toml(file)
    from_dict(RunConfig, written, where=str(file))
    given = {key: value for key, value in (flags or {}).items() if value not in (None, ())}
    asked = layered(written, nested(given), changes or {})
    if name is None and "algorithm" not in asked:
        name = recipe
    base = preset(name) if name else {}
    return from_dict(RunConfig, layered(base, written, nested(given), changes or {}), where=where)


def layered(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Nested `sources`, later ones over earlier ones.

    Steps that a source names end the epochs of those before it, which would replace them.
    """
    values: dict[str, Any] = {}
    for source in sources:
        earlier, values = flat(values), merged(values, source)
        named = flat(source)
        if "train.epochs" in earlier and "train.steps" in named and "train.epochs" not in named:
            values = merged(values, {"train": {"epochs": 0.0}})
    return values


def parse_assignments(
    assignments: Iterable[str], *, only: str = "", flag: str = "--set"
) -> dict[str, Any]:
    """`["train.steps=5", "model.backbone=small-cnn"]` -> nested values, of one group if asked."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            example = ", e.g. --set train.steps=500" if flag == "--set" else ""
            raise ConfigError(f"{flag} {assignment}: write it as key=value{example}")
        if not key.strip().startswith(only and f"{only}."):
            raise ConfigError(f"{flag} {assignment}: only settings of '{only}' play a part here")
        values[key.strip()] = _literal(text.strip())
    return nested(values)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"{path}: cannot be read as a settings file ({reason})") from None
    except (ValueError, RecursionError) as error:  # of the TOML, its numbers, or its encoding
        raise ConfigError(f"{path}: not valid TOML ({error}); mend it") from None


def _literal(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text  # bare words are strings: `--set model.backbone=resnet50` needs no quotes
