"""Images in, stored rows out: one decoding pool, kept in memory when everything fits.

Rows come from a manifest, or from what a user hands over; training, scoring, adaptation and
prediction all read them here.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.core.errors import ConfigError, ImageError
from acclimate.core.watch import Watch, unwatched
from acclimate.data.columns import require_finite
from acclimate.data.images import as_pixels, find_images
from acclimate.data.manifest import Manifest
from acclimate.data.quarantine import Quarantine

EVALUATION_BATCH = 256  # rows that a network sees at a time where nothing is learned


class Source(Protocol):
    """`take` gives rows as stored (uint8 images or float features) and which could be read."""

    labels: np.ndarray

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]: ...


@dataclass(frozen=True)
class Given:
    """What a user hands over, in the place of a manifest: without labels, and named by place."""

    items: Any  # images, or features [n, f]
    has_features: bool = False

    @classmethod
    def images(cls, images: Any) -> "Given":
        """One path (file or folder) means what is below it, one image is one image, and anything
        else is a sequence of images."""
        if isinstance(images, str | Path):
            return cls(find_images([images]))
        shape = tuple(getattr(images, "shape", ()))
        colours_first = isinstance(images, Tensor) and len(shape) == 3 and shape[0] == 3
        colours_last = len(shape) == 3 and shape[-1] == 3
        if isinstance(images, Image.Image) or len(shape) == 2 or colours_first or colours_last:
            return cls([images])
        return cls(images if isinstance(images, Sequence) else list(images))

    @classmethod
    def rows(cls, features: Any, width: int) -> "Given":
        """Feature rows for a model that takes `width` of them."""
        try:
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite
                rows = np.asarray(features, dtype=np.float32)
        except (TypeError, ValueError):
            raise ConfigError(
                f"this model takes arrays of features [n, {width}], not images"
            ) from None
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ConfigError(f"this model takes features [n, {width}], not shape {rows.shape}")
        require_finite(rows)
        return cls(rows, has_features=True)

    @property
    def label_index(self) -> np.ndarray:
        return np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.items)

    def features(self) -> np.ndarray:
        features: np.ndarray = self.items
        return features

    def image_source(self, row: int) -> Any:
        return self.items[row]

    def image_name(self, row: int) -> str:
        item = self.items[row]
        return str(item) if isinstance(item, str | Path) else f"image {row}"


class FeatureSource:
    def __init__(self, manifest: Manifest | Given) -> None:
        self.labels = manifest.label_index
        self.features = torch.from_numpy(manifest.features())

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        return self.features[torch.from_numpy(rows)], np.ones(len(rows), dtype=bool)


class ImageSource:
    """Threads, not processes: Pillow decodes outside the interpreter lock, nothing is copied
    between processes, and training and evaluation share one pool and one cache."""

    def __init__(
        self, manifest: Manifest | Given, size: int, config: DataConfig, quarantine: Quarantine
    ) -> None:
        self.manifest, self.size, self.config, self.quarantine = manifest, size, config, quarantine
        self.labels = manifest.label_index
        self.pool = ThreadPoolExecutor(config.workers or os.cpu_count() or 1, "decode")
        shape = (len(manifest), 3, size, size)
        fits = np.prod(shape, dtype=np.int64) <= config.cache_gib * 2**30
        self.cache = torch.empty(shape, dtype=torch.uint8) if fits else None
        self.state = np.zeros(len(manifest), dtype=np.int8)  # 0 unknown, 1 cached, -1 unreadable

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        if self.cache is None:
            images = torch.zeros((len(rows), 3, self.size, self.size), dtype=torch.uint8)
            self._read_all(rows, images)
            return images, self.state[rows] != -1
        missing = np.unique(rows[self.state[rows] == 0])
        self._read_all(missing, [self.cache[int(row)] for row in missing])
        self.state[missing] = np.where(self.state[missing] == -1, -1, 1)
        return self.cache[torch.from_numpy(rows)], self.state[rows] == 1

    def _read_all(self, rows: np.ndarray, into: Sequence[Tensor] | Tensor) -> None:
        """Decode on all threads; what cannot be read is listed in the order of `rows`."""
        for row, error in zip(rows, self.pool.map(self._read, rows, into), strict=True):
            if error is not None:
                self.state[row] = -1
                self.quarantine.add(self.manifest.image_name(int(row)), str(error))

    def _read(self, row: int, into: Tensor) -> ImageError | None:
        if self.state[row] == -1:
            return None
        try:
            image = self.manifest.image_source(int(row))
            pixels = as_pixels(image, self.size, max_pixels=self.config.max_pixels)
        except ImageError as error:
            return error
        into.copy_(torch.from_numpy(pixels))
        return None


def open_source(
    manifest: Manifest | Given, size: int, config: DataConfig, quarantine: Quarantine
) -> FeatureSource | ImageSource:
    if manifest.has_features:
        return FeatureSource(manifest)
    return ImageSource(manifest, size, config, quarantine)


def readable(
    source: Source,
    rows: np.ndarray,
    watch: Watch = unwatched,
    *,
    most: int = EVALUATION_BATCH,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Batches of the readable of `rows`: their places in `rows`, and them as stored."""
    for start in range(0, len(rows), most):
        places = np.arange(len(rows))[start : start + most]
        stored, good = source.take(rows[places])
        if good.any():
            yield places[good], stored[torch.from_numpy(good)]
        watch("images", start + len(places), len(rows), "")


@dataclass(frozen=True)
class Images:
    """Unlabelled images (or feature rows) of one domain, as stored; they can be read repeatedly."""

    stored: Tensor  # [n, 3, h, w] uint8, or [n, f]
    device: torch.device

    def __len__(self) -> int:
        return len(self.stored)

    def batches(self, most: int = EVALUATION_BATCH) -> Iterator[Tensor]:
        """Even batches of at most `most`, as a network takes them: a last batch of one image
        would have no statistics."""
        for part in self.stored.tensor_split(ceil(len(self) / most)):
            yield to_float(part, self.device)


def to_float(stored: Tensor, device: torch.device) -> Tensor:
    """Stored rows as a network takes them: images in 0..1, features as they are."""
    moved = stored.to(device, non_blocking=True)
    if moved.dtype != torch.uint8:
        return moved
    return moved.float().div_(255).contiguous(memory_format=torch.channels_last)
