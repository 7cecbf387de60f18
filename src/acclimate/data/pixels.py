"""From an image to the uint8 square that networks see, as fast as one thread can.

Pixels are those of `images.as_pixels` to within one level of 255: libjpeg-turbo decodes to the very
same ones (Pillow has it inside), and torch's vectorised resizing rounds its weights to fewer bits
than Pillow's, which takes three to five times as long.
"""

import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from acclimate.core.errors import ImageError
from acclimate.data.effort import one_image
from acclimate.data.images import MAX_PIXELS, as_pixels, as_rgb, opened
from acclimate.data.jpeg import START, decode_plain

# Where torch has no kernel for 8-bit pixels, Pillow is the faster one.
VECTORISED = torch.backends.cpu.get_cpu_capability().startswith("AVX")

_MOST_BYTES = 256 << 20  # of a JPEG that is read whole


def read_pixels(image: object, size: int, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """uint8 [3,size,size] of whatever `images.as_rgb` takes, or an `ImageError`."""
    if not VECTORISED:
        return as_pixels(image, size, max_pixels=max_pixels)
    with one_image():
        data = _jpeg_data(image)
        if data is not None:
            plain = decode_plain(data, max_pixels=max_pixels, hint=size)
            if plain is not None:
                return squashed(plain, size)
            image = data
        return squashed(np.asarray(as_rgb(image, max_pixels=max_pixels, hint=size)), size)


def squashed(pixels: np.ndarray, size: int) -> np.ndarray:
    """uint8 [h,w,3] -> [3,size,size]: the whole image, bilinear and antialiased."""
    if pixels.shape[:2] == (size, size):
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    planes = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).permute(2, 0, 1)
    small = F.interpolate(
        planes[None], (size, size), mode="bilinear", align_corners=False, antialias=True
    )
    return np.ascontiguousarray(small[0].numpy())


def _jpeg_data(image: object) -> bytes | None:
    """All of a JPEG; None of what begins as none, or is too large to be read whole."""
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str | Path):
        return None
    with opened(Path(image)) as file:
        try:
            start = file.read(len(START))
            if start != START or os.fstat(file.fileno()).st_size > _MOST_BYTES:
                return None
            return start + file.read()
        except OSError as error:
            raise ImageError(f"cannot be read ({error.strerror})") from error
