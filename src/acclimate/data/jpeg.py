"""Plain JPEGs past Pillow: libjpeg-turbo at DCT scale, without the interpreter lock.

What is plain is decided by the headers: 8 bits, grey or three colours, baseline or progressive,
whole. Of everything else, and of whatever libjpeg-turbo so much as warns about, nothing is said
here: Pillow decodes it or says why it cannot be.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from acclimate.data.effort import check_scans, claim
from acclimate.data.images import orientation

_SCALES = (8, 4, 2, 1)  # those that Pillow uses; libjpeg-turbo has more, which give other pixels
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive, all Huffman
_PASSED = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # tables, comments, applications' own
START = b"\xff\xd8\xff"
_SCAN, _EXIF, _ADOBE, _PROGRESSIVE = 0xDA, 0xE1, 0xEE, 0xC2


def _decoder() -> Callable[..., np.ndarray] | None:
    try:
        module: Any = import_module("simplejpeg")
    except ImportError:
        return None
    decoder: Callable[..., np.ndarray] = module.decode_jpeg
    return decoder


DECODER = _decoder()


@dataclass(frozen=True)
class Header:
    width: int
    height: int
    exif: bytes | None
    progressive: bool


def decode_plain(data: bytes, *, max_pixels: int, hint: int) -> np.ndarray | None:
    """uint8 [h,w,3], upright, the pixels that `images.decode` gives; None: Pillow shall judge."""
    if DECODER is None or not data.startswith(START):
        return None
    header = plain_header(data)
    if header is None or not 0 < header.width * header.height <= max_pixels:
        return None
    fits = min(header.width // hint, header.height // hint)
    scale = next((scale for scale in _SCALES if fits >= scale), 1)
    check_scans(data, header.width, header.height)
    # All coefficients of a progressive one are held, at whatever scale.
    claim(header.width * header.height // (1 if header.progressive else scale**2))
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
                return None if frame is None else Header(frame[1], frame[0], exif, frame[2])
            body = place + 4
            if kind in _FRAMES:
                bits, height, width, colours = struct.unpack_from(">BHHB", data, body)
                if bits != 8 or colours not in (1, 3) or frame is not None:
                    return None
                frame = height, width, kind == _PROGRESSIVE
            elif kind not in _PASSED:
                return None
            elif kind == _EXIF and data.startswith(b"Exif\0\0", body):
                part = data[body : place + 2 + length]
                exif = part if exif is None else exif + part[6:]
            elif kind == _EXIF and b"Orientation" in data[body : place + 2 + length]:
                return None  # in XMP, which may have the say
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
