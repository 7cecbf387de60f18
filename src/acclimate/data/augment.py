"""DomainBed's training augmentation, batched on the device, with randomness per sample.

The random numbers are drawn on the CPU for the whole global batch and then sliced, so that a
sample looks the same whichever process, and whichever share of the batch, handles it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from acclimate.data.source import sent

SCALE = (0.7, 1.0)
RATIO = (3 / 4, 4 / 3)
TRIES = 10
FLIP = 0.5
JITTER = 0.3
GREY = 0.1

# On a CPU a batch goes through in parts whose intermediate results stay in the cache, which is
# about twice as fast; 16 images of 224 pixels. On a GPU parts bound the memory that they take, some
# ten times that of the images.
_CPU_PIXELS, _GPU_PIXELS = 16 * 224 * 224, 128 * 224 * 224

_BILINEAR, _BORDER = 0, 1  # the ways of `torch.grid_sampler`
_TINY = 2.0**-120  # below any difference of two channels, and not too small to be divided by

_JITTERS = ("brightness", "contrast", "saturation", "hue")
_ARRAYS = ("box", "flip", "grey", *_JITTERS)


@dataclass(frozen=True)
class Draws:
    """The random numbers for k images of `size` (height, width)."""

    size: tuple[int, int]
    order: tuple[str, ...]  # of the jitter operations, one for the whole call
    box: np.ndarray  # [k,4] top, left, height, width of the crop, whole pixels as float32
    flip: np.ndarray  # [k] bool
    grey: np.ndarray  # [k] bool
    brightness: np.ndarray  # [k] factor in float32, as are contrast and saturation
    contrast: np.ndarray
    saturation: np.ndarray
    hue: np.ndarray  # [k] in turns of the colour circle, float32

    def __len__(self) -> int:
        return len(self.flip)

    def take(self, indices: np.ndarray | Sequence[int] | slice) -> "Draws":
        """The numbers of some of the samples, in the order of `indices`."""
        return Draws(self.size, self.order, *(getattr(self, name)[indices] for name in _ARRAYS))

    def packed(self) -> np.ndarray:
        """float32 [11,k], to be sent in one piece: what `crop_and_flip` takes, the factors of
        _JITTERS (hue in sixths of a turn), and whether grey."""
        top, left, tall, wide = self.box.T
        mirrored = np.where(self.flip, -wide, wide)
        crop = (mirrored, tall, 2 * left, 2 * top, wide, tall)
        jitter = (self.brightness, self.contrast, self.saturation, 6 * self.hue)
        return np.stack([*crop, *jitter, self.grey.astype(np.float32)])


def draw(count: int, height: int, width: int, rng: np.random.Generator) -> Draws:
    """Numbers for `count` images: crop, flip, jitter and greyscale of DomainBed's recipe."""
    box = _boxes(count, height, width, rng)
    flip = rng.random(count) < FLIP
    factors = rng.uniform(1 - JITTER, 1 + JITTER, size=(3, count))
    hue = rng.uniform(-JITTER, JITTER, size=count)
    grey = rng.random(count) < GREY
    order = tuple(_JITTERS[i] for i in rng.permutation(len(_JITTERS)))
    jitters = (*factors.astype(np.float32), hue.astype(np.float32))
    return Draws((height, width), order, box.astype(np.float32), flip, grey, *jitters)


def _boxes(count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """[count,4] top, left, height, width: the first of ten tries that fits, else the centre."""
    area = height * width * rng.uniform(*SCALE, size=(count, TRIES))
    ratio = np.exp(rng.uniform(np.log(RATIO[0]), np.log(RATIO[1]), size=(count, TRIES)))
    place = rng.random((2, count))
    tall = np.rint(np.sqrt(area / ratio))
    wide = np.rint(np.sqrt(area * ratio))
    fits = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    first = np.arange(count), fits.argmax(axis=1)
    top = np.floor(place[0] * (height - tall[first] + 1))
    left = np.floor(place[1] * (width - wide[first] + 1))
    tried = np.stack([top, left, tall[first], wide[first]], axis=1)
    centre_tall = min(height, round(width / RATIO[0]))
    centre_wide = min(width, round(height * RATIO[1]))
    centre = [(height - centre_tall) // 2, (width - centre_wide) // 2, centre_tall, centre_wide]
    return np.where(fits.any(axis=1, keepdims=True), tried, centre)


@torch.no_grad()
def augment(images: Tensor, draws: Draws) -> Tensor:
    """[b,3,h,w] floats in 0..1 -> the same shape and range; `images` is left as it is."""
    if tuple(images.shape[2:]) != draws.size or len(images) != len(draws):
        raise ValueError(f"numbers for {len(draws)} of {draws.size}, images {list(images.shape)}")
    values, order = sent(torch.from_numpy(draws.packed()), images.device), draws.order
    height, width = images.shape[2:]
    on_cpu = images.device.type == "cpu"
    chunk = max(1, (_CPU_PIXELS if on_cpu else _GPU_PIXELS) // (height * width))
    if not on_cpu and len(images) <= chunk:
        return _augment(images, values, order)
    out = torch.empty_like(images)
    for start in range(0, len(images), chunk):
        part = slice(start, start + chunk)
        out[part] = _augment(images[part], values[:, part], order)
    return out


def _augment(images: Tensor, values: Tensor, order: Sequence[str]) -> Tensor:
    out = crop_and_flip(images, values[:6])
    *factors, grey = values[6:, :, None, None, None].unbind()
    for name in order:
        out = _OPERATIONS[name](out, factors[_JITTERS.index(name)])
    return torch.lerp(out, luminance(out), grey)  # by 0 or 1: the one or the other


def crop_and_flip(images: Tensor, crop: Tensor) -> Tensor:
    """Each box blown up to the whole image, then mirrored: [b,c,h,w],[6,b] -> [b,c,h,w].

    The sampling grid is separable, so it is written out rather than made by `affine_grid`, whose
    matrix product may run in TF32 and then misses pixels by a tenth.
    """
    height, width = images.shape[2:]
    axes = crop.view(3, 2, len(images), 1, 1)
    x, y = _source_places(width, axes[:, 0]), _source_places(height, axes[:, 1])
    grid = torch.stack(torch.broadcast_tensors(x, y.transpose(1, 2)), dim=-1)  # type: ignore[no-untyped-call]
    # As F.grid_sample, whose checks are written in Python.
    return torch.grid_sampler(images, grid.to(images.dtype), _BILINEAR, _BORDER, False)


def _source_places(side: int, axes: Tensor) -> Tensor:
    """Where along an axis an image of `side` pixels takes them from, -1 and 1 being the edges:
    [3,b,1,1] -> [b,1,side]. The factor is the extent, negative where it is mirrored."""
    factor, twice_start, extent = axes.unbind()
    centres = _pixel_centres(side, axes.device)
    return (factor * centres).add_(twice_start).add_(extent).div_(side).sub_(1)


@cache
def _pixel_centres(side: int, device: torch.device) -> Tensor:
    """Centres of the pixels of an image whose edges are at -1 and 1: [side]"""
    return (torch.arange(side, device=device) * 2 + 1) / side - 1


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """[b,3,h,w],[b,1,1,1] -> [b,3,h,w]; 0 is black."""
    return (images * factor).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """[b,3,h,w],[b,1,1,1] -> [b,3,h,w]; 0 is each image's own mean grey."""
    # Rows first, then their means: a single reduction is split among threads by the size of the
    # batch, and the last bits of a sample's mean would depend on its company.
    mean = luminance(images).mean(dim=3, keepdim=True).mean(dim=2, keepdim=True)
    return torch.lerp(mean, images, factor).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """[b,3,h,w],[b,1,1,1] -> [b,3,h,w]; 0 is greyscale."""
    return torch.lerp(luminance(images), images, factor).clamp_(0, 1)


def adjust_hue(images: Tensor, sixths: Tensor) -> Tensor:
    """[b,3,h,w],[b,1,1,1] -> [b,3,h,w]: hue moved round the colour circle, by so many sixths of it;
    value and saturation stay."""
    lowest, chroma, hue = _hexcone(images)
    moved = hue.add_(sixths).remainder_(6)
    peak, slope, height = _trapezia(images.device)
    share = (moved - peak).abs_().mul_(slope).add_(height)
    return share.clamp_(0, 1).mul_(chroma).add_(lowest)


@cache
def _trapezia(device: torch.device) -> tuple[Tensor, ...]:
    """How much of the chroma each channel has at hue h, the hexcone's trapezia: red |h − 3| − 1,
    green 2 − |h − 2|, blue 2 − |h − 4|, each clamped to 0..1. Three of [3,1,1]"""
    numbers = [[3.0, 2.0, 4.0], [1.0, -1.0, -1.0], [-1.0, 2.0, 2.0]]
    return torch.tensor(numbers, device=device).view(3, 3, 1, 1).unbind()


def luminance(images: Tensor) -> Tensor:
    """[b,3,h,w] -> [b,1,h,w]: ITU-R 601 weights, rounded as torchvision rounds them."""
    red, green, blue = _channels(images)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _hexcone(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[b,3,h,w] -> lowest channel, chroma, and hue in -1..5 (0 for greys), [b,1,h,w] each."""
    red, green, blue = _channels(images)
    value, lowest = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - lowest
    per_chroma = chroma.clamp_min(_TINY).reciprocal_()  # a grey has no differences to multiply
    hue = torch.where(
        value == red,
        (green - blue).mul_(per_chroma),
        torch.where(
            value == green,
            (blue - red).mul_(per_chroma).add_(2),
            (red - green).mul_(per_chroma).add_(4),
        ),
    )
    return lowest, chroma, hue


def _channels(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = images.chunk(3, 1)
    return red, green, blue


_OPERATIONS = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
