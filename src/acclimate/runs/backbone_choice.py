"""Which backbone, and does it learn? On a CPU a pretrained one stays as it is, unless told."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from acclimate.config import ModelConfig, RunConfig
from acclimate.core.distributed import pick_device
from acclimate.core.errors import ConfigError, ImageError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest
from acclimate.learn.models import default_backbone

SMALL = 64  # pixels: at or below, images are trained from scratch and not augmented
WITHOUT_WEIGHTS = frozenset({"small-cnn", "mlp"})


@dataclass(frozen=True)
class Freeze:
    """What was chosen; `why` is a line for people, "" where there was nothing to choose."""

    choice: Literal["none", "backbone"]
    why: str = ""


def choose_backbone(config: RunConfig, side: int | None, device: str | None) -> tuple[str, Freeze]:
    """Which one, for images of `side` px (None: rows of features), and whether it learns."""
    if side is not None:
        side = config.data.image_size or side
    name = config.model.backbone
    if name == "auto":
        name = default_backbone(side)
    return name, choose_freeze(replace(config.model, backbone=name), side, device)


def settled(config: RunConfig, manifest: Manifest, device: str | None) -> RunConfig:
    """`config` with what depends on the device decided, as a run there would decide it."""
    if config.model.freeze != "auto":
        return config
    _, freeze = choose_backbone(config, typical_side(config, manifest, manifest.domains), device)
    return replace(config, model=replace(config.model, freeze=freeze.choice))


def choose_freeze(model: ModelConfig, side: int | None, device: str | None) -> Freeze:
    """For images of `side` px (None: rows of features) and a `model` whose backbone is known.

    A `device` of None is one that cannot be seen from here; there, nothing is frozen unasked.
    """
    weights = model.weights or (model.pretrained and model.backbone not in WITHOUT_WEIGHTS)
    if side is None:
        return Freeze("none")  # features already
    if model.freeze == "backbone" and not weights:
        raise ConfigError(
            f"model.freeze is backbone, and '{model.backbone}' has no pretrained weights to keep; "
            f"give --weights FILE, or use --set model.freeze=none"
        )
    if model.freeze != "auto":
        return Freeze(model.freeze)
    if not weights or side <= SMALL:
        return Freeze("none")
    if device is None or pick_device(device).type != "cpu":
        return Freeze(
            "none",
            f"all of {model.backbone} is trained, as there is a GPU; for heads on its features "
            f"alone, --set model.freeze=backbone",
        )
    return Freeze(
        "backbone",
        f"{model.backbone} keeps its pretrained weights, as this is a CPU and images have {side} "
        f"px: its features are extracted once and the rest is trained on them; to train all of "
        f"it, --set model.freeze=none",
    )


def typical_side(
    config: RunConfig, manifest: Manifest, train: Sequence[str], sample: int = 32
) -> int | None:
    """The median longer side of a few readable training images; None for rows of features."""
    if manifest.has_features:
        return None
    rows = np.concatenate([manifest.rows(domain=name, split="train") for name in train])
    rows = stream(0, "typical-side").permutation(rows)[: 4 * sample]
    sides: list[int] = []
    for row in rows:
        try:
            source = manifest.image_source(int(row))
            sides.append(max(decode(source, max_pixels=config.data.max_pixels).size))
        except ImageError:
            continue
        if len(sides) == sample:
            break
    if not sides:
        raise ManifestError(
            f"none of {len(rows)} images tried in {manifest.source} can be "
            f"read; check that the files are images and that the root is right"
        )
    return int(np.median(sides))
