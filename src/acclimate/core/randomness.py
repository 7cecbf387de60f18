"""Randomness by name: adding a consumer does not shift the numbers of the others."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # who only splits rows need not wait for torch
    import torch

_TORCHS = threading.RLock()  # torch has one generator per device, which all threads share


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the consumer called `names`, the same on every machine."""
    text = "\x1f".join([str(seed), *map(str, names)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, *names: object) -> np.random.Generator:
    """`stream(seed, "split", domain)`: an independent generator for each name."""
    return np.random.default_rng(derive(seed, *names))


@contextmanager
def own_generator(seed: int, device: "torch.device | None" = None) -> Iterator[None]:
    """Inside, torch draws initial weights and dropout from `seed`, on the CPU and on `device`.

    Afterwards torch's generators are where they were. Threads that come here take turns.
    """
    import torch

    gpus = [device] if device is not None and device.type == "cuda" else []
    with _TORCHS, torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


own_weights = own_generator  # where layers are built
