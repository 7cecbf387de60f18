"""What an image may cost: memory of all that are decoded at a time, and work on each.

A file of a few hundred kilobytes can unpack to a hundred million pixels, and one of a megabyte can
go over all its pixels thousands of times.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from acclimate.core.errors import ImageError

IN_FLIGHT = 100_000_000  # pixels: about a gigabyte, with what conversions hold beside them
LARGE = 10_000_000  # pixels from which memory is given back to the system after an image
MOST_SCANS = 16  # of a progressive JPEG, whatever its size; encoders write ten
MOST_WORK = 1_000_000_000  # pixels times scans, beyond: some ten seconds
_SCAN = b"\xff\xda"


def _trim() -> None:
    """Each thread's allocator keeps what its largest image took: one gigabyte becomes twelve."""
    with suppress(OSError, AttributeError):  # it is glibc's that does, and has this way out
        ctypes.CDLL(None).malloc_trim(0)


class _Budget:
    """Pixels that threads decode at the moment. One image alone is never refused."""

    def __init__(self) -> None:
        self._used = 0
        self._changed = threading.Condition()

    def acquire(self, pixels: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + pixels <= IN_FLIGHT)
            self._used += pixels

    def release(self, pixels: int) -> None:
        with self._changed:
            self._used -= pixels
            self._changed.notify_all()


_BUDGET = _Budget()
_OF_THREAD = threading.local()


def start_anew() -> None:
    """In a copy of this process, which has none of the threads that decode in it."""
    global _BUDGET
    _BUDGET = _Budget()


@contextmanager
def one_image() -> Iterator[None]:
    """What is claimed inside is held until the end, when the large image has become a small one."""
    if getattr(_OF_THREAD, "held", None) is not None:
        yield  # another one above us has the say
        return
    _OF_THREAD.held = 0
    try:
        yield
    finally:
        if _OF_THREAD.held >= LARGE:
            _trim()
        _BUDGET.release(_OF_THREAD.held)
        _OF_THREAD.held = None


def claim(pixels: int) -> None:
    """Wait until so many pixels may be decoded for the image at hand."""
    held = getattr(_OF_THREAD, "held", None)
    if held is None or held >= pixels:
        return
    _BUDGET.release(held)  # nothing is held while waiting, or two could wait for each other
    _OF_THREAD.held = 0
    _BUDGET.acquire(pixels)
    _OF_THREAD.held = pixels


def check_scans(data: bytes, width: int, height: int) -> None:
    """Refuse a progressive JPEG that goes over its pixels too often."""
    scans = data.count(_SCAN)  # in coded data a 0xFF is followed by 0: what is found is a marker
    if scans > MOST_SCANS and scans * width * height > MOST_WORK:
        raise ImageError(f"{scans} scans of {width}x{height} pixels, too much work to decode")
