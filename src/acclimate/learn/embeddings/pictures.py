"""The pictures that a state keeps of a domain: a set, whatever the order in which they came."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

KEPT = 500  # pictures that a state keeps unless told otherwise
UNLABELLED = -1
KEY = b"pictures of a domain"  # of the hashes, whose order says which pictures are kept
PARTS = ("hashes", "features", "labels")
NO_NUMBERS, NO_ROWS = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0)
STEP = 0x9E3779B97F4A7C15  # from the hash of a row of features to that of an equal one


@dataclass(frozen=True)
class Pictures:
    """What is kept of each picture, ascending by its hash.

    Hashes are as good as random numbers: the pictures with the smallest ones are a uniform sample,
    also of the union of two such samples.
    """

    hashes: Tensor = NO_NUMBERS  # [k] int64
    features: Tensor = NO_ROWS  # [k, f], by the model's backbone
    labels: Tensor = NO_NUMBERS  # [k] int64: classes, or UNLABELLED

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def labelled(self) -> int:
        return int((self.labels != UNLABELLED).sum())

    @classmethod
    def union(cls, parts: Sequence["Pictures"]) -> "Pictures":
        """Every picture once, in float32, with the last label that it was given."""
        some = [part for part in parts if len(part)]
        if not some:
            return cls()
        hashes, features, labels = (
            torch.cat([getattr(part, name) for part in some]) for name in PARTS
        )
        every, first, place = np.unique(hashes, return_index=True, return_inverse=True)
        given, known = np.full(len(every), UNLABELLED), (labels != UNLABELLED).numpy()
        given[place[known]] = labels[known]  # of several the last
        return cls(torch.from_numpy(every), features[first].float(), torch.from_numpy(given))

    def sample(self, most: int) -> "Pictures":
        """At most so many, labelled ones first, and of equals those with the smallest hashes."""
        order = np.lexsort((self.hashes, self.labels == UNLABELLED))
        return self.take(torch.from_numpy(np.sort(order[:most])))

    def take(self, rows: Tensor) -> "Pictures":
        """Those at these places, or where `rows` is true."""
        return Pictures(*(getattr(self, name)[rows] for name in PARTS))

    def halved(self) -> "Pictures":
        """With features in 16 bits."""
        return replace(self, features=in_16_bits(self.features))

    @property
    def sound(self) -> bool:
        """Whether a file may hold these; all numbers are finite."""
        hashes, features, labels = self.hashes, self.features, self.labels
        return (
            (hashes.dtype, hashes.ndim) == (labels.dtype, labels.ndim) == (torch.int64, 1)
            and (features.dtype in (torch.half, torch.float32), features.ndim) == (True, 2)
            and len(hashes) == len(features) == len(labels)
            and bool((hashes[1:] > hashes[:-1]).all())
            and bool((labels >= UNLABELLED).all())
        )

    def fit(self, width: int, classes: int) -> bool:
        """Whether they are of a model with so many features and classes."""
        same = self.features.shape[1] == width and bool((self.labels < classes).all())
        return same or not len(self)


NO_PICTURES = Pictures()


def in_16_bits(features: Tensor) -> Tensor:
    """Features as they are kept: finite, whatever the network says."""
    most = torch.finfo(torch.half).max
    return features.clamp(-most, most).half()


def picture_hashes(stored: Tensor, known: dict[int, int]) -> tuple[Tensor, Tensor]:
    """A hash of each row as a source stores it [n] int64, and whether it is a new picture [n] bool.

    `known` has the hashes of earlier rows, and gets these. Equal images are one picture. Equal rows
    of features are two, since two measurements may agree: the second gets another hash, which
    `known` has for that of the first.
    """
    features, hashes, new = stored.dtype != torch.uint8, [], []
    for row in stored:
        content = row.contiguous().numpy().data
        digest = hashlib.blake2b(content, digest_size=8, key=KEY).digest()
        first = int.from_bytes(digest, "big", signed=True)
        number = known.get(first, first)
        while features and number in known:
            number = (number + STEP + 2**63) % 2**64 - 2**63
        hashes.append(number)
        new.append(number not in known)
        known[first] = known[number] = number
    return torch.tensor(hashes, dtype=torch.int64), torch.tensor(new, dtype=torch.bool)
