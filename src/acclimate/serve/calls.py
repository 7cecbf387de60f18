"""What comes with a call: names, keys, and images, which are decoded here."""

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.core.distributed import cores
from acclimate.core.errors import ConfigError, ImageError
from acclimate.core.text import reason_of
from acclimate.data.images import read_pixels
from acclimate.data.source import MOST_THREADS
from acclimate.learn.embeddings.pictures import picture_hashes
from acclimate.serve.batcher import Reservation
from acclimate.serve.models import ServedModel
from acclimate.serve.rows import Content, packed
from acclimate.serve.store import Arrivals

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEY = re.compile(r"[\x21-\x7e]{1,200}")
ID = re.compile(r"[0-9a-f]{16}")


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:100]!r} is no name of a site; use 1 to 100 letters, digits, dots, dashes and "
            f"underscores, with a letter or digit first"
        )


def check_key(key: str | None) -> None:
    if key is not None and not KEY.fullmatch(key):
        raise ConfigError(
            f"{key[:50]!r} is no idempotency key; use 1 to 200 characters of ASCII without spaces"
        )


def picture_id(number: int) -> str:
    """A picture's hash as 16 hexadecimal digits."""
    return f"{number % 2**64:016x}"


def number_of(picture: str) -> int:
    """The hash that an id stands for."""
    if not ID.fullmatch(picture):
        raise ConfigError(f"{picture[:50]!r} is no id of a picture; ids have 16 hexadecimal digits")
    number = int(picture, 16)
    return number - 2**64 if number >= 2**63 else number


def digest_of(*parts: bytes | str) -> str:
    """Of all parts, and of where each ends."""
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else part.encode()
        whole.update(f"{len(content)}:".encode())
        whole.update(content)
    return whole.hexdigest()


@dataclass(frozen=True)
class Decoded:
    """Those of a call's images that can be read, as stored, and why the others cannot."""

    stored: Tensor  # [m, 3, h, w] uint8
    places: Sequence[int]  # [m] in the call
    reasons: dict[int, str]  # by place
    unreadable: Sequence[int] = ()  # numbers of the files that are no images, by their content

    def __len__(self) -> int:
        """Images of the call."""
        return len(self.places) + len(self.reasons)


class Decoder:
    """Decodes images of at most so many MiB, in as many threads as there are cores."""

    def __init__(self, most: int) -> None:
        self.most = most
        threads = min(cores(), MOST_THREADS)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def __call__(self, model: ServedModel, images: Sequence[bytes]) -> Decoded:
        """Images as a model sees them."""
        size, max_pixels = model.trained.size, model.trained.config.data.max_pixels

        def read(image: bytes) -> np.ndarray | str:
            if len(image) > self.most << 20:
                return f"{len(image)} bytes, over the limit of {self.most} MiB"
            try:
                return read_pixels(image, size, max_pixels=max_pixels)
            except ImageError as error:
                return reason_of(error)

        pixels, reasons = dict[int, np.ndarray](), dict[int, str]()
        for place, one in enumerate(self._threads.map(read, images)):
            if isinstance(one, str):
                reasons[place] = one
            else:
                pixels[place] = one
        empty = np.zeros((0, 3, size, size), np.uint8)
        stored = np.stack([*pixels.values()]) if pixels else empty
        unreadable = [
            int.from_bytes(hashlib.blake2b(images[place], digest_size=8).digest(), signed=True)
            for place in reasons
        ]
        return Decoded(torch.from_numpy(stored), [*pixels], reasons, unreadable)

    def close(self) -> None:
        self._threads.shutdown()


@dataclass
class Look:
    """A call's images as one model sees them, each picture once."""

    model: ServedModel
    decoded: Decoded
    labels: Sequence[str | None]  # of the call's images
    pixels: bool  # whether they are to be kept as well
    contents: dict[int, Content] = field(default_factory=dict)  # by hash

    def __post_init__(self) -> None:
        hashes, new = picture_hashes(self.decoded.stored, {})
        self._numbers = dict(zip(self.decoded.places, hashes.tolist(), strict=True))
        rows = torch.arange(len(hashes))[new].tolist()
        self._rows = dict(zip(hashes[new].tolist(), rows, strict=True))

    @property
    def about(self) -> dict[str, Any]:
        """What the caller hears of the images, also when the call is repeated."""
        places, reasons = range(len(self.decoded)), self.decoded.reasons
        return {
            "pictures": [
                picture_id(self._numbers[place]) if place in self._numbers else None
                for place in places
            ],
            "unreadable": [{"index": place, "reason": why} for place, why in reasons.items()],
            "twice": len(self._numbers) - len(self._rows),
        }

    def arrivals(self) -> Arrivals:
        labels = {
            number: label
            for place, number in self._numbers.items()
            if (label := self.labels[place]) is not None
        }
        return Arrivals([*self._rows], labels, self.contents)

    def extract(self, hashes: Sequence[int], room: Reservation) -> None:
        """Have the contents of these pictures made."""
        if not hashes:
            return
        stored = self.decoded.stored[[self._rows[number] for number in hashes]]
        made = room.run(self.model.backbone, stored, phi=self.model.phi)
        assert made.features is not None
        nothing: list[bytes | None] = [None] * len(hashes)
        phi = nothing if made.phi is None else packed(made.phi)
        pixels = [row.numpy().tobytes() for row in stored] if self.pixels else nothing
        rows = zip(hashes, packed(made.features), phi, pixels, strict=True)
        self.contents.update({number: Content(*content) for number, *content in rows})
