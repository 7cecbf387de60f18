"""Files of tensors, written while a GPU goes on working: of ResNet-50 with Adam's state 280 MB.

A copy in the host's memory is written by a thread. A checkpoint that is due while the one before is
still being written is left out, so that no training waits for a slow disk; what is on the disk at
any time is what was there a moment earlier, and a killed run goes on from it as ever.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.tensors import save_tensors

MOST = 3  # files whose content is held


class Saver(ABC):
    """To be used in a `with`, at whose end everything is written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end()
        if error is None:
            self.settle()

    @abstractmethod
    def write(
        self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """`save_tensors`, of what `tensors` are now."""

    @abstractmethod
    def then(self, work: Callable[[], None]) -> None:
        """Do it when all that came before is written."""

    def writing(self, path: Path) -> bool:
        """Whether it is yet to be written, or being written."""
        return False

    def settle(self) -> None:  # noqa: B027 (where nothing is left to wait for)
        """Wait for that; a write that failed fails here, or in the next one."""

    def end(self) -> None:  # noqa: B027
        """Wait for it, failed or not, and take no more."""


def saver(world: World) -> Saver:
    """Processes that share a run wait for each other's files."""
    return Behind(world.device) if world.device.type == "cuda" and world.size == 1 else AtOnce()


class AtOnce(Saver):
    def write(
        self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        save_tensors(path, tensors, metadata)

    def then(self, work: Callable[[], None]) -> None:
        work()


class Behind(Saver):
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(1, "checkpoints")
        self._pending: deque[tuple[Path | None, Future[None]]] = deque()

    def end(self) -> None:
        self._pool.shutdown()

    def write(
        self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        self._make_room()
        held = {name: _copied(value.detach()) for name, value in tensors.items()}
        copied = None
        if self._device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(self._device))

        def write() -> None:
            if copied is not None:
                copied.synchronize()
            save_tensors(path, held, metadata)

        self._add(path, write)

    def then(self, work: Callable[[], None]) -> None:
        self._add(None, work)

    def _add(self, path: Path | None, work: Callable[[], None]) -> None:
        before = [one for _, one in self._pending]

        def in_turn() -> None:
            for one in before:
                one.result()  # nothing is done after a write that failed
            work()

        self._pending.append((path, self._pool.submit(in_turn)))

    def _make_room(self) -> None:
        """What is written is no longer held; of a slow disk so much is waited for that memory does
        not fill."""
        while self._pending and (self._pending[0][1].done() or self._held() >= MOST):
            self._pending.popleft()[1].result()

    def _held(self) -> int:
        return sum(path is not None for path, _ in self._pending)

    def writing(self, path: Path) -> bool:
        return any(path == one and not future.done() for one, future in self._pending)

    def settle(self) -> None:
        pending, self._pending = self._pending, deque()
        for _, one in pending:
            one.result()


def _copied(tensor: Tensor) -> Tensor:
    """On the host, where a GPU's is complete when its stream has come so far: nobody waits here,
    and the GPU's memory, of which there may be none left, stays as it is."""
    return tensor.to("cpu", non_blocking=True) if tensor.is_cuda else tensor.clone()
