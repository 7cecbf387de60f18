"""HEIC and DICOM, which telephones and hospitals write: read where their extra is installed."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from acclimate.core.errors import ImageError

if TYPE_CHECKING:  # who only wants the names of formats need not wait for Pillow
    from PIL import Image

HEADER = 132  # bytes that tell a format: DICOM says what it is behind 128 that may hold anything
_INDEX = "DICOMDIR"  # what lies on a disc of them, and no image
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


def is_of(kind: Format, path: str) -> bool:
    """By the ending of its name; a name without one is looked into, for hospitals write DICOM
    under such names, or under a number such as 1.2.840.10008.17."""
    name = path.rpartition("/")[2]
    ending = name.rpartition(".")[2].lower()
    if ending != name.lower() and not ending.isdecimal():
        return ending in kind.extensions
    return kind is DICOM and name != _INDEX and _says_dicom(path)


def _says_dicom(path: str) -> bool:
    try:
        if not Path(path).is_file():  # a pipe could keep us waiting for ever
            return False
        with Path(path).open("rb") as file:
            return is_dicom(file.read(HEADER))
    except (OSError, ValueError):
        return False


def is_dicom(header: bytes) -> bool:
    return header[128:132] == b"DICM"


def opener(header: bytes) -> "Callable[..., Image.Image] | None":
    """What opens a file that begins with `header`, if it is one of these: file, check -> image.
    `check` is told the size before anything of it is unpacked."""
    if header[4:8] == b"ftyp" and header[8:12] in _BRANDS:
        return _open_heic
    return _open_dicom if is_dicom(header) else None


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
