"""DomainBed's training augmentation, batched on the device, with randomness per sample.

The random numbers are drawn on the CPU for the whole global batch and then sliced, so that a
sample looks the same whichever process, and whichever share of the batch, handles it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SCALE = (0.7, 1.0)
RATIO = (3 / 4, 4 / 3)
TRIES = 10
FLIP = 0.5
JITTER = 0.3
GREY = 0.1

# On a CPU a batch goes through in parts whose intermediate results stay in the cache, which is
# about twice as fast; 16 images of 224 pixels.
_CPU_PIXELS = 16 * 224 * 224

_TENSORS = ("box", "flip", "brightness", "contrast", "saturation", "hue", "grey")
_JITTERS = ("brightness", "contrast", "saturation", "hue")


@dataclass(frozen=True)
class Draws:
    """The random numbers for k images of `size` (height, width)."""

    size: tuple[int, int]
    order: tuple[str, ...]  # of the jitter operations, one for the whole call
    box: Tensor  # [k,4] top, left, height, width of the crop, whole pixels as float32
    flip: Tensor  # [k] bool
    brightness: Tensor  # [k] factor, as are contrast and saturation
    contrast: Tensor
    saturation: Tensor
    hue: Tensor  # [k] in turns of the colour circle
    grey: Tensor  # [k] bool

    def __len__(self) -> int:
        return len(self.flip)

    def take(self, indices: Tensor | np.ndarray | Sequence[int] | slice) -> "Draws":
        """The numbers of some of the samples, in the order of `indices`."""
        at = indices if isinstance(indices, slice) else torch.as_tensor(indices)
        return Draws(self.size, self.order, *(getattr(self, name)[at] for name in _TENSORS))

    def to(self, device: torch.device | str) -> "Draws":
        moved = (getattr(self, name).to(device, non_blocking=True) for name in _TENSORS)
        return Draws(self.size, self.order, *moved)


def draw(count: int, height: int, width: int, rng: np.random.Generator) -> Draws:
    """Numbers for `count` images: crop, flip, jitter and greyscale of DomainBed's recipe."""
    box = _boxes(count, height, width, rng)
    flip = rng.random(count) < FLIP
    factors = rng.uniform(1 - JITTER, 1 + JITTER, size=(3, count))
    hue = rng.uniform(-JITTER, JITTER, size=count)
    grey = rng.random(count) < GREY
    order = tuple(_JITTERS[i] for i in rng.permutation(len(_JITTERS)))
    numbers = map(torch.from_numpy, np.stack([*factors, hue]).astype(np.float32))
    brightness, contrast, saturation, turns = numbers
    return Draws(
        size=(height, width),
        order=order,
        box=torch.from_numpy(box.astype(np.float32)),
        flip=torch.from_numpy(flip),
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=turns,
        grey=torch.from_numpy(grey),
    )


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
        raise ValueError(f"draws for {len(draws)} of {draws.size}, images {list(images.shape)}")
    if images.device.type != "cpu":
        return _augment(images, draws)
    out = torch.empty_like(images)
    height, width = draws.size
    chunk = max(1, _CPU_PIXELS // (height * width))
    for start in range(0, len(images), chunk):
        part = slice(start, start + chunk)
        out[part] = _augment(images[part], draws.take(part))
    return out


def _augment(images: Tensor, draws: Draws) -> Tensor:
    out = crop_and_flip(images, draws.box, draws.flip)
    for name in draws.order:
        out = _OPERATIONS[name](out, getattr(draws, name))
    return torch.where(_each(draws.grey), luminance(out), out)


def crop_and_flip(images: Tensor, box: Tensor, flip: Tensor) -> Tensor:
    """Each box blown up to the whole image, then mirrored: [b,c,h,w],[b,4],[b] -> [b,c,h,w].

    The sampling grid is separable, so it is written out rather than made by `affine_grid`, whose
    matrix product may run in TF32 and then misses pixels by a tenth.
    """
    height, width = images.shape[2:]
    top, left, tall, wide = box[:, :, None].unbind(1)  # [b,1] each
    # Pixel centres of the output in -1..1, where -1 and 1 are the outer edges of the image.
    rows = (torch.arange(height, device=box.device) * 2 + 1) / height - 1
    columns = (torch.arange(width, device=box.device) * 2 + 1) / width - 1
    mirrored = torch.where(flip[:, None], -columns, columns)  # [b,w]
    x = (wide * mirrored + 2 * left + wide) / width - 1  # [b,w]
    y = (tall * rows + 2 * top + tall) / height - 1  # [b,h]
    shape = (len(images), height, width)
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=-1)
    return F.grid_sample(
        images, grid.to(images.dtype), mode="bilinear", padding_mode="border", align_corners=False
    )


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """[b,3,h,w],[b] -> [b,3,h,w]; 0 is black."""
    return (images * _each(factor)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """[b,3,h,w],[b] -> [b,3,h,w]; 0 is each image's own mean grey."""
    # Rows first, then their means: a single reduction is split among threads by the size of the
    # batch, and the last bits of a sample's mean would depend on its company.
    mean = luminance(images).mean(dim=3, keepdim=True).mean(dim=2, keepdim=True)
    return torch.lerp(mean, images, _each(factor)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """[b,3,h,w],[b] -> [b,3,h,w]; 0 is greyscale."""
    return torch.lerp(luminance(images), images, _each(factor)).clamp_(0, 1)


def adjust_hue(images: Tensor, turns: Tensor) -> Tensor:
    """[b,3,h,w],[b] -> [b,3,h,w]: hue moved round the colour circle; value and saturation stay."""
    lowest, chroma, hue = _hexcone(images)
    moved = hue.add_(6 * _each(turns)).remainder_(6)
    # How much of the chroma each channel has at hue h, the hexcone's trapezia:
    # red |h − 3| − 1, green 2 − |h − 2|, blue 2 − |h − 4|, each clamped to 0..1.
    share = torch.cat(
        [
            (moved - 3).abs_().sub_(1),
            (moved - 2).abs_().neg_().add_(2),
            (moved - 4).abs_().neg_().add_(2),
        ],
        dim=1,
    )
    return share.clamp_(0, 1).mul_(chroma).add_(lowest)


def luminance(images: Tensor) -> Tensor:
    """[b,3,h,w] -> [b,1,h,w]: ITU-R 601 weights, rounded as torchvision rounds them."""
    red, green, blue = _channels(images)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _hexcone(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[b,3,h,w] -> lowest channel, chroma, and hue in -1..5 (0 for greys), [b,1,h,w] each."""
    red, green, blue = _channels(images)
    value = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    chroma = value - lowest
    per_chroma = torch.where(chroma == 0, 1, chroma).reciprocal_()  # a grey: 0 differences times 1
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
    return images[:, 0:1], images[:, 1:2], images[:, 2:3]


def _each(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]


_OPERATIONS = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
