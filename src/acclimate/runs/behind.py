"""Files of tensors, written while a GPU goes on working: of ResNet-50 with Adam's state 280 MB.

A step never waits for the disk, the next checkpoint waits for the one before. What is on the disk
at any time is what it would have been a moment earlier, so that a killed run goes on as ever.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.tensors import save_tensors


class Saver(Protocol):
    """To be used in a `with`, at whose end everything is written."""

    def __enter__(self) -> "Saver": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def write(
        self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """`save_tensors`, of what `tensors` are now."""

    def then(self, work: Callable[[], None]) -> None:
        """Do it when all that came before is written."""

    def settle(self) -> None:
        """Wait for that; a write that failed fails here."""


def saver(world: World) -> Saver:
    """Processes that share a run wait for each other's files."""
    return Behind(world.device) if world.device.type == "cuda" and world.size == 1 else AtOnce()


class AtOnce:
    def __enter__(self) -> "AtOnce":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def write(
        self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        save_tensors(path, tensors, metadata)

    def then(self, work: Callable[[], None]) -> None:
        work()

    def settle(self) -> None:
        pass


class Behind:
    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        self._stream = torch.cuda.Stream(device) if self._gpu else None  # type: ignore[no-untyped-call]
        self._pool = ThreadPoolExecutor(1, "checkpoints")
        self._pending: list[Future[None]] = []

    def __enter__(self) -> "Behind":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        if error is None:
            self.settle()

    def write(
        self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        try:
            held = {name: value.detach().clone() for name, value in tensors.items()}
        except torch.OutOfMemoryError:  # there is no room for a second one
            self.settle()
            save_tensors(path, tensors, metadata)
            return
        there = None
        if self._gpu is not None:
            there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            there.record(torch.cuda.current_stream(self._gpu))
        self.then(lambda: self._write(path, held, metadata, there))

    def _write(
        self,
        path: Path,
        held: Mapping[str, Tensor],
        metadata: Mapping[str, str] | None,
        there: torch.cuda.Event | None,
    ) -> None:
        """On a stream of its own: on the other one each copy would wait for the steps before it."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            if self._stream is not None and there is not None:
                self._stream.wait_event(there)
            save_tensors(path, held, metadata)

    def then(self, work: Callable[[], None]) -> None:
        self._pending.append(self._pool.submit(work))

    def settle(self) -> None:
        pending, self._pending = self._pending, []
        for one in pending:
            one.result()
