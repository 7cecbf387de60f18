"""Randomness by name: adding a consumer does not shift the numbers of the others."""

import hashlib

import numpy as np


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the consumer called `names`, the same on every machine."""
    text = "\x1f".join([str(seed), *map(str, names)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, *names: object) -> np.random.Generator:
    """`stream(seed, "split", domain)`: an independent generator for each name."""
    return np.random.default_rng(derive(seed, *names))
