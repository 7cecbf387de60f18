"""Every kind of image decodes to the same picture, and every bad one gives a short reason."""

import gc
import io
import json
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.core.errors import ImageError, ManifestError, TooManyUnreadable
from acclimate.data.images import decode, read_pixels
from acclimate.data.readers import find_images
from acclimate.data.source import Quarantine
from fixtures.errors import refused
from fixtures.pictures import encoded, png, turned

RGB = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
SMOOTH = np.stack(
    [
        np.broadcast_to(np.linspace(0, 255, 64), (48, 64)),
        np.broadcast_to(np.linspace(255, 0, 48)[:, None], (48, 64)),
        np.full((48, 64), 128),
    ],
    axis=-1,
).astype(np.uint8)


def pixels(source: bytes | Path) -> np.ndarray:
    image = decode(source)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ],
)
def test_lossless_formats_give_the_pixels_back(kind: str, options: dict[str, object]) -> None:
    assert np.array_equal(pixels(encoded(RGB, kind, **options)), RGB)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_frame_is_taken(kind: str) -> None:
    red, blue = (Image.new("RGB", (5, 4), colour) for colour in ("red", "blue"))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(red, kind, save_all=True, append_images=[blue], **options)
    assert np.array_equal(pixels(data), np.broadcast_to([255, 0, 0], (4, 5, 3)))


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_grey_and_palette(mode: str) -> None:
    image = Image.fromarray(RGB).convert(mode)
    assert np.array_equal(pixels(encoded(image, "PNG")), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_transparency_lies_over_white(mode: str, kind: str) -> None:
    image = Image.new(mode, (3, 1))
    ink = (100,) * (len(mode) - 1)
    for x, alpha in enumerate((0, 255, 51)):
        image.putpixel((x, 0), (*ink, alpha))
    got = pixels(encoded(image, kind))[0]
    assert got.tolist() == [[255] * 3, [100] * 3, [224] * 3]  # 0.2 · 100 + 0.8 · 255 = 224


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palette_with_a_transparent_entry(kind: str) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert pixels(encoded(image, kind, transparency=0)).tolist() == [[[255] * 3, [200, 100, 50]]]


def test_png_with_a_transparent_colour() -> None:
    image = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8))
    data = encoded(image, "PNG", transparency=(1, 2, 3))
    assert pixels(data).tolist() == [[[255] * 3, [4, 5, 6]]]


DEEP = np.array([[0, 128, 129, 257], [32896, 40000, 65278, 65535]], dtype=np.uint16)
SHALLOW = [[0, 0, 1, 1], [128, 156, 254, 255]]  # value / 257, rounded


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(kind: str) -> None:
    got = pixels(encoded(DEEP, kind))
    assert got[..., 0].tolist() == SHALLOW
    assert np.array_equal(got[..., 0], got[..., 2])


def test_thirty_two_bits_hold_sixteen() -> None:
    assert pixels(encoded(DEEP.astype(np.int32), "TIFF"))[..., 1].tolist() == SHALLOW
    with refused(ImageError, "0 to 131070", 65535):
        decode(encoded(DEEP.astype(np.int32) * 2, "TIFF"))


def test_floating_point_tiff() -> None:
    grey = np.array([[0.0, 0.2, 1.0]], dtype=np.float32)
    assert pixels(encoded(grey, "TIFF"))[..., 0].tolist() == [[0, 51, 255]]
    with refused(ImageError, "0 to 255", "0..1"):
        decode(encoded(grey * 255, "TIFF"))


def test_cmyk_jpeg() -> None:
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    data = encoded(cyan, "JPEG", quality=95)
    assert b"Adobe" in data  # Pillow, like Photoshop, stores the inks inverted
    assert np.abs(pixels(data).astype(int) - [0, 255, 255]).max() <= 3


# Where each stored orientation says that the picture's top left corner is.
TURNED = {
    1: RGB,
    2: RGB[:, ::-1],
    3: RGB[::-1, ::-1],
    4: RGB[::-1],
    5: RGB.transpose(1, 0, 2),
    6: RGB.transpose(1, 0, 2)[:, ::-1],
    7: RGB.transpose(1, 0, 2)[::-1, ::-1],
    8: RGB.transpose(1, 0, 2)[::-1],
}


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_orientation_by_exif(orientation: int, kind: str) -> None:
    exif = turned(orientation)
    exif[0x010F] = "a camera"
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(RGB, kind, exif=exif, **options)
    assert np.array_equal(pixels(data), TURNED[orientation])
    with Image.open(io.BytesIO(data)) as image:
        expected = read_pixels(np.ascontiguousarray(TURNED[orientation]), 12)
        assert np.array_equal(read_pixels(image, 12), expected)


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_of_a_jpeg_in_either_byte_order(order: str) -> None:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, 6, 0)
    directory = struct.pack(f"{order}IH", 8, 1) + entry + b"\0\0\0\0"
    data = encoded(SMOOTH, "JPEG", exif=b"Exif\0\0" + mark + directory)
    expected = np.rot90(np.asarray(Image.open(io.BytesIO(encoded(SMOOTH, "JPEG")))), -1)
    assert np.array_equal(pixels(data), expected)


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x01", b"junk"])
def test_damaged_exif_costs_nothing_and_warns_of_nothing(exif: bytes) -> None:
    assert pixels(encoded(SMOOTH, "JPEG", exif=exif)).shape == SMOOTH.shape


ZERO_GIF = b"GIF89a" + bytes(7) + b",\0\0\0\0\0\0\0\0\0\x02\x02\x44\x01\0;"
LIMIT = "100000000"
BAD = {
    "empty": (b"", "empty"),
    "text": (b"<html>404</html>", "JPEG, PNG, WebP, BMP, TIFF or GIF"),
    "wave": (b"RIFF\0\0\0\0WAVEfmt ", "JPEG, PNG, WebP, BMP, TIFF or GIF"),
    "zero png": (png(0, 5), "zero-sized"),
    "zero gif": (ZERO_GIF, "0x0"),
    "bomb": (png(120_000, 100_000), "120000x100000", LIMIT),
    "gif bomb": (b"GIF89a\xff\xff\xff\xff" + bytes(20), "65535x65535", LIMIT),
    "webp bomb": (
        b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xff\x3f\0\xff\x3f\0" + bytes(32),
        "16384x16384",
        LIMIT,
    ),
    "cut jpeg": (encoded(SMOOTH, "JPEG")[:-200], "truncated"),
    "cut png": (encoded(RGB, "PNG")[:-60], "truncated"),
    "cut gif": (encoded(SMOOTH, "GIF")[:-500], "truncated"),
    "cut bmp": (encoded(SMOOTH, "BMP")[:-500], "truncated"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_say_why(name: str, tmp_path: Path) -> None:
    data, *facts = BAD[name]
    file = tmp_path / "x.jpg"
    file.write_bytes(data)
    for source in (data, file):
        with refused(ImageError, *facts):
            decode(source)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_damage_of_any_kind_is_an_image_error(kind: str) -> None:
    whole = encoded(SMOOTH[:24, :24], kind)
    rng = np.random.default_rng(0)
    cut = [whole[:length] for length in rng.integers(0, len(whole), 60)]
    flipped = []
    for _ in range(150):
        data = bytearray(whole)
        for place in rng.integers(0, min(len(data), 300), 3):
            data[place] = rng.integers(256)
        flipped.append(bytes(data))
    failures = 0
    for data in (*cut, *flipped):
        try:
            decode(data, max_pixels=1_000_000)
        except ImageError as error:
            failures += 1
            assert 0 < len(str(error)) < 200 and "\n" not in str(error)
    assert failures > 30


def test_the_limit_is_the_callers() -> None:
    data = encoded(RGB, "PNG")
    assert decode(data, max_pixels=54).size == (9, 6)
    for call in (decode, lambda d, **k: read_pixels(d, 8, **k)):
        with refused(ImageError, "9x6", 53):
            call(data, max_pixels=53)
    with refused(ImageError, "9x6", 53):
        read_pixels(Image.fromarray(RGB), 8, max_pixels=53)


def test_load_squashes_and_antialiases() -> None:
    stripes = np.zeros((40, 80, 3), dtype=np.uint8)
    stripes[:, ::2] = 255  # at a tenth only their average is left
    small = read_pixels(encoded(stripes, "PNG"), 8)
    assert small.shape == (3, 8, 8) and small.dtype == np.uint8 and small.flags["C_CONTIGUOUS"]
    assert np.abs(small[:, :, 1:-1].astype(int) - 127).max() <= 2
    half = np.zeros((10, 40, 3), dtype=np.uint8)
    half[:, 20:, 0] = 200
    square = read_pixels(encoded(half, "PNG"), 10)
    assert square[0, :, :4].max() == 0 and square[0, :, 6:].min() == 200 and square[1:].max() == 0


def test_load_takes_what_users_hold(tmp_path: Path) -> None:
    data = encoded(RGB, "PNG")
    file = tmp_path / "x.png"
    file.write_bytes(data)
    expected = read_pixels(data, 8)
    planes = np.ascontiguousarray(RGB.transpose(2, 0, 1))
    same = [
        *(file, str(file), data, Image.fromarray(RGB), RGB, planes, RGB / 255),
        *((planes / 255).astype(np.float32), torch.from_numpy(planes)),
        *(torch.from_numpy(planes) / 255, (torch.from_numpy(planes) / 255).requires_grad_()),
        torch.from_numpy(planes / 255 + 1e-9),
    ]
    for image in same:
        assert np.array_equal(read_pixels(image, 8), expected), type(image)
    grey = RGB[..., 0]
    expected = read_pixels(np.stack([grey] * 3), 8)
    for image in (grey, grey / 255, torch.from_numpy(grey.copy()), Image.fromarray(grey)):
        assert np.array_equal(read_pixels(image, 8), expected)
    rows = RGB[:3]
    assert np.array_equal(read_pixels(rows, 8), read_pixels(encoded(rows, "PNG"), 8))
    half = torch.from_numpy(planes).to(torch.bfloat16) / 255
    assert np.abs(read_pixels(half, 8).astype(int) - read_pixels(data, 8)).max() <= 2


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (np.array([[0.0, 255.0]]), ["0 to 255", "0..1"]),
        (torch.full((3, 4, 4), -2.118), ["-2.118", "0..1"]),
        (np.full((4, 4), np.nan), ["nan", "0..1"]),
        (RGB.astype(np.int64), ["int64", "uint8"]),
        (np.zeros((2, 3, 4, 4)), ["[2, 3, 4, 4]", "[h,w,3]"]),
        (np.zeros((5, 5, 4)), ["[5, 5, 4]", "[h,w,3]"]),
        (torch.zeros(5, 5, 3), ["[5, 5, 3]", "[3,h,w]"]),
        (np.zeros((0, 5)), ["5x0"]),
        (Image.new("RGB", (0, 3)), ["0x3"]),
        (7, ["int", "torch tensor"]),
        ("no/such.jpg", ["no such file"]),
        (Path("/"), ["a folder"]),
    ],
)
def test_load_refuses_clearly(image: object, facts: list[str]) -> None:
    with refused(ImageError, *facts):
        read_pixels(image, 8)


def test_a_lazily_opened_damaged_image() -> None:
    with (
        Image.open(io.BytesIO(BAD["cut jpeg"][0])) as image,
        refused(ImageError, "truncated"),
    ):
        read_pixels(image, 8)


def test_files_are_closed_and_threads_agree(tmp_path: Path) -> None:
    files = []
    for i, (kind, suffix) in enumerate([("JPEG", "jpg"), ("TIFF", "tif"), ("GIF", "gif")] * 8):
        files.append(tmp_path / f"{i}.{suffix}")
        files[-1].write_bytes(encoded(np.roll(SMOOTH, i, axis=1), kind))
    (tmp_path / "cut.jpg").write_bytes(BAD["cut jpeg"][0])
    alone = [read_pixels(file, 16) for file in files]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda file: read_pixels(file, 16), files))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    with pytest.raises(ImageError):
        read_pixels(tmp_path / "cut.jpg", 16)
    gc.collect()  # an unclosed file would warn, and warnings are errors
    handles = Path("/proc/self/fd")
    if handles.exists():
        opened = [handle.readlink() for handle in handles.iterdir() if handle.is_symlink()]
        assert not [file for file in opened if file.is_relative_to(tmp_path)]


def test_find_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hidden = ("a/notes.txt", "a/._1.png", "a/.x/4.png")
    names = ("a/2.JPG", "a/1.png", "a/deep/3.webp", "b.tiff", *hidden)
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("a/deep/up").symlink_to(tmp_path / "a")
    Path("linked").symlink_to(tmp_path / "a" / "deep")
    found = ["a/1.png", "a/2.JPG", "a/deep/3.webp"]
    assert find_images(["a"]) == [Path(name) for name in found]
    many = find_images(["b.tiff", "a", Path("a/1.png"), "./a/2.JPG", tmp_path / "a" / "1.png"])
    assert many == [Path(name) for name in [*found, "b.tiff"]]
    assert find_images(["a/notes.txt"]) == [Path("a/notes.txt")]
    assert find_images(["linked"])[0] == Path("linked/3.webp")


@pytest.mark.parametrize(
    ("paths", "facts"),
    [([], []), (["gone"], ["gone"]), (["empty"], ["empty", "bmp, dcm, dicom, gif, heic"])],
)
def test_find_images_refuses(
    paths: list[str], facts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with refused(ImageError, *facts):
        find_images(paths)


def test_quarantine_records_once_and_stops_above_the_share(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    quarantine = Quarantine(path, total=100, max_share=0.29)
    for i in [*range(29), 3]:
        quarantine.add(f"{i}.jpg", "truncated")
    assert [name for name, _ in quarantine.entries] == [f"{i}.jpg" for i in range(29)]
    with refused(
        TooManyUnreadable, "30 of 100", "29 %", "photo/29.jpg", path, "data.max_unreadable"
    ):
        quarantine.add("photo/29.jpg", "empty file")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 30 and lines[-1] == {"image": "photo/29.jpg", "reason": "empty file"}
    assert quarantine.entries[-1] == ("photo/29.jpg", "empty file")
    with pytest.raises(TooManyUnreadable):
        quarantine.add("3.jpg", "truncated")


def test_quarantine_is_continued_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    odd = ["ä\u2028.jpg", os.fsdecode(b"\xff.jpg")]
    first = Quarantine(path, total=10, max_share=0.5)
    for name in odd:
        first.add(name, "truncated")
    with path.open("a") as file:
        file.write('{"image": "c.jp')
    again = Quarantine(path, total=10, max_share=0.5)
    assert again.entries == [(name, "truncated") for name in odd]
    again.add(odd[0], "truncated")
    again.add("d.jpg", "empty file")
    third = Quarantine(path, total=10, max_share=0.5)
    assert third.entries == [*again.entries[:2], ("d.jpg", "empty file")]


def test_a_stopped_runs_list_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    stopped = Quarantine(path, total=10, max_share=0.1)
    stopped.add("a.jpg", "truncated")
    with pytest.raises(TooManyUnreadable):
        stopped.add("b.jpg", "truncated")
    assert len(Quarantine(path, total=10, max_share=0.2)) == 2  # raised: both are kept
    assert len(Quarantine(path, total=10, max_share=0.1)) == 0
    assert path.read_text() == ""


def test_pipes_sockets_and_devices_are_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.png"))
        (tmp_path / "null.png").symlink_to("/dev/null")
        (tmp_path / "good.png").write_bytes(png(3, 3))
        found = find_images([tmp_path])
        assert [path.name for path in found] == ["good.png", "null.png", "pipe.jpg", "socket.png"]
        for path, kind in zip(found[1:], ("a device", "a pipe", "a socket"), strict=True):
            with refused(ImageError, kind):
                read_pixels(path, 4)


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def closed(path: Path) -> object:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", closed)
    with refused(ManifestError, tmp_path / "closed", "Permission denied"):
        find_images([tmp_path])


def test_a_name_with_a_nul() -> None:
    with refused(ImageError, "NUL"):
        read_pixels(Path("a\0b.png"), 4)
