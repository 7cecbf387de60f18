"""Batches that do not fit into memory at once: backbones work them off in parts."""

from collections.abc import Callable
from types import TracebackType

import torch

from acclimate.core.errors import RunError
from acclimate.core.graphs import give_back
from acclimate.learn.objective import Losses, Objective
from acclimate.runs.compiling import trained_backbones

LEAST = 2  # images of a part: batch norm takes no single one
LOWER = "lower train.per_domain, embedding.per_domain or data.image_size"  # where nothing helps


class Parts:
    """In how many parts an objective's backbones work a batch off, for as long as it is trained."""

    def __init__(self, objective: Objective, count: int, say: Callable[[str], None]) -> None:
        self.objective, self.count, self.say = objective, count, say
        self.backbones = trained_backbones(objective) if objective.divisible else []

    def __enter__(self) -> "Parts":
        self._set(self.count)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._set(1)

    def _set(self, count: int) -> None:
        for backbone in self.backbones:
            backbone.parts = count

    def until_it_fits(self, gradients: Callable[[], list[Losses]], images: int) -> list[Losses]:
        """What a step learns from so many images; as long as a GPU's memory is too small for it, as
        PyTorch is by itself, and then in more parts.

        What an attempt that fails has changed by then, statistics and the like, is put back: the
        next one is a first one again.
        """
        before = [(buffer, buffer.clone()) for buffer in self.objective.buffers()]
        while True:
            try:
                return gradients()
            except torch.OutOfMemoryError as error:
                more = 2 * self.count
                swift = [one for one in trained_backbones(self.objective) if one.stand_in]
                if not swift and (not self.backbones or images // more < LEAST):
                    raise RunError(self._too_large(images)) from error
            for parameter in self.objective.parameters():
                parameter.grad = None
            with torch.no_grad():
                for buffer, value in before:
                    buffer.copy_(value)
            for backbone in swift:
                backbone.stand_in = None  # what was recorded or compiled may take what is missing
            if not swift:
                self.count = more
                self._set(more)
                self.say(f"the GPU's memory is too small for {images} images: {said(more)}")
            give_back()

    def _too_large(self, images: int) -> str:
        name = type(self.objective).__name__
        why = "" if self.objective.divisible else f", and {name} cannot work it off in parts"
        return f"the GPU's memory is too small for a batch of {images} images{why}; {LOWER}"


def said(parts: int) -> str:
    """What working off in parts means, in words."""
    return (
        f"the network works them off in {parts} parts, each worked out twice; losses are those of "
        f"the whole batch, and batch norm, where it learns statistics, takes each part's"
    )
