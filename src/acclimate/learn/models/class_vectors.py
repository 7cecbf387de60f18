"""A head from a file of class vectors: cosine similarity to each class, as CLIP-like models do it.

The file is of safetensors: a tensor `class_vectors` [C, d], such as text embeddings of the classes'
names, and the names as a JSON list under `classes` in its metadata. Where the model projects its
features before it compares them, `projection` [d, features] does that; `logit_scale` in the
metadata is what similarities are multiplied by.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from acclimate.core.errors import WeightsError
from acclimate.core.tensors import Undrawn, all_finite
from acclimate.core.text import listed
from acclimate.learn.models.backbones import Backbone, Preprocess
from acclimate.learn.models.predictors import LinearHead, Predictor

VECTORS, PROJECTION, CLASSES, SCALE = "class_vectors", "projection", "classes", "logit_scale"
USUAL_SCALE = "100"  # CLIP's, to which training clips it


class ClassVectors(NamedTuple):
    """`rows` [C, d] in the order of the classes; `projection` [d, f]."""

    rows: Tensor
    projection: Tensor | None
    scale: float


@final
class UnitRows(nn.Module):
    """[b, f] -> [b, d], rows of length 1, after a projection where there is one."""

    def __init__(self, width: int, projected: int = 0) -> None:
        super().__init__()
        layer = nn.Linear(width, projected, bias=False) if projected else nn.Identity()
        self.projection: nn.Module = layer

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.projection(x), dim=1)


def unit_predictor(width: int, projected: int, classes: int) -> Predictor:
    """A linear head on features of length 1, whose weights are yet to be filled in."""
    preprocess = Preprocess((0.0,) * width, (1.0,) * width, 0)
    backbone = Backbone(UnitRows(width, projected), projected or width, preprocess)
    return Predictor(backbone, LinearHead(backbone.features, classes)).eval()


def read_class_vectors(path: str, classes: Sequence[str]) -> ClassVectors:
    """The vectors of `classes` in a file, which may have others too."""
    if not Path(path).is_file():
        raise WeightsError(f"there is no file of class vectors {path}; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            facts, stored = file.metadata() or {}, file.keys()
            vectors = file.get_tensor(VECTORS).float()
            projection = file.get_tensor(PROJECTION).float() if PROJECTION in stored else None
        names, scale = json.loads(facts[CLASSES]), float(facts.get(SCALE, USUAL_SCALE))
        places = {name: place for place, name in enumerate(names)}
        known = [own for own in (vectors, projection) if own is not None]
        whole = vectors.ndim == 2 and len(names) == len(places) == len(vectors) and scale > 0
        if not whole or not all_finite(known) or not vectors.any(1).all():
            raise ValueError("not as described")
    except Exception as error:  # what a broken or hostile file raises is not one family
        raise WeightsError(
            f"{path} is no file of class vectors; give a safetensors file with a tensor "
            f"'{VECTORS}' [classes, d] and the classes' names under '{CLASSES}' in its metadata"
        ) from error
    missing = [name for name in classes if name not in places]
    if missing:
        named = listed([f"'{name}'" for name in missing])
        raise WeightsError(
            f"{path} has no vector of class {named}; name classes there as the data do"
        )
    return ClassVectors(vectors[[places[name] for name in classes]], projection, scale)


@torch.no_grad()
def class_vector_head(path: str, classes: Sequence[str], width: int) -> Predictor:
    """The zero-shot head on features [b, width]: scale · cos(P x, vector) for each class."""
    rows, projection, scale = read_class_vectors(path, classes)
    wanted = [rows.shape[1], width]
    found = [width, width] if projection is None else list(projection.shape)
    if found != wanted:
        has = "no projection" if projection is None else f"a projection {found}"
        raise WeightsError(
            f"{path} has vectors of {wanted[0]} numbers and {has}, and the backbone gives {width} "
            f"features; give a file made for this backbone, with '{PROJECTION}' {wanted}"
        )
    with Undrawn():
        made = unit_predictor(width, 0 if projection is None else wanted[0], len(classes))
    if projection is not None:
        made.backbone.body.get_submodule("projection").load_state_dict({"weight": projection})
    return made.with_last(scale * F.normalize(rows, dim=1), torch.zeros(len(rows)))
