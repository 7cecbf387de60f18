"""HEIC and DICOM: read as people see them, or named with the extra that reads them."""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from acclimate.core.errors import ImageError
from acclimate.data import images
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest
from acclimate.data.readers import find_images
from fixtures.errors import refused


def heic(pixels: np.ndarray, *, orientation: int = 1) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif", reason="not installed: acclimate[heic]")
    file = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = pillow_heif.from_pillow(Image.fromarray(pixels))
    image.save(file, quality=100, chroma=444, exif=exif.tobytes())
    return file.getvalue()


def dicom(pixels: np.ndarray, **tags: Any) -> bytes:
    pydicom = pytest.importorskip("pydicom", reason="not installed: acclimate[dicom]")
    from pydicom.dataset import FileDataset, FileMetaDataset

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    data = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    data.Rows, data.Columns = pixels.shape[-2:] if pixels.ndim < 4 else pixels.shape[1:3]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated = data.BitsStored = 8 * pixels.itemsize
    data.HighBit, data.PixelRepresentation = data.BitsStored - 1, 0
    if pixels.ndim == 3:
        data.NumberOfFrames = len(pixels)
    for name, value in tags.items():
        setattr(data, name, value)
    data.PixelData = pixels.tobytes()
    file = BytesIO()
    data.save_as(file, enforce_file_format=True)
    return file.getvalue()


def test_heic_is_read_upright() -> None:
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, 32:] = (250, 10, 10)
    read = np.asarray(decode(heic(pixels)))
    assert read.shape == (32, 64, 3)
    assert np.abs(read.astype(int) - pixels).max() < 12  # a lossy format
    turned = np.asarray(decode(heic(pixels, orientation=6)))  # a quarter turn clockwise
    assert turned.shape == (64, 32, 3)
    assert turned[60, 16, 0] > 200 and turned[4, 16, 0] < 50


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({}, [0, 51, 102, 255]),  # from the lowest to the highest: 1000 to 2000
        ({"PhotometricInterpretation": "MONOCHROME1"}, [255, 204, 153, 0]),
        # Width 200 around 1200, without what lies outside: (x − 1199.5) / 199 + ½
        ({"WindowCenter": 1200, "WindowWidth": 200}, [0, 128, 255, 255]),
        # Values twice as large and 1000 less are 1000 to 3000, of which 1200 to 1600 is shown
        (
            {"RescaleSlope": 2, "RescaleIntercept": -1000, "WindowCenter": 1400,
             "WindowWidth": 400},
            [0, 128, 255, 255],
        ),
    ],
)  # fmt: skip
def test_dicom_is_read_as_its_window_shows_it(tags: dict[str, Any], expected: list[int]) -> None:
    values = np.array([[1000, 1200, 1400, 2000]], np.uint16)
    read = np.asarray(decode(dicom(values, **tags)))
    assert read.shape == (1, 4, 3)
    np.testing.assert_allclose(read[0, :, 0], expected, atol=1)


def test_dicom_of_several_frames_and_of_none() -> None:
    frames = np.stack([np.full((2, 3), 7, np.uint8), np.full((2, 3), 9, np.uint8)])
    frames[0, 0, 0] = 0
    assert np.asarray(decode(dicom(frames)))[..., 0].tolist() == [[0, 255, 255], [255, 255, 255]]
    pydicom = pytest.importorskip("pydicom")
    bare = pydicom.dcmread(BytesIO(dicom(frames[:1])))
    del bare.PixelData
    file = BytesIO()
    bare.save_as(file, enforce_file_format=True)
    with refused(ImageError, "DICOM"):
        decode(file.getvalue())


def test_sizes_are_checked_before_pixels_are_unpacked() -> None:
    for content in (heic(np.zeros((64, 64, 3), np.uint8)), dicom(np.zeros((64, 64), np.uint8))):
        with refused(ImageError, "64x64", 100):
            decode(content, max_pixels=100)


def test_without_the_extra_it_is_said_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    contents = [heic(np.zeros((16, 16, 3), np.uint8)), dicom(np.zeros((4, 4), np.uint8))]
    monkeypatch.setattr(images, "import_module", missing)
    for content, name in zip(contents, ("heic", "dicom"), strict=True):
        with refused(ImageError, name.upper(), f"acclimate[{name}]"):
            decode(content)


def test_dicom_without_an_ending_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    """As discs and archives of hospitals have it; other files without an ending are no images, and
    a file with another ending is not looked into."""
    image = dicom(np.arange(16, dtype=np.uint8).reshape(4, 4))
    cat = tmp_path / "north" / "cat"
    cat.mkdir(parents=True)
    for name in ("IM0001", "1.2.840.10008.17", "DICOMDIR", "notes.txt", "scan.dcm", ".hidden"):
        (cat / name).write_bytes(image)
    (cat / "README").write_text("not an image")
    (cat / "short").touch()
    os.mkfifo(cat / "pipe")
    manifest = Manifest.from_folder(tmp_path)
    wanted = ["1.2.840.10008.17", "IM0001", "scan.dcm"]
    assert manifest.table["image"].to_pylist() == [f"north/cat/{name}" for name in wanted]
    assert [path.name for path in find_images([tmp_path])] == wanted
    for path in find_images([tmp_path]):
        assert np.asarray(decode(path))[..., 0].max() == 255


def test_they_are_images_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.heic", "b.HEIF", "c.dcm", "d.jpg"):
        path = tmp_path / "north" / "cat" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert len(Manifest.from_folder(tmp_path)) == 4
