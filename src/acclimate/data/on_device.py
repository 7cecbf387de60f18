"""Images and batches on a GPU: small sets whole, others through pinned memory beside the work."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from acclimate.data.user_cache import GIB

if TYPE_CHECKING:  # it opens what is here
    from acclimate.data.source import ImageSource

T = TypeVar("T")
MOST_HELD = 12  # of what a GPU works on, two things for each step that it has not done
SHARE = 0.25  # of a GPU's free memory that images may take


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """What the host has, on `device` for the work that comes next there. Nobody waits for it."""
    return tensor.to(device, non_blocking=True)


class OnDevice:
    """A source whose images stay on the device once they have been there; batches are gathered
    there, and nothing is left for the processor to do."""

    def __init__(self, source: "ImageSource", device: torch.device) -> None:
        self.source, self.device = source, device
        self.labels, self.image, self.size = source.labels, source.image, source.size
        images = len(source.first)
        shape = (images, 3, source.size, source.size)
        self.held = torch.empty(shape, dtype=torch.uint8, device=device)
        self.there = np.zeros(images, dtype=bool)
        self._coming = np.zeros(images, dtype=bool)  # some thread is bringing it
        self._changed = threading.Condition()

    def take(self, rows: np.ndarray, out: Tensor | None = None) -> tuple[Tensor, np.ndarray]:
        """By way of `out` [n, 3, size, size], memory of the host, where it is given."""
        shown = self.source.image[rows]
        if not self.there[shown].all():
            self._complete(np.unique(shown), out)
        places = sent(torch.from_numpy(shown), self.device)
        return self.held.index_select(0, places), ~self.source.unreadable[shown]

    def _complete(self, images: np.ndarray, by: Tensor | None) -> None:
        """Bring what is missing of `images`, and wait for what other threads are bringing."""
        while True:
            with self._changed:
                missing = images[~self.there[images] & ~self.source.unreadable[images]]
                if not len(missing):
                    return
                mine = missing[~self._coming[missing]]
                if not len(mine):  # where those others fail, it is our turn to try
                    self._changed.wait_for(lambda: not self._coming[missing].any())  # noqa: B023
                    continue
                self._coming[mine] = True
            try:
                self._bring(mine, None if by is None else by[: len(mine)])
            finally:
                with self._changed:
                    self._coming[mine] = False
                    self._changed.notify_all()

    def _bring(self, images: np.ndarray, by: Tensor | None) -> None:
        stored, good = self.source.take_images(images, by)
        places = sent(torch.from_numpy(images), self.device)
        self.held.index_copy_(0, places, sent(stored, self.device))
        if self.device.type == "cuda":  # others read it on streams of their own
            torch.cuda.current_stream(self.device).synchronize()
        self.there[images[good]] = True


def fits_on(device: torch.device | None, bytes_: int, gib: float) -> bool:
    """Whether images of so many bytes may stay on a GPU, of which `gib` are allowed."""
    if device is None or device.type != "cuda" or bytes_ > gib * GIB:
        return False
    return bytes_ <= SHARE * free_on(device)


def free_on(device: torch.device) -> float:
    """Bytes of a GPU that this process may still take, by what others leave and by its own limit;
    without those that torch holds ready."""
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free, max(allowed - torch.cuda.memory_reserved(device), 0))


@dataclass
class SideStream:
    """Where a thread makes batches for a GPU while it works on others. One for each thread."""

    device: torch.device
    _stream: torch.cuda.Stream = field(init=False)
    _pinned: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]

    def staging(self, shape: tuple[int, ...]) -> Tensor:
        """uint8 memory that the GPU fetches from by itself, the same each time."""
        if self._pinned is None or self._pinned.shape != shape:
            self._pinned = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        return self._pinned

    def __call__(self, make: Callable[[], T]) -> T:
        """What `make` makes, once it is there."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            made = make()
        self._stream.synchronize()  # waits in its own thread; the pinned memory is free again
        return made


class Held:
    """What one stream of a GPU has made stays in memory until another one has done with it.

    `Tensor.record_stream` would do. But until the GPU has come that far, and as a rule it lags
    behind what the host asks for, torch asks it about that before each tensor that is made, of
    which a step has a thousand.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[torch.cuda.Event, object]] = deque()

    def __enter__(self) -> Self:
        return self

    def until(self, done: torch.cuda.Event, made: object) -> None:
        if len(self._held) >= MOST_HELD:  # the host is far ahead: memory is not to grow with it
            self._held[0][0].synchronize()
        while self._held and self._held[0][0].query():  # type: ignore[no-untyped-call]
            self._held.popleft()
        self._held.append((done, made))

    def __exit__(self, *_: object) -> None:
        for done, _made in self._held:
            done.synchronize()
        self._held.clear()
