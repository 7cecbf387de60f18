"""Processes that share one run. Started by `torchrun`; a single process needs nothing."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn import functional as differentiable

from acclimate.core.environment import launched
from acclimate.core.errors import ConfigError, unknown
from acclimate.core.text import count

BUSY = 1.5  # processes that want each core


@dataclass(frozen=True)
class World:
    """This process among the others, and the device it works on."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def main(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of `count` things: every `size`-th from `rank` on."""
        return slice(self.rank, count, self.size)

    def gather(self, local: Tensor) -> Tensor:
        """The whole batch's tensor in its original order, with gradients to every process.

        Each process that then computes the same loss sends its gradient back; data parallelism
        averages parameters' gradients over processes, so that the sum comes out as in one process.
        """
        if self.size == 1:
            return local
        parts = differentiable.all_gather(local.contiguous())  # type: ignore[no-untyped-call]
        for part in parts:
            if part.requires_grad:
                # Its backward pass reads a gradient that is laid out column by column as rows.
                part.register_hook(Tensor.contiguous)
        return torch.stack(parts, dim=1).flatten(0, 1)

    def whole(self, domain: Tensor) -> Tensor:
        """The whole batch's domains in its original order, out of this process's, without asking.

        Rows of a domain lie together, as many as can be shared equally (`check_shares`).
        """
        return domain.repeat_interleave(self.size)

    def mean(self, tensor: Tensor) -> Tensor:
        """Elementwise mean over the processes, with gradients to every process."""
        if self.size == 1:
            return tensor
        total: Tensor = differentiable.all_reduce(tensor)  # type: ignore[no-untyped-call]
        return total / self.size

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with the first process's."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)

    def sum(self, tensor: Tensor) -> Tensor:
        """Elementwise sum over the processes, without gradients."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def largest(self, tensor: Tensor) -> Tensor:
        """Elementwise maximum over the processes, without gradients."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, op=operation)
        return tensor

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """Join the process group that the launcher's environment describes, and leave it at the end."""
    size = launched("WORLD_SIZE", 1)
    chosen = pick_device(device)
    if size == 1:
        yield World(device=chosen)
        return
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size(), chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # One process rehearses, and builds graphs and packs, while the others wait for it.
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(hours=12))
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the {size} processes of WORLD_SIZE do not meet ({reason}); start them with torchrun, "
            f"or unset WORLD_SIZE"
        ) from None
    try:
        yield World(dist.get_rank(), dist.get_world_size(), chosen)
    finally:
        dist.destroy_process_group()


_share: int | None = None  # of the cores, that this process was told to take


def use_threads(count: int) -> None:
    """Take no more than so many cores from now on: others work on this machine, too."""
    global _share
    _share = count
    torch.set_num_threads(count)


def cores() -> int:
    """That this process may use: a container often has fewer than its machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    found = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(found, _share or found)


def busy_with() -> str:
    """What other work keeps this machine busy, in words; "" where it is idle, or does not say."""
    averages = getattr(os, "getloadavg", None)
    load, own = (averages()[0] if averages else 0.0), os.cpu_count() or 1
    return f"load {load:.1f} on {count(own, 'core')}" if load > BUSY * own else ""


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, arithmetic takes one thread: many small operations, each split over threads that wait
    for one another, take a hundred times as long where other processes are busy."""
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def local_processes() -> int:
    """How many processes of this run share the machine."""
    return max(launched("LOCAL_WORLD_SIZE", 1), 1)


def keep_freed_memory() -> None:
    """Let the C library keep large blocks for reuse instead of giving them back to the system.

    On a CPU a convolutional network spends half of its time fetching them again otherwise
    (EfficientNet-Lite0, 224 px, batch 64, 2 cores: 14.5 img/s, and 30.1 with this).
    """
    trim_threshold, mmap_threshold, one_gib = -1, -3, 1 << 30  # names and numbers of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # not glibc
    mallopt(mmap_threshold, one_gib)
    mallopt(trim_threshold, one_gib)


def pick_device(name: str = "auto") -> torch.device:
    """`auto`: a GPU where there is one; `cuda` without a number is this process's own."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise unknown(f"there is no device '{name}'", name, ["auto", "cpu", "cuda"])
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(
            f"device '{name}' was asked for, and torch finds {count(gpus, 'GPU')} here; use auto"
        )
    if name == "cuda":
        return torch.device("cuda", launched("LOCAL_RANK", 0))
    return device
