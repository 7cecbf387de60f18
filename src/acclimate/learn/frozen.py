"""Frozen features: what a backbone that stays as it is makes of images, extracted once."""

import hashlib
import json
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError
from acclimate.core.progress import Watch, unwatched
from acclimate.core.tensors import require_finite, tensors_digest
from acclimate.data.cache import GIB, FeatureCache, cache_folder, image_identity
from acclimate.data.manifest import Manifest
from acclimate.data.source import Images, ImageSource, Quarantine, numbered, readable
from acclimate.learn.models import Backbone, accelerate
from acclimate.learn.models.engine import TORCH

FORMAT = 3  # of what is extracted: another way of reading or resizing images is another number
SHARD = 128  # images between two writes to the cache: a few seconds of work on two cores
BATCH = 32  # images at a time: larger ones are no faster on a CPU, and take more memory


@dataclass
class Extracted:
    """A source of frozen features. Rows of a manifest that show the same image share a vector."""

    labels: np.ndarray
    features: Tensor  # [images, f]
    image: np.ndarray  # [rows]: the image that each row shows, -1 where that was not extracted
    good: np.ndarray  # [images]: which could be read

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        shown = self.image[rows]
        return self.features[torch.from_numpy(shown)], (shown >= 0) & self.good[shown]


@dataclass(frozen=True)
class Extraction:
    """How images become features: `network` in eval mode and float32, on images of `size` px that
    are decoded and resized as for scoring, and never augmented."""

    network: Backbone
    name: str
    size: int

    def on(self, device: torch.device) -> None:
        """Make ready to extract there."""
        self.network.to(device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        accelerate(self.network)

    @property
    def engine(self) -> str:
        """What computes them there, ONNX Runtime with its version."""
        engines = self.network.engines
        return TORCH if engines is None else engines.at(self.network, self.size).name

    @property
    def key(self) -> str:
        """Where it agrees, so do the features of an image, to the last bit on one machine: weights
        count by content."""
        weights = tensors_digest(self.network.state_dict().items())
        other = [] if self.engine == TORCH else [self.engine]
        known = json.dumps([FORMAT, self.name, weights, self.size, *other])
        return hashlib.sha256(known.encode()).hexdigest()[:32]

    def about(self) -> dict[str, Any]:
        facts = {"backbone": self.name, "size": self.size, "features": self.network.features}
        return {**facts, "engine": self.engine}

    def extract(
        self,
        manifest: Manifest,
        rows: np.ndarray,
        config: DataConfig,
        quarantine: Quarantine,
        *,
        beside: Path,
        world: World,
        watch: Watch = unwatched,
    ) -> Extracted:
        """The features of `rows`, from the cache as far as it has them.

        Processes of a run share the work; where they do not see each other's files, each does all.
        """
        self.on(world.device)
        images, first, shown = _images(manifest, rows)
        self._check_budget(len(images), config)
        cache = FeatureCache(cache_folder(beside) / self.key, self.network.features)
        cache.begin(self.about())
        source = ImageSource(
            manifest,
            self.size,
            replace(config, cache_gib=0.0),
            quarantine,
            make_pack=False,
            processes=world.device.type == "cuda",
        )
        work = _Work(self, cache, source, images, first)
        with cache.alone(images) if world.main else nullcontext():
            work.do(world, watch)
            world.wait()
            if world.size > 1:
                work.do(World(device=world.device), watch)
        watch("features", len(images), len(images), "")
        return Extracted(manifest.label_index, work.features, shown, work.found)

    def kept(self, manifest: Manifest, rows: np.ndarray, *, beside: Path) -> int:
        """How many of the images that `rows` show were extracted before."""
        cache = FeatureCache(cache_folder(beside) / self.key, self.network.features)
        return cache.count(_images(manifest, rows)[0])

    def passed(self, stored: Tensor) -> Tensor:
        """Images as stored [n, 3, h, w] -> [n, f], on the CPU."""
        images = Images(stored, self.network.mean.device)
        with torch.inference_mode():
            features = torch.cat([self.network(x) for x in images.batches(BATCH)]).cpu()
        require_finite(features, "the backbone's features of an image")
        return features

    def _check_budget(self, images: int, config: DataConfig) -> None:
        needed = images * self.network.features * 4 / GIB
        if needed > config.cache_gib:
            raise ConfigError(
                f"the frozen features of {images} images take {needed:.1f} GiB of memory, and "
                f"data.cache_gib allows {config.cache_gib:g}; raise it, or train the backbone with "
                f"--set model.freeze=none"
            )


@dataclass
class _Work:
    """What is known of the features of `images`, and how the rest comes to be known."""

    extraction: Extraction
    cache: FeatureCache
    source: ImageSource
    images: list[bytes]
    rows: np.ndarray  # one of the manifest for each image
    features: Tensor = field(init=False)
    found: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.features = torch.zeros(len(self.images), self.cache.width)
        self.found = np.zeros(len(self.images), dtype=bool)

    def do(self, world: World, watch: Watch) -> None:
        """Read what the cache has, and add this process's share of what it lacks."""
        self.cache.fill(self.images, self.features, self.found)
        missing = np.flatnonzero(~self.found)
        mine = missing[world.share(len(missing))]
        for places, stored in readable(self.source, self.rows[mine], most=SHARD):
            here = mine[places]
            features = self.extraction.passed(stored)
            self.cache.add([self.images[place] for place in here], features)
            self.features[torch.from_numpy(here)], self.found[here] = features, True
            watch("features", int(self.found.sum()), len(self.images), "")


def _images(manifest: Manifest, rows: np.ndarray) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """The images that `rows` show, each once: identities, a row of each, and the image of every
    row of the manifest, -1 for those that are not among `rows`."""
    one, code = numbered(manifest.image_ids[rows])
    places: dict[bytes, int] = {}  # names may differ of what is the same
    found = [
        places.setdefault(image_identity(image), len(places))
        for image in manifest.image_sources(rows[one])
    ]
    _, first = np.unique(found, return_index=True)
    shown = np.full(len(manifest), -1, dtype=np.int64)
    shown[rows] = np.asarray(found, dtype=np.int64)[code]
    return list(places), rows[one[first]], shown
