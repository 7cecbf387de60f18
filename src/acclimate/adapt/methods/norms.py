"""Normalisation layers: which a model has, and batch-norm statistics of a set of images."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from acclimate.core.errors import ConfigError
from acclimate.learn.images import Images

_KINDS: dict[str, type[nn.Module]] = {
    "batch norm": _BatchNorm,
    "group norm": nn.GroupNorm,
    "layer norm": nn.LayerNorm,
    "instance norm": _InstanceNorm,
    "RMS norm": nn.RMSNorm,
}


def norm_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Normalisation layers by their names in the network."""
    kinds = tuple(_KINDS.values())
    return {name: part for name, part in network.named_modules() if isinstance(part, kinds)}


def batch_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norms that keep statistics."""
    return {
        name: part
        for name, part in norm_layers(network).items()
        if isinstance(part, _BatchNorm) and part.running_mean is not None
    }


def without_norms(method: str, works_on: str, network: nn.Module) -> ConfigError:
    """The error of a method whose layers the model lacks."""
    layers = norm_layers(network).values()
    names = [name for name, kind in _KINDS.items() if any(isinstance(p, kind) for p in layers)]
    has = f"only {' and '.join(names)}" if names else "no normalisation layer"
    use = "prior, t3a or tent" if names and method == "bn" else "prior or t3a"
    return ConfigError(
        f"method '{method}' works on {works_on}, and this model has {has}; use {use}"
    )


def set_batch_mode(network: nn.Module, *, on: bool) -> None:
    """Normalise by each batch's own statistics, or by the stored ones; frozen layers too."""
    for layer in batch_norms(network).values():
        layer.training = on


@torch.no_grad()
def image_statistics(network: nn.Module, images: Images) -> dict[str, Tensor]:
    """Mean and (unbiased) variance of what each batch norm sees of `images`, by buffer name.

    One pass, in which every batch is normalised by itself. Up to one batch of images the numbers
    are those of all images at every layer; beyond, the batches' moments are pooled exactly, so that
    uneven batches and differences between them count. Overwrites the buffers of `network`.
    """
    if len(images) < 2:
        raise ConfigError("batch-norm statistics need 2 images or more, not 1; add images")
    layers = batch_norms(network)
    moments = {name: _Moments() for name in layers}
    hooks = [layer.register_forward_pre_hook(moments[name].see) for name, layer in layers.items()]
    set_batch_mode(network, on=True)
    try:
        for x in images.batches():
            network(x)
    finally:
        set_batch_mode(network, on=False)
        for hook in hooks:
            hook.remove()
    return {
        f"{name}.{buffer}": value.float()
        for name, seen in moments.items()
        for buffer, value in (("running_mean", seen.mean), ("running_var", seen.variance))
    }


class _Moments:
    """Pooled mean and variance per channel of inputs [b, c, ...], in float64 on the CPU."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros(())

    def see(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].float().transpose(0, 1).flatten(1)  # [c, values]
        variance, mean = (t.cpu().double() for t in torch.var_mean(rows, 1, correction=0))
        count = rows.shape[1]
        total = self.count + count
        gap = mean - self.mean
        self.squares = self.squares + variance * count + gap.square() * (self.count * count / total)
        self.mean = self.mean + gap * (count / total)
        self.count = total

    @property
    def variance(self) -> Tensor:
        return self.squares / max(self.count - 1, 1)
