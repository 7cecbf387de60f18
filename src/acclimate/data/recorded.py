"""Augmentation on a GPU that is asked for in one call.

It is a hundred small operations, over which the GPU takes less time than the host does to ask for
them; and the host has a network to ask for at the same time. So they are recorded as CUDA graphs,
one for each order of the jitter, and played again with the next images and numbers.
"""

from dataclasses import replace

import torch
from torch import Tensor

from acclimate.core.graphs import recorded_graph
from acclimate.data.augment import Numbers, augment
from acclimate.data.on_device import free_on
from acclimate.data.source import to_float

NEEDED = 16  # times the memory of the images, more than it takes


def augmented_images(stored: Tensor, numbers: Numbers) -> Tensor:
    """uint8 images as a network takes them."""
    x = augment(to_float(stored, stored.device), numbers)
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x


class Recorder:
    """`augmented_images` on one stream of a GPU; as ever, where there is no room to record it."""

    def __init__(self) -> None:
        self._tape: _Tape | None = None
        self._room = True

    def __call__(self, stored: Tensor, numbers: Numbers) -> Tensor:
        if self._tape is not None and self._tape.stored.shape == stored.shape:
            try:
                return self._tape.played(stored, numbers)
            except torch.OutOfMemoryError:
                self._room, self._tape = False, None
        elif self._tape is None and self._room and stored.is_cuda:
            # This first time makes what is kept, and loads what is to be called.
            self._tape = _Tape(stored, numbers)
        return augmented_images(stored, numbers)


class _Tape:
    """Graphs read and write the same memory each time, and share what they need in between."""

    def __init__(self, stored: Tensor, numbers: Numbers) -> None:
        """For images and numbers like these."""
        self.stored = torch.empty_like(stored)
        self.numbers = replace(numbers, values=torch.empty_like(numbers.values))
        made = torch.empty(stored.shape, device=stored.device)
        self.out = made.to(memory_format=torch.channels_last)
        self.graphs: dict[tuple[str, ...], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def played(self, stored: Tensor, numbers: Numbers) -> Tensor:
        self.stored.copy_(stored)
        self.numbers.values.copy_(numbers.values)
        if numbers.order not in self.graphs:
            self.graphs[numbers.order] = self._recorded(numbers.order)
        self.graphs[numbers.order].replay()
        return self.out.clone()  # what was played before may still be in use

    def _recorded(self, order: tuple[str, ...]) -> torch.cuda.CUDAGraph:
        # Memory that is kept for others cannot be given back meanwhile.
        device = self.out.device
        if not self.graphs and free_on(device) < NEEDED * self.out.nbytes:
            raise torch.OutOfMemoryError

        def work() -> None:
            x = to_float(self.stored, device)
            self.out.copy_(augment(x, replace(self.numbers, order=order)))

        return recorded_graph(work, self._pool)
