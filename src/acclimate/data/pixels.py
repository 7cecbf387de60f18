"""From an image to the uint8 square that networks see, as fast as one thread can.

Plain JPEGs go past Pillow: libjpeg-turbo decodes them at DCT scale without the interpreter lock.
What is plain is decided by the headers: 8 bits, grey or three colours, baseline or progressive,
whole. Pillow decodes everything else, and whatever libjpeg-turbo so much as warns about, or says
why it cannot be decoded.

Pixels are those of `images.load` to within one level of 255: libjpeg-turbo decodes to the very
same ones (Pillow has it inside), and torch's vectorised resizing rounds its weights to fewer bits
than Pillow's, which takes three to five times as long.
"""

import os
import struct
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from acclimate.core.errors import ImageError
from acclimate.data.images import MAX_PIXELS, as_rgb, check_scans, load, opened, orientation

# Where torch has no kernel for 8-bit pixels, Pillow is the faster one.
VECTORISED = torch.backends.cpu.get_cpu_capability().startswith("AVX")

_SCALES = (8, 4, 2, 1)  # those that Pillow uses; libjpeg-turbo has more, which give other pixels
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive, all Huffman
_PASSED = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # tables, comments, applications' own
_START = b"\xff\xd8\xff"
_MOST_BYTES = 256 << 20  # of a JPEG that is read whole
_SCAN, _EXIF, _ADOBE = 0xDA, 0xE1, 0xEE

try:
    DECODER: Any = import_module("simplejpeg").decode_jpeg
except ImportError:  # Pillow decodes all
    DECODER = None


def read_pixels(image: object, size: int, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """uint8 [3,size,size] of whatever `images.as_rgb` takes, or an `ImageError`."""
    if not VECTORISED:
        return load(image, size, max_pixels=max_pixels)
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
            start = file.read(len(_START))
            if start != _START or os.fstat(file.fileno()).st_size > _MOST_BYTES:
                return None
            return start + file.read()
        except OSError as error:
            raise ImageError(f"cannot be read ({error.strerror})") from error


class Header(NamedTuple):
    width: int
    height: int
    exif: bytes | None


def decode_plain(data: bytes, *, max_pixels: int, hint: int) -> np.ndarray | None:
    """uint8 [h,w,3], upright, the pixels that `images.decode` gives; None if Pillow is to judge."""
    if DECODER is None or not data.startswith(_START):
        return None
    header = plain_header(data)
    if header is None or not 0 < header.width * header.height <= max_pixels:
        return None
    fits = min(header.width // hint, header.height // hint)
    scale = next((scale for scale in _SCALES if fits >= scale), 1)
    check_scans(data, header.width, header.height)
    least = {"min_height": -(-header.height // scale), "min_width": -(-header.width // scale)}
    try:
        pixels = DECODER(data, "RGB", **(least if scale > 1 else {}), strict=True)
    except Exception:  # a warning of libjpeg-turbo too: it decodes what is damaged, half grey
        return None
    turn = _TURNED.get(orientation(header.exif))
    return pixels if turn is None else turn(pixels)


def plain_header(data: bytes) -> Header | None:
    """From the segments before the first scan; None where one of them is not of a plain JPEG."""
    place, frame, exif = 2, None, None
    try:
        while True:
            mark, kind, length = struct.unpack_from(">BBH", data, place)
            if mark != 0xFF or length < 2:
                return None
            if kind == _SCAN:
                return None if frame is None else Header(*frame, exif)
            body = place + 4
            if kind in _FRAMES:
                bits, height, width, colours = struct.unpack_from(">BHHB", data, body)
                if bits != 8 or colours not in (1, 3) or frame is not None:
                    return None
                frame = width, height
            elif kind not in _PASSED:
                return None
            elif kind == _EXIF and data.startswith(b"Exif\0\0", body):
                part = data[body : place + 2 + length]
                exif = part if exif is None else exif + part[6:]
            elif kind == _ADOBE and data.startswith(b"Adobe", body) and data[body + 11] != 1:
                return None  # not the usual YCbCr
            place += 2 + length
    except (struct.error, IndexError):  # cut short
        return None


_TURNED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 3),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: np.rot90(a, 1),
}
