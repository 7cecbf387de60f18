"""Images that are small as files and large as images: bounded memory, bounded work."""

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.core.errors import ImageError
from acclimate.data import effort
from acclimate.data.effort import check_scans, claim, one_image
from acclimate.data.images import decode, load
from acclimate.data.pixels import read_pixels


@pytest.fixture
def most_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pixels in flight, whenever some are claimed."""
    seen: list[int] = []
    real = effort._BUDGET.acquire

    def acquire(pixels: int) -> None:
        real(pixels)
        seen.append(effort._BUDGET._used)
        time.sleep(0.01)

    monkeypatch.setattr(effort._BUDGET, "acquire", acquire)
    monkeypatch.setattr(effort, "IN_FLIGHT", 2500)
    return seen


def encoded(kind: str, side: int = 30, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("read", [load, read_pixels])
def test_threads_wait_for_each_others_pixels(most_at_once: list[int], read: object) -> None:
    """900 pixels each, 2500 at a time: two images; and one that is larger than all, alone."""
    data = [encoded("PNG"), encoded("JPEG"), encoded("JPEG", progressive=True)] * 4
    data.insert(5, encoded("PNG", 60))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda image: read(image, 30), data))  # type: ignore[operator]
    assert len(found) == 13 and len(most_at_once) == 13
    assert {900, 1800, 3600} >= set(most_at_once) > {3600}
    assert effort._BUDGET._used == 0


def test_pixels_are_given_back_by_images_that_fail(most_at_once: list[int]) -> None:
    for _ in range(4):
        with pytest.raises(ImageError):
            read_pixels(encoded("PNG")[:-30], 8)
    assert effort._BUDGET._used == 0


def test_nobody_holds_pixels_while_waiting_for_more(most_at_once: list[int]) -> None:
    def grow() -> None:
        with one_image():
            claim(1200)
            claim(2400)
            claim(100)  # less than is held

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(grow) for _ in range(8)]:
            done.result(timeout=20)
    assert effort._BUDGET._used == 0 and max(most_at_once) == 2400


def test_a_picture_that_is_only_decoded_claims_nothing() -> None:
    decode(encoded("PNG"))
    assert effort._BUDGET._used == 0


def many_scans(number: int) -> bytes:
    """A progressive JPEG that repeats its last scan."""
    data = encoded("JPEG", 64, progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + (data[last:-2]) * number + b"\xff\xd9"


def test_scans_are_counted_with_the_pixels_they_go_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "MOST_WORK", 64 * 64 * 30)
    usual = encoded("JPEG", 64, progressive=True)
    for read in (load, read_pixels):
        assert read(usual, 8).shape == (3, 8, 8)
        with pytest.raises(ImageError) as error:
            read(many_scans(40), 8)
        scans = usual.count(b"\xff\xda") + 40
        assert str(error.value) == f"{scans} scans of 64x64 pixels, too much work to decode"
    check_scans(b"\xff\xda" * 16, 10_000, 10_000)  # few scans are fine at any size


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once(tmp_path: Path) -> None:
    data = bytearray(many_scans(4000))
    place = data.index(b"\xff\xc2")
    data[place + 5 : place + 9] = (4000).to_bytes(2, "big") * 2
    (tmp_path / "a.jpg").write_bytes(data)
    started = time.perf_counter()
    for read in (load, read_pixels):
        with pytest.raises(ImageError, match="scans of 4000x4000 pixels, too much work to decode"):
            read(tmp_path / "a.jpg", 8)
    assert time.perf_counter() - started < 2


def test_claims_of_one_thread_are_its_own() -> None:
    with one_image(), one_image():
        claim(5)
        other: list[int] = []
        thread = threading.Thread(target=lambda: (claim(7), other.append(effort._BUDGET._used)))
        thread.start()
        thread.join()
        assert other == [5]
    assert effort._BUDGET._used == 0
