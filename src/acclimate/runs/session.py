"""One sitting in a folder: its plan, processes, data and clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from acclimate import __version__
from acclimate.core.distributed import World
from acclimate.core.randomness import derive
from acclimate.core.watch import Watch
from acclimate.data.quarantine import Quarantine
from acclimate.data.source import FeatureSource, ImageSource, open_source
from acclimate.learn.embeddings import Embedding
from acclimate.learn.models import Predictor
from acclimate.runs.checkpoint import seconds_worked
from acclimate.runs.folder import RunFolder
from acclimate.runs.identity import settings_digest
from acclimate.runs.plan import Plan
from acclimate.runs.records import Started


@dataclass
class Sitting:
    """Work on a run, or on a shared Φ, from the start of a process to its end."""

    plan: Plan
    folder: RunFolder
    world: World
    watch: Watch
    source: FeatureSource | ImageSource = field(init=False)
    quarantine: Quarantine = field(init=False)
    _before: float = field(init=False, default=0.0)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = time.perf_counter()

    def begin(self, identity: dict[str, Any], size: int) -> None:
        """Open the data at inputs of `size`, and say in the records that work goes on."""
        config, manifest = self.plan.config, self.plan.manifest
        self.quarantine = Quarantine(
            self.folder.quarantine,
            total=len(manifest),
            max_share=config.data.max_unreadable,
        )
        self.source = open_source(manifest, size, config.data, self.quarantine)
        self._before = seconds_worked(self.folder.checkpoints())
        if self.world.main:
            self._announce(identity)

    def seconds(self) -> float:
        """Worked until now, with what earlier sittings worked."""
        return self._before + time.perf_counter() - self._started

    @property
    def bf16(self) -> bool:
        wanted = self.plan.config.train.precision
        if wanted == "auto":
            device = self.world.device
            return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return wanted == "bf16"

    def _announce(self, identity: dict[str, Any]) -> None:
        losses = self.folder.records().losses
        self.folder.append(
            Started(
                time=datetime.now(UTC).isoformat(timespec="microseconds"),
                version=__version__,
                config_digest=settings_digest(identity),
                data_digest=identity["data"],
                device=_device_name(self.world.device),
                processes=self.world.size,
                resumed_at=f"{losses[-1].phase} {losses[-1].step}" if losses else None,
            ),
        )


@contextmanager
def locked(folder: RunFolder, world: World) -> Iterator[None]:
    """The folder's lock, held by the first of the processes for all of them."""
    with folder.locked() if world.main else nullcontext():
        world.wait()
        yield


def take(folder: RunFolder, identity: dict[str, Any], world: World) -> None:
    world.wait()  # every process has looked at the folder before the first one writes
    if world.main:
        folder.take(identity)
    world.wait()


def seed_weights(plan: Plan) -> None:
    """Before networks are built: their random weights are the seed's."""
    torch.manual_seed(derive(plan.config.seed, "initial weights"))


def in_features(plan: Plan) -> int | None:
    """Width of the feature vectors, None for images."""
    manifest = plan.manifest
    return int(manifest.features().shape[1]) if manifest.has_features else None


def prepare(plan: Plan, world: World, *networks: Predictor | Embedding) -> int:
    """Fit fresh networks to the data and the device; the side of images, or number of features."""
    backbones: list[Any] = [network.backbone for network in networks]
    size = in_features(plan)
    if size is None:
        size = plan.config.data.image_size or int(backbones[0].size)
    else:
        _set_statistics(plan.manifest.features()[np.concatenate(plan.train_rows)], backbones)
    for network in networks:
        # Images come channels-last, the faster layout for convolutions everywhere.
        network.to(world.device)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return size


def _set_statistics(features: np.ndarray, backbones: list[Any]) -> None:
    """Feature mode: inputs are standardised with the training rows' mean and deviation."""
    # In float64: a float32 sum over millions of rows drifts.
    mean, std = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    std = np.where(std > 0, std, 1.0)
    for backbone in backbones:
        backbone.set_statistics(torch.from_numpy(mean).float(), torch.from_numpy(std).float())


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type}, {threads} thread{'s' * (threads > 1)}"
