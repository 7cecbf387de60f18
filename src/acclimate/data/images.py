"""Any image, from anywhere, to upright 8-bit RGB; or an `ImageError` with a short reason."""

import os
import struct
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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

from acclimate.core.errors import ImageError
from acclimate.core.files import odd_kind
from acclimate.data import readers
from acclimate.data.formats import HEADER, opener

IMAGE_EXTENSIONS: frozenset[str] = frozenset(f".{kind}" for kind in readers.IMAGE_EXTENSIONS)
MAX_PIXELS = 100_000_000
MOST_SCANS = 16  # of a progressive JPEG, whatever its size; encoders write ten
MOST_WORK = 1_000_000_000  # pixels times scans, beyond: some ten seconds
Source = Path | bytes

_FLOAT_SLACK = 1e-4  # resampling overshoots 0..1 by rounding


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


def decode(source: Source, *, max_pixels: int = MAX_PIXELS, hint: int | None = None) -> Image.Image:
    """The image (first frame) as upright RGB, transparency over white.

    `hint` is the size the caller will shrink to: a JPEG is then decoded at a half, quarter or
    eighth, whichever still has `hint` pixels on each side.
    """
    with opened(source) as file, _pillow_errors():
        header = file.read(HEADER)
        further = opener(header)
        plugin = None if further else _plugin(header)
        declared = _declared_size(header)
        _check_size(declared, max_pixels)
        file.seek(0)
        with _quiet(declared):
            if further is not None:
                image: Image.Image = further(file, lambda size: _check_size(size, max_pixels))
            else:
                assert plugin is not None
                image = plugin(file)
        _check_size(image.size, max_pixels)
        if image.info.get("progressive"):
            place = file.tell()  # the plugin has read the headers, and reads on from here
            file.seek(0)
            check_scans(file.read(), *image.size)
            file.seek(place)
        if hint is not None:
            image.draft(image.mode, (hint, hint))
        with _quiet(image.size):
            return _upright_rgb(image)


def load(image: object, size: int, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """uint8 [3,size,size] of whatever `as_rgb` takes, squashed to a square as DomainBed does.

    Bilinear over the shrunken pixel's whole footprint (antialiased), torchvision's default for
    images from files and so what most pretrained weights saw; plain bilinear would alias.
    """
    rgb = as_rgb(image, max_pixels=max_pixels, hint=size)
    small = rgb.resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def as_rgb(image: object, *, max_pixels: int = MAX_PIXELS, hint: int | None = None) -> Image.Image:
    """What `decode` gives, from whatever a user holds.

    A path, encoded bytes, a PIL image, an array ([h,w], [h,w,3], [3,h,w]; [3,w,3] is read as
    three rows) or a tensor ([3,h,w], [h,w]); arrays and tensors hold uint8, or floats in 0..1.
    """
    if isinstance(image, str | Path | bytes):
        source = Path(image) if isinstance(image, str) else image
        return decode(source, max_pixels=max_pixels, hint=hint)
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


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """Files as given, folders searched recursively by extension (DICOM without one is known by what
    is in it); sorted, each once.

    Hidden files and folders inside a folder are passed over; links to folders are followed. A
    folder that cannot be listed stands for what is in it: whoever reads it is told why.
    """
    if not paths:
        raise ImageError("no images given; give a folder or files with images")
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = list(_images_below(path))
            if not inside:
                listed = " ".join(sorted(IMAGE_EXTENSIONS))
                raise ImageError(
                    f"{path} holds no images ({listed}); give a folder or files with images"
                )
        elif path.exists():
            inside = [path]
        else:
            raise ImageError(f"{path} does not exist; give a folder or files with images")
        for image in inside:
            found.setdefault(os.path.abspath(image), image)  # noqa: PTH100 (links stay links)
    return sorted(found.values())


def _images_below(folder: Path) -> Iterator[Path]:
    visited: set[Path] = set()
    closed: list[Path] = []

    def note(error: OSError) -> None:
        closed.append(Path(error.filename))

    for name, folders, files in os.walk(folder, followlinks=True, onerror=note):
        here = Path(name)
        real = here.resolve()
        if real in visited:  # a link back up, or two links to one folder
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(entry for entry in folders if not entry.startswith("."))
        for file in files:
            if not file.startswith(".") and readers.is_image(str(here / file)):
                yield here / file
    yield from closed


@contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    try:
        file = BytesIO(source) if isinstance(source, bytes) else _open_regular(source)
    except FileNotFoundError as error:
        raise ImageError("no such file") from error
    except OSError as error:
        raise ImageError(f"cannot be opened ({error.strerror})") from error
    except ValueError as error:
        raise ImageError("no name of a file (it holds a NUL)") from error
    with file:
        yield file


def _open_regular(path: Path) -> IO[bytes]:
    """A pipe could keep us waiting for ever, and a device never end."""
    kind = odd_kind(path)
    if kind is None:
        return path.open("rb")
    if kind == "a folder":
        os.listdir(path)  # noqa: PTH208 (why it could not be searched is worth more than its kind)
    raise ImageError(f"{kind}, not an image")


def _plugin(header: bytes) -> type[ImageFile.ImageFile]:
    if not header:
        raise ImageError("empty file")
    for prefix, plugin in _FORMATS:
        if header.startswith(prefix) and (prefix != b"RIFF" or header[8:12] == b"WEBP"):
            return plugin
    raise ImageError("not a JPEG, PNG, WebP, BMP, TIFF or GIF image")


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


_QUIET = threading.Lock()


def _quiet(size: tuple[int, int] | None) -> AbstractContextManager[object]:
    """Silence Pillow's size warning for an image that has passed our own limit.

    Warning filters belong to the whole process, so they are touched only for the rare image that
    would warn, one at a time.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if size is None or limit is None or size[0] * size[1] <= limit:
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(_QUIET)
    stack.enter_context(
        warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
    )
    return stack


@contextmanager
def _pillow_errors() -> Iterator[None]:
    """Whatever Pillow raises on damaged data, which is nearly everything, as an `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        reason = f"cannot be decoded ({text})"
        if "truncat" in text.lower():
            reason = "truncated"
        elif text == "not identified by this driver":  # said of a width or height of 0
            reason = "zero-sized, or its header is damaged"
        raise ImageError(reason) from error


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
