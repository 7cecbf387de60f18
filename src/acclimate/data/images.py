"""Any image, from anywhere, to upright 8-bit RGB; or an `ImageError` with a short reason.

`decode` gives a Pillow image, `read_pixels` the uint8 square that networks see, as fast as one
thread can: libjpeg-turbo decodes plain JPEGs at DCT scale without the interpreter lock, and torch
resizes. Pillow judges every header, and decodes whatever is not plain or so much as warned about.
"""

import ctypes
import logging
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from acclimate.config import DataConfig
from acclimate.core.errors import ImageError
from acclimate.core.files import odd_kind
from acclimate.core.text import reason_of
from acclimate.data.readers import HEADER, is_dicom

MAX_PIXELS = DataConfig.max_pixels
MOST_SCANS = 16  # of a progressive JPEG, whatever its size; encoders write ten
MOST_WORK = 1_000_000_000  # pixels times scans, beyond: some ten seconds
_FLOAT_SLACK = 1e-4  # resampling overshoots 0..1 by rounding
_SCALES = (8, 4, 2)  # those that Pillow uses; libjpeg-turbo has more, which give other pixels
_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}


def _hush_decoders() -> None:
    """Pictures that cannot be read are told of by an error; what libraries say beside it, on a
    stream that is not theirs, is not wanted."""
    for name in ("PIL", "pydicom"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with suppress(OSError, AttributeError):  # elsewhere libtiff is found otherwise, and may speak
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
        tiff = ctypes.CDLL(next((name for name in maps if "libtiff" in name), None))
        tiff.TIFFSetErrorHandler(None)
        tiff.TIFFSetWarningHandler(None)


_hush_decoders()

try:
    DECODER: Any = import_module("simplejpeg").decode_jpeg
except ImportError:  # Pillow decodes all
    DECODER = None


class _Jpeg(JpegImagePlugin.JpegImageFile):
    # Pillow parses the whole EXIF block on opening, only to find the resolution, and warns about
    # each damaged tag. We need the orientation alone, which `orientation` reads by itself.
    def getexif(self) -> Image.Exif:
        return Image.Exif()


# The plugins are opened directly: `Image.open` would first warn about, or refuse, sizes by a
# process-wide limit that belongs to the user, and would try some forty formats more.
_TIFF = TiffImagePlugin.TiffImageFile
_FORMATS: tuple[tuple[bytes, type[ImageFile.ImageFile]], ...] = (
    (b"\xff\xd8\xff", _Jpeg),
    (b"\x89PNG\r\n\x1a\n", PngImagePlugin.PngImageFile),
    (b"RIFF", WebPImagePlugin.WebPImageFile),
    (b"GIF87a", GifImagePlugin.GifImageFile),
    (b"GIF89a", GifImagePlugin.GifImageFile),
    (b"BM", BmpImagePlugin.BmpImageFile),
    *((prefix, _TIFF) for prefix in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
)

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(
    source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS, hint: int | None = None
) -> Image.Image:
    """The image (first frame) as upright RGB, transparency over white.

    `hint` is the size the caller will shrink to: a JPEG is then decoded at a half, quarter or
    eighth, whichever still has `hint` pixels on each side.
    """
    with _open_image(source, max_pixels) as image:
        return _draft(image, hint)


def read_pixels(image: object, size: int, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """uint8 [3,size,size] of whatever a user holds, squashed to a square as DomainBed does.

    A path, encoded bytes, a PIL image, an array ([h,w], [h,w,3], [3,h,w]; [3,w,3] is read as
    three rows) or a tensor ([3,h,w], [h,w]); arrays and tensors hold uint8, or floats in 0..1.
    """
    if not isinstance(image, str | Path | bytes):
        return squash(np.asarray(_as_rgb(image, max_pixels)), size)
    with _open_image(image, max_pixels) as encoded:
        pixels = decode_plain(encoded, size)
        return squash(np.asarray(_draft(encoded, size)) if pixels is None else pixels, size)


def _as_rgb(image: object, max_pixels: int) -> Image.Image:
    if isinstance(image, Image.Image):
        _check_size(image.size, max_pixels)
        with _pillow_errors():  # a lazily opened file is read only here
            return _upright_rgb(image)
    if isinstance(image, np.ndarray):
        return _from_array(image, rows_first=True)
    torch = sys.modules.get("torch")  # who holds a tensor has imported it; we need not
    if torch is not None and isinstance(image, torch.Tensor):
        tensor: Any = image.detach().cpu()
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return _from_array(array, rows_first=False)
    raise ImageError(
        f"{type(image).__name__} is not an image; "
        "give a path, encoded bytes, a PIL image, a numpy array or a torch tensor"
    )


def squash(pixels: np.ndarray, size: int) -> np.ndarray:
    """uint8 [h,w,3] -> [3,size,size]: the whole image, bilinear over the shrunken pixel's whole
    footprint (antialiased), which most pretrained weights saw; plain bilinear would alias.

    torch's kernel agrees with Pillow's to one level of 255, in a fraction of the time.
    """
    import torch
    from torch.nn import functional

    if pixels.shape[:2] == (size, size):
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    planes = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).permute(2, 0, 1)
    small = functional.interpolate(
        planes[None], (size, size), mode="bilinear", align_corners=False, antialias=True
    )
    return np.ascontiguousarray(small[0].numpy())


def decode_plain(image: Image.Image, hint: int) -> np.ndarray | None:
    """uint8 [h,w,3], upright, the pixels that `decode` gives for an opened JPEG of 8 bits, grey or
    in the usual colours; None if Pillow is to decode."""
    plain = image.mode in ("L", "RGB") and image.info.get("adobe_transform", 1) == 1
    if DECODER is None or not isinstance(image, _Jpeg) or not plain:
        return None
    width, height = image.size
    fits = min(width // hint, height // hint)
    scale = next((scale for scale in _SCALES if fits >= scale), 1)
    least = {"min_height": -(-height // scale), "min_width": -(-width // scale)}
    try:
        pixels: np.ndarray = DECODER(
            _whole(image), "RGB", **(least if scale > 1 else {}), strict=True
        )
    except Exception:  # a warning of libjpeg-turbo too: it decodes what is damaged, half grey
        return None
    turn = _TURNS.get(orientation(image.info.get("exif")))
    return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))


@contextmanager
def _open_image(source: str | Path | bytes, max_pixels: int) -> Iterator[Image.Image]:
    """The image, not yet decoded: its format is known by its first bytes, and its size is allowed.
    What goes wrong inside is an `ImageError`."""
    with _open_file(source) as file, _pillow_errors():
        header = file.read(HEADER)
        open_image = _opener(header)
        _check_size(_declared_size(header), max_pixels)
        file.seek(0)
        image = open_image(file, lambda size: _check_size(size, max_pixels))
        _check_size(image.size, max_pixels)
        if image.info.get("progressive"):
            check_scans(_whole(image), *image.size)
        yield image


def _whole(image: Any) -> bytes:
    """All of an opened image's file, which is left where its plugin reads on."""
    place = image.fp.tell()
    image.fp.seek(0)
    data: bytes = image.fp.read()
    image.fp.seek(place)
    return data


@contextmanager
def _open_file(source: str | Path | bytes) -> Iterator[IO[bytes]]:
    try:
        # A pipe could keep us waiting for ever, and a device never end.
        kind = None if isinstance(source, bytes) else odd_kind(Path(source))
        if kind is not None:
            raise ImageError(f"{kind}, not an image")
        file = BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")  # noqa: SIM115
    except FileNotFoundError as error:
        raise ImageError("no such file") from error
    except OSError as error:
        raise ImageError(f"cannot be opened ({error.strerror})") from error
    except ValueError as error:
        raise ImageError("no name of a file (it holds a NUL)") from error
    with file:
        yield file


Check = Callable[[tuple[int, int]], None]  # told a size before anything of it is unpacked


def _opener(header: bytes) -> Callable[[IO[bytes], Check], Image.Image]:
    if not header:
        raise ImageError("empty file")
    if header[4:8] == b"ftyp" and header[8:12] in _BRANDS:
        return _open_heic
    if is_dicom(header):
        return _open_dicom
    for prefix, plugin in _FORMATS:
        if header.startswith(prefix) and (prefix != b"RIFF" or header[8:12] == b"WEBP"):
            return lambda file, check: plugin(file)
    raise ImageError("not a JPEG, PNG, WebP, BMP, TIFF or GIF image")


def _open_heic(file: IO[bytes], check: Check) -> Image.Image:
    image: Image.Image = _module("HEIC", "pillow_heif").HeifImageFile(
        file
    )  # decoded when it is loaded, upright
    check(image.size)
    return image


def _open_dicom(file: IO[bytes], check: Check) -> Image.Image:
    """The first frame as its window shows it, or from its lowest value to its highest."""
    dicom = _module("DICOM", "pydicom")
    pixels = import_module("pydicom.pixels")
    data = dicom.dcmread(file)
    if "PixelData" not in data:
        raise ImageError("a DICOM file without an image in it")
    check((int(data.Columns), int(data.Rows)))
    frame = pixels.pixel_array(data, index=0)
    if frame.ndim == 3:
        return Image.fromarray(frame if frame.dtype == np.uint8 else _window(frame))
    values = pixels.apply_voi_lut(pixels.apply_modality_lut(frame, data), data)
    grey = _window(np.asarray(values, dtype=np.float64))
    return Image.fromarray(255 - grey if data.PhotometricInterpretation == "MONOCHROME1" else grey)


def _window(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    scaled: np.ndarray = np.rint((values - low) / max(high - low, 1e-12) * 255)
    return scaled.astype(np.uint8)


def _module(kind: str, package: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        remedy = f'pip install "acclimate[{kind.lower()}]"'
        raise ImageError(f"a {kind} image; to read it: {remedy}") from None


def _declared_size(header: bytes) -> tuple[int, int] | None:
    """Width and height for the two formats whose plugins allocate the canvas on opening."""
    if header.startswith(b"GIF8") and len(header) >= 10:
        return int.from_bytes(header[6:8], "little"), int.from_bytes(header[8:10], "little")
    if not header.startswith(b"RIFF") or len(header) < 30:
        return None
    kind, low = header[12:16], int.from_bytes(header[21:25], "little")
    if kind == b"VP8X":
        width, height = header[24:27], header[27:30]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    if kind == b"VP8L":
        return (low & 0x3FFF) + 1, (low >> 14 & 0x3FFF) + 1
    both = int.from_bytes(header[26:30], "little")
    return both & 0x3FFF, both >> 16 & 0x3FFF


def _check_size(size: tuple[int, int] | None, max_pixels: int) -> None:
    if size is None:
        return
    width, height = size
    if width * height == 0:
        raise ImageError(f"zero-sized ({width}x{height} pixels)")
    if width * height > max_pixels:
        raise ImageError(f"{width}x{height} pixels, over the limit of {max_pixels}")


def check_scans(data: bytes, width: int, height: int) -> None:
    """Refuse a progressive JPEG that goes over its pixels too often."""
    scans = data.count(b"\xff\xda")  # in coded data 0xFF is followed by 0: these are markers
    if scans > MOST_SCANS and scans * width * height > MOST_WORK:
        raise ImageError(f"{scans} scans of {width}x{height} pixels, too much work to decode")


@contextmanager
def _pillow_errors() -> Iterator[None]:
    """Whatever Pillow raises on damaged data, which is nearly everything, as an `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        text = reason_of(error, 160)
        reason = f"cannot be decoded ({text})"
        if "truncat" in text.lower():
            reason = "truncated"
        elif text == "not identified by this driver":  # said of a width or height of 0
            reason = "zero-sized, or its header is damaged"
        raise ImageError(reason) from error


def _draft(image: Image.Image, hint: int | None) -> Image.Image:
    if hint is not None:
        image.draft(image.mode, (hint, hint))
    return _upright_rgb(image)


def _upright_rgb(image: Image.Image) -> Image.Image:
    image.load()
    turn = _TURNS.get(orientation(image.info.get("exif")))
    rgb = _rgb(image)
    return rgb if turn is None else rgb.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        return _deep_grey(np.asarray(image), image.mode)
    if image.mode == "La":
        image = image.convert("LA")
    if not image.has_transparency_data:
        return image.convert("RGB")
    # At a hundred million pixels each of these takes 400 MB: no copy more than there must be.
    clear = image if image.mode == "RGBA" else image.convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    return image.convert("RGB")


def _deep_grey(pixels: np.ndarray, mode: str) -> Image.Image:
    """[h,w] of 16-bit integers (also held in 32 bits) or of floats in 0..1, to 8 bits.

    Pillow's own conversion clips at 255 and would turn such images white.
    """
    if mode == "F":
        return Image.fromarray(_eight_bits(pixels)).convert("RGB")
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high > 65535:
        raise ImageError(
            f"integers from {low} to {high} are outside 0..65535; save it with 8 or 16 bits"
        )
    rounded = (pixels.astype(np.int32) + 128) // 257
    return Image.fromarray(rounded.astype(np.uint8)).convert("RGB")


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    """uint8 as it is, floats in 0..1 times 255, both of any shape."""
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        raise ImageError(f"pixels are {pixels.dtype}; give uint8, or floats in 0..1")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK):  # NaN lands here too
        raise ImageError(
            f"floats from {low:.4g} to {high:.4g} are outside 0..1; "
            "divide by 255 or undo the normalisation"
        )
    scaled: np.ndarray = np.rint(np.clip(pixels, 0, 1) * 255)
    return scaled.astype(np.uint8)


def _from_array(array: np.ndarray, *, rows_first: bool) -> Image.Image:
    """[h,w], [3,h,w] and, where `rows_first`, [h,w,3]."""
    shape = list(array.shape)
    if array.ndim == 3 and rows_first and shape[2] == 3:
        planes = array
    elif array.ndim == 3 and shape[0] == 3:
        planes = array.transpose(1, 2, 0)
    elif array.ndim == 2:
        planes = array[:, :, None].repeat(3, axis=2)
    else:
        allowed = "[h,w], [h,w,3] or [3,h,w]" if rows_first else "[h,w] or [3,h,w]"
        raise ImageError(f"shape {shape} is not one image; give {allowed}")
    height, width, _ = planes.shape
    _check_size((width, height), sys.maxsize)
    return Image.fromarray(np.ascontiguousarray(_eight_bits(planes)))


def orientation(exif: object) -> int:
    """The orientation tag of the first directory of an EXIF block, 0 where there is none."""
    if not isinstance(exif, bytes):
        return 0
    body = exif.removeprefix(b"Exif\0\0")
    order = ">" if body.startswith(b"MM") else "<"
    try:
        (start,) = struct.unpack_from(f"{order}I", body, 4)
        (count,) = struct.unpack_from(f"{order}H", body, start)
        for entry in range(count):
            place = start + 2 + 12 * entry
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", body, place)
            if tag == 0x0112:
                return int(value)
    except struct.error:  # cut short: an image is no worse for it
        pass
    return 0
