"""Small pictures of every format that is read, and some that claim to be large."""

import struct
from typing import Any

import numpy as np
from PIL import Image

from fixtures.pictures import encoded, png, turned
from fuzz.mutations import Random


def _picture(mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (18, 22, 3)).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(pixels).convert(mode)


def _encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    return encoded(_picture(mode), kind, **options)


PICTURES = {
    "jpg": _encoded("JPEG"),
    "jpg progressive": _encoded("JPEG", progressive=True),
    "jpg turned": _encoded("JPEG", exif=turned(6)),
    "jpg grey": _encoded("JPEG", "L"),
    "jpg print": _encoded("JPEG", "CMYK"),
    "png": _encoded("PNG"),
    "png palette": _encoded("PNG", "P"),
    "png clear": _encoded("PNG", "RGBA"),
    "png deep": _encoded("PNG", "I;16"),
    "png turned": _encoded("PNG", exif=turned(6)),
    "gif": _encoded("GIF", "P", save_all=True, append_images=[_picture("P")]),
    "bmp": _encoded("BMP"),
    "tif": _encoded("TIFF"),
    "tif packed": _encoded("TIFF", compression="tiff_lzw"),
    "tif float": _encoded("TIFF", "F"),
    "webp": _encoded("WEBP"),
    "webp lossless": _encoded("WEBP", lossless=True),
}


def bombs(rng: Random) -> bytes:
    """A picture that says of itself that it is huge."""
    width, height = (int(2 ** rng.uniform(10, 31)) for _ in range(2))
    kind = rng.integers(3)
    if kind == 0:
        return png(width, height, colour=2, data=bytes(1000))
    if kind == 1:
        small = min(width, 65535), min(height, 65535)
        return b"GIF89a" + struct.pack("<HH", *small) + PICTURES["gif"][10:]
    bmp = bytearray(PICTURES["bmp"])
    struct.pack_into("<ii", bmp, 18, min(width, 2**31 - 1), min(height, 2**31 - 1))
    return bytes(bmp)
