"""HEIC and DICOM, which telephones and hospitals write: read where their extra is installed."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from acclimate.core.errors import ImageError

if TYPE_CHECKING:  # who only wants the names of formats need not wait for Pillow
    from PIL import Image

HEADER = 132  # bytes that tell a format: DICOM says what it is behind 128 that may hold anything
_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}


class Format(NamedTuple):
    name: str
    extensions: frozenset[str]
    package: str
    extra: str

    @property
    def readable(self) -> bool:
        return find_spec(self.package) is not None

    @property
    def remedy(self) -> str:
        return f'pip install "acclimate[{self.extra}]"'


HEIC = Format("HEIC", frozenset({"heic", "heif"}), "pillow_heif", "heic")
DICOM = Format("DICOM", frozenset({"dcm", "dicom"}), "pydicom", "dicom")
FORMATS = (HEIC, DICOM)


def opener(header: bytes) -> "Callable[..., Image.Image] | None":
    """What opens a file that begins with `header`, if it is one of these: file, check -> image.
    `check` is told the size before anything of it is unpacked."""
    if header[4:8] == b"ftyp" and header[8:12] in _BRANDS:
        return _open_heic
    return _open_dicom if header[128:132] == b"DICM" else None


def _open_heic(file: IO[bytes], check: Callable[[tuple[int, int]], None]) -> "Image.Image":
    image: Image.Image = _module(HEIC).HeifImageFile(file)  # decoded when it is loaded, upright
    check(image.size)
    return image


def _open_dicom(file: IO[bytes], check: Callable[[tuple[int, int]], None]) -> "Image.Image":
    """The first frame as its window shows it, or from its lowest value to its highest."""
    from PIL import Image

    dicom = _module(DICOM)
    pixels = import_module("pydicom.pixels")
    data = dicom.dcmread(file)
    if "PixelData" not in data:
        raise ImageError("a DICOM file without an image in it")
    check((int(data.Columns), int(data.Rows)))
    try:
        frame = pixels.pixel_array(data, index=0)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ImageError(f"DICOM in a form that cannot be decoded ({text[:160]})") from None
    if frame.ndim == 3:
        return Image.fromarray(frame if frame.dtype == np.uint8 else _eight_bits(frame))
    values = pixels.apply_voi_lut(pixels.apply_modality_lut(frame, data), data)
    shown = _eight_bits(np.asarray(values, dtype=np.float64))
    return Image.fromarray(
        255 - shown if data.PhotometricInterpretation == "MONOCHROME1" else shown
    )


def _eight_bits(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    scaled: np.ndarray = np.rint((values - low) / max(high - low, 1e-12) * 255)
    return scaled.astype(np.uint8)


def _module(kind: Format) -> Any:
    try:
        return import_module(kind.package)
    except ImportError:
        raise ImageError(f"a {kind.name} image; to read it: {kind.remedy}") from None
