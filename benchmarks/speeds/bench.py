"""What is measured, on which images, and how each part measures it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from acclimate.config import RunConfig, from_dict, nested
from acclimate.core.randomness import stream
from acclimate.core.tensors import save_tensors
from acclimate.data.batches import Batch, Loader
from acclimate.data.manifest import Manifest
from acclimate.learn.models import build_backbone
from acclimate.records.folder import RunFolder
from acclimate.rehearse.training import train

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is measured: what a GPU does in minutes, or a CPU."""

    backbone: str
    size: int
    images: int  # of each domain; training takes all that a folder has
    per_domain: int
    steps: int
    warm: int
    validate_every: int
    workers: int  # of the incumbent, per domain
    tail: int  # images of the long-tailed case
    turns: int  # of runs beside each other


GPU = Scale("resnet50", 224, 400, 32, 300, 30, 100, 8, 50000, 3)
CPU = Scale("resnet18", 64, 40, 8, 8, 2, 4, 1, 160, 1)
CEILING = "ceiling (one batch)"
NONE_KEPT: dict[str, Any] = {"data.cache_gib": 0.0, "data.pack_gib": 0.0}


@dataclass
class Bench:
    folder: Path
    scale: Scale
    device: torch.device
    manifest: Manifest
    incumbent: dict[str, float] = field(default_factory=dict)  # once it was measured

    @property
    def test(self) -> str:
        return self.manifest.domains[-1]

    def config(self, algorithm: str = "erm", **changes: Any) -> RunConfig:
        scale = self.scale
        values = {
            "algorithm": algorithm,
            "test_domains": [self.test],
            "data.image_size": scale.size,
            "data.augment": "domainbed",
            "model.backbone": scale.backbone,
            "model.pretrained": False,
            "model.freeze": "none",
            "model.freeze_batch_norm": "statistics",
            "train.steps": scale.steps,
            "train.per_domain": scale.per_domain,
            "train.evaluate_every": scale.steps,
            "train.checkpoint_every": max(scale.steps // 3, 1),
            "train.optimiser.lr": 5e-5,
            "embedding.steps": 2,
            "embedding.per_domain": scale.per_domain,
            **changes,
        }
        return from_dict(RunConfig, nested(values), where="benchmark")

    def frozen(self) -> dict[str, Any]:
        """Settings of a backbone that stays as it is; random weights cost what trained ones do."""
        weights = self.folder / "weights.safetensors"
        if not weights.exists():
            backbone = build_backbone(self.scale.backbone, pretrained=False)
            save_tensors(weights, backbone.body.state_dict())
        return {"model.freeze": "backbone", "model.weights": str(weights)}

    def trained(self, name: str, config: RunConfig) -> tuple[Path, float]:
        """A run, and how long it took from the first line to the last."""
        out, started = self.folder / name, time.perf_counter()
        train(config, self.manifest, out, device=str(self.device))
        return out, time.perf_counter() - started

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], times: int = 3) -> float:
        """The shortest of some."""
        return self.beside({"": work}, times)[""]

    def beside(self, works: Mapping[str, Callable[[], object]], times: int) -> dict[str, float]:
        """The shortest of some of each, in turn: what slows the machine slows all of them."""
        found: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(times + 1):
            for name, work in works.items():
                self.wait()
                started = time.perf_counter()
                work()
                self.wait()
                if turn:  # the first is to warm up
                    found[name].append(time.perf_counter() - started)
        return {name: min(seconds) for name, seconds in found.items()}


def make_images(folder: Path, count: int, side: int = 227) -> None:
    """Four domains of four classes: smooth colours with some noise, as JPEGs of PACS's size."""
    places = [(domain, number) for domain in range(4) for number in range(count)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_make_image, folder, side), places, chunksize=64))


def _make_image(folder: Path, side: int, place: tuple[int, int]) -> None:
    domain, number = place
    rng = np.random.default_rng([domain, number])
    small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
    smooth = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = smooth + rng.integers(-10, 11, (side, side, 1), np.int16)
    path = folder / f"domain{domain}" / f"class{number % 4}" / f"{number:05d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def some_of(manifest: Manifest, images: int) -> Manifest:
    """So many images of each domain, or all that it has: more would only take longer."""
    rows = [
        stream(0, "speed", domain).permutation(manifest.rows(domain=domain))[:images]
        for domain in manifest.domains
    ]
    return manifest.select(np.sort(np.concatenate(rows)))


def say(name: str, found: object) -> None:
    """At once: what is cut off before its table is made has not been in vain."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"{name}: {_in_words(found)}")


def _in_words(found: object) -> str:
    if isinstance(found, Mapping):
        return ", ".join(f"{name} {_in_words(one)}" for name, one in found.items())
    if isinstance(found, Sequence) and not isinstance(found, str):
        return " ".join(map(_in_words, found))
    return f"{found:,.4g}" if isinstance(found, float) else str(found)


def rate_of(run: Path) -> float:
    """Images per second of the last stretch of training."""
    found = RunFolder(run).records().losses[-1].images_per_second
    assert found is not None
    return float(found)


@contextmanager
def one_batch() -> Iterator[None]:
    """Training on a batch that is already there: the step alone."""
    usual = Loader.batches

    def batches(self: Loader, start: int, stop: int) -> Iterator[Batch]:
        batch = next(usual(self, 0, 1))
        for _ in range(start, stop):
            yield batch

    with mock.patch.object(Loader, "batches", batches):
        yield


@contextmanager
def every_other(stretch: int) -> Iterator[None]:
    """Training as ever for some steps, then as many on a batch that is already there, and so on:
    what slows the machine down slows both. Three batches are made ready before each stretch."""
    usual = Loader.batches

    def batches(self: Loader, start: int, stop: int) -> Iterator[Batch]:
        there, real = next(usual(self, 0, 1)), usual(self, start, stop)
        for step in range(stop - start):
            yield there if step // stretch % 2 else next(real)

    with mock.patch.object(Loader, "batches", batches):
        yield
