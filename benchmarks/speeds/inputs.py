"""What comes before a step: decoding images, drawing rows."""

import os
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from acclimate.config import DataConfig
from acclimate.data import source as sources
from acclimate.data.batches import DomainSampler, EpisodeSampler
from acclimate.data.images import DECODER, decode, read_pixels
from acclimate.data.source import ImageSource, Quarantine
from acclimate.learn.models.weights import import_torchvision
from speeds.bench import Bench, Row


def decoding(bench: Bench) -> list[Row]:
    count = min(len(bench.manifest), 64 if bench.device.type == "cpu" else 768)
    data = [Path(str(bench.manifest.image_source(row))).read_bytes() for row in range(count)]
    size = bench.scale.size
    ways: dict[str, Callable[[bytes], object]] = {
        "Pillow, decoded and resized": lambda one: decode(one, hint=size).resize((size, size)),
        "ours, decoded and resized": lambda one: read_pixels(one, size),
    }
    if DECODER is not None:
        decoder = DECODER
        ways["simplejpeg, decoded only"] = lambda one: decoder(one, "RGB")
    vision = import_torchvision()
    image_io = getattr(vision, "io", None)
    tensors = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in data]
    try:
        image_io.decode_jpeg(tensors[0])  # type: ignore[union-attr]
    except (RuntimeError, AttributeError):  # not loadable beside a torch without CUDA
        pass
    else:
        held = dict(zip(map(id, data), tensors, strict=True))
        ways["torchvision, decoded only"] = lambda one: image_io.decode_jpeg(held[id(one)])  # type: ignore[union-attr]
    rows = []
    for name, way in ways.items():
        row: Row = {"decoder": name}
        for threads in sorted({1, 4, 8, os.cpu_count() or 1}):
            with ThreadPoolExecutor(threads) as pool:
                taken = bench.seconds(lambda: list(pool.map(way, data)), 2)  # noqa: B023
            row[f"{threads} threads"] = count / taken
        rows.append(row)
    rows.append(by_processes(bench, count))
    if bench.device.type == "cuda" and "torchvision, decoded only" in ways:
        taken = bench.seconds(lambda: image_io.decode_jpeg(tensors, device=bench.device), 2)  # type: ignore[union-attr]
        rows.append({"decoder": "torchvision on the GPU, decoded only", "1 threads": count / taken})
    return rows


def by_processes(bench: Bench, count: int) -> Row:
    """By a DataLoader's workers, as beside a GPU, and what of it is our own processor's time."""
    quarantine, cold = Quarantine(), DataConfig(cache_gib=0, pack_gib=0)
    source = ImageSource(bench.manifest, bench.scale.size, cold, quarantine, processes=True)
    batches, turns = np.array_split(np.arange(count), max(count // 96, 1)), 10
    with mock.patch.object(sources, "LEAST_IMAGES", 1):
        read = source.stream(batches * turns, np.arange(count))
        for _ in batches:  # until all have started
            next(read)
        started, own = time.perf_counter(), time.process_time()
        images = sum(len(stored) for stored, _ in read)
        own, taken = time.process_time() - own, time.perf_counter() - started
    return {
        "decoder": "ours, by processes",
        "images/s": images / taken,
        "our own µs an image": 1e6 * own / images,
    }


def samplers(bench: Bench) -> list[Row]:
    rows = []
    for domains in (10, 100, 1000, 10000):
        parts = [np.arange(100 * i, 100 * i + 100) for i in range(domains)]
        kinds: dict[str, Callable[[], DomainSampler | EpisodeSampler]] = {
            "domains": lambda: DomainSampler(parts, per_domain=8, domains_per_step=64, seed=0),  # noqa: B023
            "episodes": lambda: EpisodeSampler(
                parts,  # noqa: B023
                per_domain=8,
                domains_per_step=64,
                support=0.5,
                seed=0,
            ),
        }
        row: Row = {"domains": domains}
        for name, kind in kinds.items():
            sampler = kind()
            started = time.perf_counter()
            for step in range(50):
                sampler.rows(step)
            row[f"{name}: ms a step"] = (time.perf_counter() - started) / 50 * 1e3
            tracemalloc.start()
            sampler = kind()
            for step in range(50):
                sampler.rows(step)
            row[f"{name}: MiB"] = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
        rows.append(row)
    return rows
