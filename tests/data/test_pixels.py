"""Plain JPEGs take a faster way to the same pixels; Pillow judges all others."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from acclimate.core.errors import ImageError
from acclimate.data import images
from acclimate.data.images import decode, read_pixels, squash
from fixtures.errors import refused
from fixtures.pictures import encoded, turned

pytest.importorskip("simplejpeg")


def photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width * height)
    rough = Image.fromarray(rng.integers(0, 256, (height // 9 + 1, width // 9 + 1, 3), np.uint8))
    smooth = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noisy = (smooth + rng.integers(-9, 10, smooth.shape)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(noisy).convert(mode)


def jpeg(image: Image.Image, **options: Any) -> bytes:
    return encoded(image, "JPEG", **{"quality": 90, **options})


def by_pillow(data: bytes, size: int) -> np.ndarray:
    image = decode(data, hint=size).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def decode_plain(data: bytes, hint: int) -> np.ndarray | None:
    with images._open_image(data, images.MAX_PIXELS) as image:
        return images.decode_plain(image, hint)


PLAIN = {
    "usual": jpeg(photo(100, 60)),
    "all colours": jpeg(photo(101, 67), subsampling=0),
    "half of the colours": jpeg(photo(101, 67), subsampling=1),
    "progressive": jpeg(photo(90, 121), progressive=True),
    "restarts": jpeg(photo(90, 121), restart_marker_blocks=4),
    "grey": jpeg(photo(77, 50, "L")),
    "comment": jpeg(photo(50, 50), comment="a word"),
    "profile": jpeg(photo(50, 50), icc_profile=b"not looked at"),
    "a pixel": jpeg(photo(1, 1)),
    **{f"turned {turn}": jpeg(photo(64, 40), exif=turned(turn)) for turn in range(1, 9)},
}


@pytest.mark.parametrize("size", [8, 12, 31, 32, 64, 200, 224])
@pytest.mark.parametrize("kind", PLAIN)
def test_pixels_and_squares_are_those_of_pillow_to_a_level(kind: str, size: int) -> None:
    """The same version of libjpeg-turbo gives the same pixels."""
    found, expected = decode_plain(PLAIN[kind], size), np.asarray(decode(PLAIN[kind], hint=size))
    assert found is not None
    assert found.shape == expected.shape
    assert np.abs(found - expected.astype(int)).max() <= 1
    found, expected = read_pixels(PLAIN[kind], size), by_pillow(PLAIN[kind], size)
    assert found.dtype == np.uint8
    assert found.shape == expected.shape == (3, size, size)
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert np.abs(found.astype(int) - expected).mean() <= 0.3


def test_a_square_of_that_size_is_not_resized() -> None:
    array = np.asarray(photo(60, 45))[:40, :40]
    assert np.array_equal(squash(array, 40), array.transpose(2, 0, 1))


ODD = {
    "four colours": jpeg(photo(40, 40).convert("CMYK")),
    "no YCbCr": jpeg(photo(40, 40), keep_rgb=True),
    "cut short": PLAIN["usual"][:-200],
    "cut in the header": PLAIN["usual"][:100],
    "only a start": b"\xff\xd8\xff",
    "noise after the start": b"\xff\xd8\xff" + bytes(range(256)),
    "arithmetic coding": PLAIN["usual"].replace(b"\xff\xc0", b"\xff\xc9", 1),
    "twelve bits": PLAIN["usual"].replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c", 1),
    "no width": PLAIN["grey"].replace(b"\x0b\x08\0\x32\0\x4d", b"\x0b\x08\0\x32\0\0", 1),
    "not a JPEG": b"GIF89a",
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_pillow_judges_what_is_not_plain(kind: str) -> None:
    data = ODD[kind]
    try:
        expected = by_pillow(data, 8)
    except ImageError as error:
        with pytest.raises(ImageError) as caught:
            read_pixels(data, 8)
        assert str(caught.value) == str(error)
    else:
        assert np.abs(read_pixels(data, 8).astype(int) - expected).max() <= 1


def test_damage_inside_the_scan_is_judged_by_pillow() -> None:
    data = bytearray(PLAIN["progressive"])
    data[-300:-280] = b"\xff\xda" * 10
    assert decode_plain(bytes(data), 8) is None


def test_the_limit_of_pixels_is_kept() -> None:
    assert read_pixels(PLAIN["usual"], 8, max_pixels=6000).shape == (3, 8, 8)
    with refused(ImageError, "100x60", 5999):
        read_pixels(PLAIN["usual"], 8, max_pixels=5999)


def test_without_the_library_pillow_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = read_pixels(PLAIN["progressive"], 30)
    monkeypatch.setattr(images, "DECODER", None)
    assert decode_plain(PLAIN["progressive"], 30) is None
    assert np.abs(read_pixels(PLAIN["progressive"], 30).astype(int) - with_it).max() <= 1


def many_scans(number: int) -> bytes:
    """A progressive JPEG that repeats its last scan."""
    data = jpeg(photo(64, 64), progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + (data[last:-2]) * number + b"\xff\xd9"


def test_scans_are_counted_with_the_pixels_they_go_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_WORK", 64 * 64 * 30)
    assert read_pixels(many_scans(0), 8).shape == (3, 8, 8)
    with refused(ImageError, many_scans(0).count(b"\xff\xda") + 40, "64x64"):
        read_pixels(many_scans(40), 8)
    images.check_scans(b"\xff\xda" * 16, 10_000, 10_000)  # few scans are fine at any size


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once(tmp_path: Path) -> None:
    data = bytearray(many_scans(4000))
    place = data.index(b"\xff\xc2")
    data[place + 5 : place + 9] = (4000).to_bytes(2, "big") * 2
    (tmp_path / "a.jpg").write_bytes(data)
    started = time.perf_counter()
    with refused(ImageError, "4000x4000"):
        read_pixels(tmp_path / "a.jpg", 8)
    assert time.perf_counter() - started < 2
