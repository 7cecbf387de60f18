"""torch's generators, which all threads of a process share: borrowed, and given back."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.RLock()


@contextmanager
def borrowed(device: torch.device | None = None) -> Iterator[None]:
    """Inside, `torch.manual_seed` and what draws from it are this thread's alone, of all that ask
    here; afterwards the caller's random state is what it was.

    Layers draw their weights and dropout from the shared generator and cannot be given another. So
    whoever seeds it does so in here, for as long as one step takes: threads that train take turns.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _LOCK, torch.random.fork_rng(devices=devices):
        yield
