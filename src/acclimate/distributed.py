"""Processes that share one run. Started by `torchrun`; a single process needs nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from acclimate.errors import ConfigError, unknown


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
        parts = all_gather(local.contiguous())  # type: ignore[no-untyped-call]
        return torch.stack(list(parts), dim=1).flatten(0, 1)

    def sum(self, tensor: Tensor) -> Tensor:
        """Elementwise sum over the processes, without gradients."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """Join the process group that the launcher's environment describes, and leave it at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = pick_device(device)
    if size == 1:
        yield World(device=chosen)
        return
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size(), chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), chosen)
    finally:
        dist.destroy_process_group()


def pick_device(name: str = "auto") -> torch.device:
    """`auto`: a GPU where there is one; `cuda` without a number is this process's own."""
    gpu = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if gpu else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown(f"there is no device '{name}'", name, ["auto", "cpu", "cuda"]) from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise unknown(f"there is no device '{name}'", name, ["auto", "cpu", "cuda"])
    if not gpu:
        raise ConfigError(f"device '{name}' was asked for, but torch finds no GPU here; use cpu")
    if (device.index or 0) >= max(torch.cuda.device_count(), 1):
        raise ConfigError(
            f"device '{name}' was asked for, but there are {torch.cuda.device_count()} GPUs here"
        )
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local) if device.index is None else device
