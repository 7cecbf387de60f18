"""Frozen features: what a backbone that stays as it is makes of images, extracted once."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError
from acclimate.core.files import json_digest
from acclimate.core.progress import Watch, unwatched
from acclimate.core.tensors import require_finite, tensors_digest
from acclimate.data.cache import GIB, FeatureCache, cache_folder
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import content_digests
from acclimate.data.source import FeatureSource, ImageSource, Quarantine, numbered, readable
from acclimate.learn.images import Images
from acclimate.learn.models import Backbone, accelerate
from acclimate.learn.models.backbones import BATCH, TORCH, engine_at

FORMAT = 3  # of what is extracted: another way of reading or resizing images is another number
SHARD = 128  # images between two writes to the cache: a few seconds of work on two cores


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
        return engine_at(self.network, self.size).name

    @property
    def key(self) -> str:
        """Where it agrees, so do the features of an image, to the last bit on one machine: weights
        count by content."""
        weights = tensors_digest(self.network.state_dict().items())
        other = [] if self.engine == TORCH else [self.engine]
        return json_digest([FORMAT, self.name, weights, self.size, *other])[:32]

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
    ) -> FeatureSource:
        """The features of `rows`, from the cache as far as it has them.

        Processes of a run share the work; where they do not see each other's files, each does all.
        """
        self.on(world.device)
        images, first, image = _images(manifest, rows)
        width = self.network.features
        needed = len(images) * width * 4 / GIB
        if needed > config.cache_gib:
            raise ConfigError(
                f"the frozen features of {len(images)} images take {needed:.1f} GiB of memory, and "
                f"data.cache_gib allows {config.cache_gib:g}; raise it, or train the backbone with "
                f"--set model.freeze=none"
            )
        cache = FeatureCache(cache_folder(beside) / self.key, width)
        about = {"backbone": self.name, "size": self.size, "features": width, "engine": self.engine}
        cache.begin(about)
        decoded = replace(config, cache_gib=0.0)
        gpu = world.device.type == "cuda"
        source = ImageSource(
            manifest, self.size, decoded, quarantine, make_pack=False, processes=gpu
        )
        features, good = torch.zeros(len(images), width), np.zeros(len(images), dtype=bool)

        def work(world: World) -> None:
            """Read what the cache has, and add this process's share of what it lacks."""
            cache.fill(images, features, good)
            missing = np.flatnonzero(~good)
            share = missing[world.share(len(missing))]
            for places, stored in readable(source, first[share], most=SHARD):
                chosen = share[places]
                computed = self._features(stored)
                cache.add([images[place] for place in chosen], computed)
                features[torch.from_numpy(chosen)], good[chosen] = computed, True
                watch("features", int(good.sum()), len(images), "")

        with cache.alone(images) if world.main else nullcontext():
            work(world)
            world.wait()
            if world.size > 1:
                work(World(device=world.device))
        watch("features", len(images), len(images), "")
        return FeatureSource(manifest.label_index, features, image, good)

    def _features(self, stored: Tensor) -> Tensor:
        """Images as stored [n, 3, h, w] -> [n, f], on the CPU."""
        images = Images(stored, self.network.mean.device)
        with torch.inference_mode():
            features = torch.cat([self.network(x) for x in images.batches(BATCH)]).cpu()
        require_finite(features, "the backbone's features of an image")
        return features


def _images(manifest: Manifest, rows: np.ndarray) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """The images that `rows` show, each once: identities, a row of each, and the image of every
    row of the manifest, -1 for those that are not among `rows`."""
    one, code = numbered(manifest.image_ids[rows])
    places: dict[bytes, int] = {}  # names may differ of what is the same
    identities = content_digests(list(manifest.image_sources(rows[one])))
    numbers = [places.setdefault(identity, len(places)) for identity in identities]
    _, first = np.unique(numbers, return_index=True)
    image = np.full(len(manifest), -1, dtype=np.int64)
    image[rows] = np.asarray(numbers, dtype=np.int64)[code]
    return list(places), rows[one[first]], image
