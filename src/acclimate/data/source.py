"""Rows of a manifest as tensors: one decoding pool, kept in memory when everything fits."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.core.errors import ImageError
from acclimate.data.images import load
from acclimate.data.manifest import Manifest
from acclimate.data.quarantine import Quarantine


class Source(Protocol):
    """`take` gives rows as stored (uint8 images or float features) and which could be read."""

    labels: np.ndarray

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]: ...


class FeatureSource:
    def __init__(self, manifest: Manifest) -> None:
        self.labels = manifest.label_index
        self.features = torch.from_numpy(manifest.features())

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        return self.features[torch.from_numpy(rows)], np.ones(len(rows), dtype=bool)


class ImageSource:
    """Threads, not processes: Pillow decodes outside the interpreter lock, nothing is copied
    between processes, and training and evaluation share one pool and one cache."""

    def __init__(
        self, manifest: Manifest, size: int, config: DataConfig, quarantine: Quarantine
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
            readable = list(self.pool.map(self._read, rows, images))
            return images, np.array(readable, dtype=bool)
        missing = np.unique(rows[self.state[rows] == 0])
        places = [self.cache[int(row)] for row in missing]
        self.state[missing] = np.where(list(self.pool.map(self._read, missing, places)), 1, -1)
        return self.cache[torch.from_numpy(rows)], self.state[rows] == 1

    def _read(self, row: int, into: Tensor) -> bool:
        if self.state[row] == -1:
            return False
        try:
            source = self.manifest.image_source(int(row))
            pixels = load(source, self.size, max_pixels=self.config.max_pixels)
        except ImageError as error:
            self.state[row] = -1
            self.quarantine.add(self.manifest.image_name(int(row)), str(error))
            return False
        into.copy_(torch.from_numpy(pixels))
        return True


def open_source(
    manifest: Manifest, size: int, config: DataConfig, quarantine: Quarantine
) -> FeatureSource | ImageSource:
    if manifest.has_features:
        return FeatureSource(manifest)
    return ImageSource(manifest, size, config, quarantine)


def to_float(stored: Tensor, device: torch.device) -> Tensor:
    """Stored rows as a network takes them: images in 0..1, features as they are."""
    moved = stored.to(device, non_blocking=True)
    if moved.dtype != torch.uint8:
        return moved
    return moved.float().div_(255).contiguous(memory_format=torch.channels_last)
