"""Augmentation on a GPU that is asked for in one call.

It is a hundred small operations, over which the GPU takes less time than the host does to ask for
them; and the host has a network to ask for at the same time. So they are recorded as CUDA graphs,
one for each order of the jitter, and played again with the next images and numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from acclimate.data.augment import NUMBERS, Draws, augment, augment_by
from acclimate.data.on_device import free_on
from acclimate.data.source import to_float

NEEDED = 16  # times the memory of the images, more than it takes


def augmented_images(stored: Tensor, draws: Draws) -> Tensor:
    """uint8 images as a network takes them."""
    x = augment(to_float(stored, stored.device), draws)
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x


class Recorder:
    """`augmented_images` on one stream of a GPU; as ever, where there is no room to record it."""

    def __init__(self) -> None:
        self._tape: _Tape | None = None
        self._room = True

    def __call__(self, stored: Tensor, draws: Draws) -> Tensor:
        if self._tape is not None and self._tape.stored.shape == stored.shape:
            try:
                return self._tape.played(stored, draws)
            except torch.OutOfMemoryError:
                self._room, self._tape = False, None
        elif self._tape is None and self._room and stored.is_cuda:
            # This first time makes what is kept, and loads what is to be called.
            self._tape = _Tape(stored)
        return augmented_images(stored, draws)


class _Tape:
    """Graphs read and write the same memory each time, and share what they need in between."""

    def __init__(self, like: Tensor) -> None:
        self.stored = torch.empty_like(like)
        self.numbers = torch.empty((NUMBERS, len(like)), device=like.device)
        made = torch.empty(like.shape, device=like.device)
        self.out = made.to(memory_format=torch.channels_last)
        self.graphs: dict[Sequence[str], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def played(self, stored: Tensor, draws: Draws) -> Tensor:
        self.stored.copy_(stored)
        self.numbers.copy_(torch.from_numpy(draws.packed()), non_blocking=True)
        if draws.order not in self.graphs:
            self.graphs[draws.order] = self._recorded(draws.order)
        self.graphs[draws.order].replay()
        return self.out.clone()  # what was played before may still be in use

    def _recorded(self, order: Sequence[str]) -> torch.cuda.CUDAGraph:
        # Memory that is kept for others cannot be given back meanwhile.
        device = self.out.device
        if not self.graphs and free_on(device) < NEEDED * self.out.nbytes:
            raise torch.OutOfMemoryError
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            x = to_float(self.stored, device)
            self.out.copy_(augment_by(x, self.numbers, order))
        finally:
            graph.capture_end()
        return graph
