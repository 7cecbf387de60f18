"""Small pictures of every format that is read, and some that claim to be large."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from fuzz.mutations import Random


def _picture(mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (18, 22, 3)).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(pixels).convert(mode)


def _encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    _picture(mode).save(file, kind, **options)
    return file.getvalue()


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


PICTURES = {
    "jpg": _encoded("JPEG"),
    "jpg progressive": _encoded("JPEG", progressive=True),
    "jpg turned": _encoded("JPEG", exif=_turned()),
    "jpg grey": _encoded("JPEG", "L"),
    "jpg print": _encoded("JPEG", "CMYK"),
    "png": _encoded("PNG"),
    "png palette": _encoded("PNG", "P"),
    "png clear": _encoded("PNG", "RGBA"),
    "png deep": _encoded("PNG", "I;16"),
    "png turned": _encoded("PNG", exif=_turned()),
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
        return _png(width, height)
    if kind == 1:
        small = min(width, 65535), min(height, 65535)
        return b"GIF89a" + struct.pack("<HH", *small) + PICTURES["gif"][10:]
    bmp = bytearray(PICTURES["bmp"])
    struct.pack_into("<ii", bmp, 18, min(width, 2**31 - 1), min(height, 2**31 - 1))
    return bytes(bmp)


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size)
    return start + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
