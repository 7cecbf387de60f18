"""How fast everything is: `make bench-speed`, or `python benchmarks/speed.py [--data FOLDER]`.

Each part prints a table and ends in speed.json. Images are JPEGs that it makes itself (227 px, as
PACS has them), or those of a domain/class/image folder. Both sides of every ratio are measured in
the same run, on the same images, batches and network. On a CPU it is small: it shows that it runs.
"""

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

import incumbent
from acclimate.adapt.classifier import adapt, apply_state
from acclimate.adapt.many import ManyDomains
from acclimate.config import DataConfig, RunConfig, as_dict, from_dict, nested
from acclimate.core.distributed import pick_device
from acclimate.core.files import write_json
from acclimate.core.randomness import stream
from acclimate.core.tensors import save_tensors
from acclimate.data import jpeg
from acclimate.data import source as sources
from acclimate.data.batches import Batch, DomainSampler, EpisodeSampler, Loader
from acclimate.data.images import as_pixels
from acclimate.data.manifest import Manifest
from acclimate.data.pixels import read_pixels
from acclimate.data.quarantine import Quarantine
from acclimate.data.source import ImageSource, open_source, pack_images, readable, to_float
from acclimate.learn.algorithms import names
from acclimate.learn.model import Trained, ready
from acclimate.learn.models import accelerate, build_backbone, engine_used
from acclimate.learn.models.timm_import import import_torchvision
from acclimate.learn.penalties import coral, irm, mmd2
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.folder import RunFolder
from acclimate.runs.forecast import forecast
from acclimate.runs.loop import Loop
from acclimate.runs.plan import make_plan
from acclimate.runs.training import train

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent


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
CEILING = "ceiling (one batch)"
NONE_KEPT = {"data.cache_gib": 0.0, "data.pack_gib": 0.0}
CPU_BACKBONE = "efficientnet-lite0"  # the default for images above 64 px
CPU = Scale("resnet18", 64, 40, 8, 8, 2, 4, 1, 160, 1)


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


def rate_of(run: Path) -> float:
    """Images per second of the last stretch of training."""
    found = RunFolder(run).records().losses[-1].images_per_second
    assert found is not None
    return float(found)


@contextmanager
def one_batch() -> Iterator[None]:
    """Training on a batch that is already there: the step alone."""
    load = Loader.batch

    def batches(self: Loader, start: int, stop: int) -> Iterator[Batch]:
        batch = load(self, 0)
        for _ in range(start, stop):
            yield batch

    with mock.patch.object(Loader, "batches", batches):
        yield


@contextmanager
def every_other(stretch: int) -> Iterator[None]:
    """Training as ever for some steps, then as many on a batch that is already there, and so on:
    what slows the machine down slows both. Three batches are made ready before each stretch."""
    usual, load = Loader.batches, Loader.batch

    def batches(self: Loader, start: int, stop: int) -> Iterator[Batch]:
        there, real = load(self, 0), usual(self, start, stop)
        for step in range(stop - start):
            yield there if step // stretch % 2 else next(real)

    with mock.patch.object(Loader, "batches", batches):
        yield


def say(name: str, found: object) -> None:
    """At once: of a machine that is lent for minutes, the table may come too late."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"{name}: {found}")


def rates_beside(
    bench: Bench, ways: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    """Images per second of runs with these settings, and of the step alone, and the share of that,
    in turn: a machine is not equally fast all the time. The medians of the turns."""
    steps = max(bench.scale.steps // 2, 1)
    short = {"train.steps": steps, "train.checkpoint_every": max(steps // 3, 1)}
    found: dict[str, list[float]] = {name: [] for name in (*ways, CEILING)}
    for turn in range(bench.scale.turns):
        for name, rates in found.items():
            config = bench.config(**short, **ways.get(name, {}))
            with one_batch() if name == CEILING else nullcontext():
                rates.append(rate_of(bench.trained(f"{name}, turn {turn}", config)[0]))
        say("images/s", {name: rates[-1] for name, rates in found.items()})
    return {
        name: (median(rates), median(map(truediv, rates, found[CEILING])))
        for name, rates in found.items()
    }


def training(bench: Bench) -> list[Row]:
    scale, manifest = bench.scale, bench.manifest
    rows: list[Row] = []

    def files(domain: str, split: str | None, *, augmented: bool) -> incumbent.Files:
        chosen = manifest.rows(domain=domain, split=split)
        paths = [Path(str(manifest.image_source(int(row)))) for row in chosen]
        transform = incumbent.transforms(scale.size, augmented=augmented)
        return incumbent.Files(paths, manifest.label_index[chosen].tolist(), transform)

    seen = [domain for domain in manifest.domains if domain != bench.test]
    theirs = incumbent.measure(
        [files(domain, "train", augmented=True) for domain in seen],
        [files(domain, "val", augmented=False) for domain in seen],
        files(bench.test, None, augmented=False),
        backbone=scale.backbone,
        classes=len(manifest.classes),
        device=bench.device,
        per_domain=scale.per_domain,
        steps=scale.steps,
        warm=scale.warm,
        validate_every=scale.validate_every,
        workers=scale.workers,
    )
    say("incumbent", theirs)
    bench.incumbent.update(theirs)
    # As the library comes: everything decoded once, and on the GPU where it fits. The time of
    # validation and checkpoints is in the ends, and not in the rates.
    plan = {"train.evaluate_every": scale.validate_every}
    _, ended = bench.trained("end to end", bench.config(**plan))
    _, cold_end = bench.trained("end to end, cold", bench.config(**plan, **NONE_KEPT))
    say("end to end", [ended, cold_end])
    pack_images(manifest, scale.size, DataConfig(), Quarantine.lenient(len(manifest)))
    ways = {"cold": NONE_KEPT, "cached": {}, "packed": {"data.cache_gib": 0.0}}
    rows.append({"steps": "incumbent", "images/s": theirs["images/s"], "x": 1.0})
    for name, (rate, share) in rates_beside(bench, ways).items():
        beside = rate / theirs["images/s"]
        rows.append({"steps": name, "images/s": rate, "x": beside, "of ceiling": share})
    ends = {"incumbent": theirs["seconds"], "ours": ended, "ours, nothing kept": cold_end}
    for name, seconds in ends.items():
        beside = ends["incumbent"] / seconds
        rows.append({"steps": f"end to end: {name}", "seconds": seconds, "x": beside})
    return rows


def compiled(bench: Bench) -> list[Row]:
    """The step through torch.compile and CUDA graphs, as runs of many steps have it."""
    if bench.device.type != "cuda":
        return [{"steps, compiled": "only on a GPU"}]
    try:
        return _compiled(bench)
    finally:
        torch.compiler.reset()  # whose graphs hold memory that other parts count


def _compiled(bench: Bench) -> list[Row]:
    said: list[str] = []
    wish = {"train.compile": "on"}
    config = bench.config(**wish)
    with one_batch():
        started = time.perf_counter()
        out = bench.folder / "one batch, compiled"
        train(config, bench.manifest, out, device=str(bench.device), say=said.append)
        seconds = time.perf_counter() - started
    ceiling = rate_of(out)
    runs = {
        CEILING: out,
        "cached": bench.trained("cached, compiled", config)[0],
        "cold": bench.trained("cold, compiled", bench.config(**wish, **NONE_KEPT))[0],
    }
    rows: list[Row] = []
    for name, run in runs.items():
        rate = rate_of(run)
        row: Row = {"steps, compiled": name, "images/s": rate, "of ceiling": rate / ceiling}
        rows.append({**row, "x": rate / bench.incumbent["images/s"]} if bench.incumbent else row)
    rows[0]["seconds, compiling among them"] = seconds
    return [*rows, *({"steps, compiled": line} for line in said)]


def decoding(bench: Bench) -> list[Row]:
    count = min(len(bench.manifest), 64 if bench.device.type == "cpu" else 768)
    data = [Path(str(bench.manifest.image_source(row))).read_bytes() for row in range(count)]
    size = bench.scale.size
    ways: dict[str, Callable[[bytes], object]] = {
        "Pillow, decoded and resized": lambda one: as_pixels(one, size),
        "ours, decoded and resized": lambda one: read_pixels(one, size),
    }
    if jpeg.DECODER is not None:
        decoder = jpeg.DECODER
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
        for threads in dict.fromkeys([1, 4, 8, os.cpu_count() or 1]):
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
    """The same by processes, as beside a GPU, and what of it is our own processor's time."""
    quarantine, cold = Quarantine.lenient(len(bench.manifest)), DataConfig(cache_gib=0, pack_gib=0)
    with mock.patch.multiple(sources, LEAST_IMAGES=1, LEAST_CORES=1):
        source = ImageSource(bench.manifest, bench.scale.size, cold, quarantine, processes=True)
    batches, turns = np.array_split(np.arange(count), max(count // 96, 1)), 10
    source.get_ready()
    if source.decoders is None:
        return {"decoder": "ours, by processes: not on this system"}
    for _ in range(100):
        if len(source.decoders._team.idle) == source.workers:
            break
        time.sleep(0.1)
    with ThreadPoolExecutor(2) as askers:  # as many as load batches
        list(askers.map(source.take, batches))
        started, own = time.perf_counter(), time.process_time()
        list(askers.map(source.take, batches * turns))
        own, taken = time.process_time() - own, time.perf_counter() - started
    return {
        "decoder": f"ours, by {source.decoders._team.size} processes",
        "images/s": turns * count / taken,
        "our own µs an image": 1e6 * own / (turns * count),
    }


FIVE = ("prior", "t3a")  # none, and what is told the truth or goes by its confusions, come along
TRAINING_ON = ("bn", "tent")  # these pass images through the network again


def scoring(
    bench: Bench, asked: Sequence[Sequence[str]] = ((), FIVE, (*FIVE, *TRAINING_ON))
) -> list[Row]:
    """`evaluate` on the unseen domain's images, beside one pass of the network over as many."""
    run, _ = bench.trained("scored", bench.config("erm", **{"train.steps": 2}))
    trained = Trained.load(run, bench.device)
    everything = np.concatenate(
        [
            bench.manifest.rows(domain=bench.test),
            *(bench.manifest.rows(domain=d, split="val") for d in bench.manifest.domains[:-1]),
        ]
    )

    @torch.no_grad()
    def one_pass(rows: np.ndarray) -> None:
        quarantine = Quarantine.lenient(len(bench.manifest))
        size, data = bench.scale.size, DataConfig()
        source = open_source(bench.manifest, size, data, quarantine, bench.device)
        for _, stored in readable(source, rows):
            trained.predictor(to_float(stored, bench.device)).logits.argmax(1).cpu()

    def evaluated(methods: Sequence[str]) -> list[str]:
        found = evaluate_run(run, bench.manifest, methods=methods, device=str(bench.device))
        return list(dict.fromkeys(score.method for score in found.scores))

    works: dict[str, Callable[[], object]] = {"one pass": lambda: one_pass(everything)}
    images = bench.manifest.one_row_each(np.sort(everything))
    if len(images) < len(everything):  # then no image passes a network twice
        works["one pass, each image once"] = lambda: one_pass(images)
    for methods in asked:
        works[f"evaluate: {', '.join(evaluated(methods))}"] = partial(evaluated, methods)
    taken = bench.beside(works, 2)
    return [
        {"scored by": name, "rows": len(everything), "seconds": one, "x": one / taken["one pass"]}
        for name, one in taken.items()
    ]


def features(bench: Bench) -> list[Row]:
    """A backbone that stays as it is: extracted once, then trained on; and trained once more."""
    config = bench.config(**bench.frozen())
    ends = {}
    for name in ("features, extracted and trained", "features, trained again"):
        ends[name] = bench.trained(name, config)
    images = len(bench.manifest)
    return [
        {
            "work": name,
            "images": images,
            "seconds": seconds,
            "images/s": images / seconds,
            "images/s in steps": rate_of(run),
        }
        for name, (run, seconds) in ends.items()
    ]


def long_tail(bench: Bench) -> list[Row]:
    """Ten domains that draw the same images again and again, seven rows to an image."""
    rng = np.random.default_rng(0)
    folder = bench.folder / "long tail"
    make_images(folder / "images", bench.scale.tail // 4, side=64)
    base = Manifest.open(folder / "images")
    lines = ["image,label,domain"]
    for domain in range(10):
        for row in rng.permutation(len(base))[: int(0.7 * len(base))]:
            label = base.classes[base.label_index[row]]
            lines.append(f"{base.image_name(int(row))},{label},domain{domain}")
    (folder / "rows.csv").write_text("\n".join(lines))
    manifest = Manifest.from_table(folder / "rows.csv", root=base.root)
    scale = replace(bench.scale, size=min(bench.scale.size, 96))
    here = replace(bench, folder=folder, manifest=manifest, scale=scale)
    decoded: list[int] = []
    usual = ImageSource._read_all

    def counted(self: ImageSource, images: np.ndarray, *into: Any) -> None:
        decoded.append(len(images))
        usual(self, images, *into)

    stretch = max(scale.steps // 3, 1)
    steps = 15 * stretch
    # As a run of half the steps has it, which is not worth compiling.
    changes = {"train.steps": 2 * steps, "train.compile": "off"}
    every = {"train.evaluate_every": steps, "train.checkpoint_every": stretch}
    with one_batch():  # what a process does once, on a GPU, before anything
        here.trained("warm", here.config(**NONE_KEPT, **{"train.steps": scale.warm}))
    with mock.patch.object(ImageSource, "_read_all", counted), every_other(stretch):
        run, _ = here.trained("cached", here.config(**changes, **every))
    rates = [float(loss.images_per_second or 0) for loss in RunFolder(run).records().losses]
    say("images/s, and of the step alone", [rates[::2], rates[1::2]])
    images = len(np.unique(manifest.image_ids))
    facts: Row = {"rows": len(manifest), "images": images, "decoded": sum(decoded)}
    trained: list[Row] = []
    for name, first in ((f"{steps} steps", 0), ("the last fifth of them", len(rates) * 4 // 5)):
        ours, alone = (harmonic_mean(rates[place::2]) for place in (first, first + 1))
        trained.append({"work": name, **facts, "images/s": ours, "of ceiling": ours / alone})
    scored = scoring(here, ((), FIVE))
    return [*trained, *({"work": row.pop("scored by"), **row} for row in scored)]


def penalties(bench: Bench) -> list[Row]:
    width, per_domain, classes = 256, 8, 16
    rows = []
    for domains in (4, 16, 64, 256, 512):
        count = domains * per_domain
        x = torch.randn(count, width, device=bench.device, requires_grad=True)
        y = torch.randint(classes, (count,), device=bench.device)
        domain = torch.arange(domains).repeat_interleave(per_domain)  # the host's, as in training
        row: Row = {"domains": domains, "rows": count}
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "coral": lambda: coral(x, domain),  # noqa: B023
            "mmd": lambda: mmd2(x, domain),  # noqa: B023
            "irm": lambda: irm(x[:, :classes], y, domain),  # noqa: B023
        }
        for name, way in ways.items():
            row[f"{name} ms"] = 1e3 * bench.seconds(lambda: way().sum().backward(), 3)  # noqa: B023
        rows.append(row)
    return rows


def samplers(bench: Bench) -> list[Row]:
    rows = []
    for domains in (10, 100, 1000, 10000):
        parts = [np.arange(100 * i, 100 * i + 100) for i in range(domains)]
        kinds = {
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


def adapting(bench: Bench) -> list[Row]:
    """How long `adapt` takes for n images, and prediction plain and adapted, files to labels. On a
    CPU the backbone is one that stays as it is, as there by default."""
    few = {"train.steps": 2, **(bench.frozen() if bench.device.type == "cpu" else {})}
    run, _ = bench.trained("adapted", bench.config("da-erm", **few))
    plain, _ = bench.trained("plain", bench.config("erm", **few))
    model, other = Trained.load(run, bench.device), Trained.load(plain, bench.device)
    paths = [bench.manifest.image_source(row) for row in range(len(bench.manifest))]
    rows: list[Row] = []
    for n in (1, 10, 100, 1000):
        if n <= len(paths):
            taken = bench.seconds(lambda: adapt(model, paths[:n], method="embedding"), 2)  # noqa: B023
            rows.append({"work": f"adapt on {n}", "ms": 1e3 * taken, "images/s": n / taken})
    adapted = adapt(model, paths[:10], method="embedding")
    sites = {f"site {i}": adapt(model, paths[i : i + 1], method="embedding") for i in range(64)}
    many, mixed = ManyDomains(sites), [f"site {i % len(sites)}" for i in range(len(paths))]
    as_it_is = apply_state(other, None)
    images = 32 if bench.device.type == "cpu" else 256
    loaded = torch.randint(0, 256, (images, 3, model.size, model.size), dtype=torch.uint8)
    x = to_float(loaded, bench.device)
    whole: dict[str, Callable[[], object]] = {
        "predict, plain": lambda: as_it_is.predict_proba(paths),
        "predict, adapted": lambda: adapted.predict_proba(paths),
        "predict, 64 domains mixed": lambda: many.predict_proba(paths, mixed),
    }
    alone: dict[str, Callable[[], object]] = {
        "the network alone, plain": lambda: as_it_is.predictor(x),
        "the network alone, adapted": lambda: adapted.predictor(x),
    }
    with torch.no_grad():
        for works, count in ((whole, len(paths)), (alone, len(x))):
            found = bench.beside(works, 15)
            first = next(iter(found.values()))
            rows += [
                {"work": name, "ms": 1e3 * one, "images/s": count / one, "x": one / first}
                for name, one in found.items()
            ]
    return rows


def memory(bench: Bench) -> list[Row]:
    """What is said to be needed before a run, and what it then takes; a GPU that is too small."""
    rows: list[Row] = []
    few = {"train.steps": 20, "train.checkpoint_every": 20}
    for name, config in {
        "ERM": bench.config(**few),
        "CORAL in 4 parts": bench.config("coral", **few, **{"train.parts": 4}),
    }.items():
        said, taken = _said_and_taken(bench, config, bench.folder / f"memory {name}")
        row: Row = {"work": name, "said GiB": said / 2**30, "taken GiB": taken / 2**30}
        rows.append({**row, "said / taken": said / taken})
        say("memory", rows[-1])
    return [*rows, *_squeezed(bench)] if bench.device.type == "cuda" else rows


def _said_and_taken(bench: Bench, config: RunConfig, out: Path) -> tuple[float, float]:
    """Bytes, as `acclimate train` says and takes them; on a CPU in a process of its own."""
    if bench.device.type == "cuda":
        plan = make_plan(config, bench.manifest, device=str(bench.device))
        before = torch.cuda.memory_allocated(bench.device)
        said = forecast(plan, RunFolder(out), str(bench.device)).memory
        assert said is not None
        return said - before, _taken(bench, config, out)
    code = (
        "import json, sys, torch; from pathlib import Path; "
        "from acclimate.config import RunConfig, from_dict; "
        "from acclimate.data.manifest import Manifest; "
        "from acclimate.runs.folder import RunFolder; "
        "from acclimate.runs.forecast import forecast; from acclimate.runs.plan import make_plan; "
        "from acclimate.runs.training import train; from acclimate.runs.trial import peak; "
        "settings, data, out, threads = json.load(sys.stdin); torch.set_num_threads(threads); "
        "config = from_dict(RunConfig, settings, where='benchmark'); "
        "data, out = Manifest.open(Path(data)), Path(out); "
        "said = forecast(make_plan(config, data, device='cpu'), RunFolder(out), 'cpu').memory; "
        "train(config, data, out, device='cpu'); print(json.dumps([said, peak()]))"
    )
    manifest = bench.folder / "memory.parquet"
    bench.manifest.write(manifest)
    asked = json.dumps([as_dict(config), str(manifest), str(out), torch.get_num_threads()])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    said, taken = json.loads(done.stdout.splitlines()[-1])
    return said, taken


def _taken(bench: Bench, config: RunConfig, out: Path) -> float:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    train(config, bench.manifest, out, device=str(bench.device))
    return float(torch.cuda.max_memory_allocated(bench.device) - before)


def _squeezed(bench: Bench) -> list[Row]:
    """A batch four times as large, in a quarter of the memory that it would take whole."""
    more = {"train.per_domain": 4 * bench.scale.per_domain, "train.steps": 20}
    config = bench.config("coral", **more, **{"train.checkpoint_every": 20})
    whole = _taken(bench, config, bench.folder / "whole")
    total = torch.cuda.get_device_properties(bench.device).total_memory
    lines: list[str] = []
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(bench.device)  # by other parts, which compile
    share = (before + 0.25 * whole) / total
    torch.cuda.set_per_process_memory_fraction(max(share, 0.02), bench.device)
    try:
        out = bench.folder / "squeezed"
        train(config, bench.manifest, out, device=str(bench.device), say=lines.append)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, bench.device)
    losses = [RunFolder(bench.folder / n).records().losses[-1] for n in ("whole", "squeezed")]
    rows: list[Row] = [
        {"work": name, "loss": loss.risk, "images/s": loss.images_per_second}
        for name, loss in zip(("CORAL, a large batch", "in a quarter of it"), losses, strict=True)
    ]
    rows[0]["taken GiB"] = whole / 2**30
    return [*rows, *({"work": line} for line in lines if "memory" in line)]


def waits(bench: Bench) -> list[Row]:
    """How often the host waits for the GPU in ten steps of training, by algorithm."""
    if bench.device.type != "cuda":
        return [{"algorithm": "only on a GPU"}]
    rows = []
    for name in names():
        config = bench.config(
            name,
            **{
                "model.backbone": "small-cnn",
                "data.image_size": 32,
                "train.steps": 10,
                "train.checkpoint_every": 10,
            },
        )
        with one_batch(), counted_waits() as found:
            bench.trained(f"waits {name}", config)
        places = ", ".join(dict.fromkeys(found))
        rows.append({"algorithm": name, "waits in 10 steps": len(found), "where": places})
    return rows


@contextmanager
def counted_waits() -> Iterator[list[str]]:
    """The places in the steps of Step B where the host waited for the GPU."""
    found: list[str] = []
    step = Loop._step

    def watched(self: Loop, take: Any, batch: Batch, number: int) -> None:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn" if self.phase.name == "main" else before)
            try:
                step(self, take, batch, number)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waited = (one for one in said if "called a synchronizing" in str(one.message))
        found.extend(f"{Path(one.filename).name}:{one.lineno}" for one in waited)

    with mock.patch.object(Loop, "_step", watched):
        yield found


def engines(bench: Bench) -> list[Row]:
    """Features on a CPU: PyTorch's in both layouts, and as `predict` computes them."""
    if bench.device.type != "cpu":
        return [{"engine": "only on a CPU"}]
    as_usual, ours = (build_backbone(CPU_BACKBONE, pretrained=False).eval() for _ in range(2))
    ours.load_state_dict(as_usual.state_dict())
    as_usual.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    last = copy.deepcopy(as_usual).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ready(ours, bench.device)
    accelerate(ours)
    x = torch.rand(32, 3, 224, 224)
    lying = x.contiguous(memory_format=torch.channels_last)
    works: dict[str, Callable[[], object]] = {
        "PyTorch": lambda: as_usual.normalised_body(x),
        "PyTorch, channels last": lambda: last.normalised_body(lying),
        "ours": lambda: ours(lying),
    }
    with torch.inference_mode():
        taken = bench.beside(works, 5)
        apart = (ours(lying) - as_usual.normalised_body(x)).abs().max()
    rows: list[Row] = [
        {"engine": name, "images/s": len(x) / one, "x": taken["PyTorch"] / one}
        for name, one in taken.items()
    ]
    rows[-1] |= {"engine": f"ours: {engine_used(ours)}", "largest difference": float(apart)}
    return rows


def start_up(bench: Bench) -> list[Row]:
    rows = []
    for arguments in (["--help"], ["--version"], ["list", "algorithms"], ["train", "--help"]):
        command = [sys.executable, "-m", "acclimate", *arguments]
        found = []
        for _ in range(2):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            found.append(time.perf_counter() - started)
        rows.append({"command": f"acclimate {' '.join(arguments)}", "seconds": min(found)})
    return rows


PARTS: Mapping[str, Callable[[Bench], list[Row]]] = {
    "decoding": decoding,
    "training": training,
    "compiled": compiled,
    "scoring": scoring,
    "long tail": long_tail,
    "features": features,
    "penalties": penalties,
    "waits": waits,
    "memory": memory,
    "samplers": samplers,
    "adapting": adapting,
    "engines": engines,
    "start-up": start_up,
}
WHOLE = {"training", "compiled"}  # which take all images that there are


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def show(name: str, rows: Sequence[Row], seconds: float) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=f"{name} ({seconds:.0f} s)", title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(shown(row.get(column)) for column in columns))
    Console(highlight=False, markup=False, width=140).print(table, "")


def machine(device: torch.device) -> dict[str, Any]:
    names = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    if device.type == "cuda":
        names["gpu"] = torch.cuda.get_device_name(device)
    return {**names, "torch": torch.__version__, "simplejpeg": jpeg.DECODER is not None}


def some_of(manifest: Manifest, images: int) -> Manifest:
    """So many images of each domain, or all that it has: more would only take longer."""
    rows = [
        stream(0, "speed", domain).permutation(manifest.rows(domain=domain))[:images]
        for domain in manifest.domains
    ]
    return manifest.select(np.sort(np.concatenate(rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="domain/class/image folder of JPEGs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help=f"parts, of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-speed" / "speed.json")
    for name, type_ in Scale.__annotations__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type_)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    given = {name: getattr(arguments, name) for name in Scale.__annotations__}
    scale = replace(
        GPU if device.type == "cuda" else CPU,
        **{name: value for name, value in given.items() if value is not None},
    )
    wanted = arguments.only.split(",") if arguments.only else list(PARTS)
    found: dict[str, Any] = {"machine": machine(device), "scale": vars(scale)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ACCLIMATE_CACHE"] = str(folder / "cache")
        if arguments.data is None:
            make_images(folder / "images", scale.images)
        manifest = Manifest.open(arguments.data or folder / "images")
        bench = Bench(folder, scale, device, manifest)
        small = replace(bench, manifest=some_of(manifest, scale.images))
        Console(highlight=False).print(json.dumps(found["machine"]), "")
        for part in wanted:
            started = time.perf_counter()
            try:
                found[part] = PARTS[part](bench if part in WHOLE else small)
            except Exception as error:  # one part that fails must not cost the hour of the others
                traceback.print_exc()
                found[part] = [{"failed": f"{type(error).__name__}: {error}"}]
            show(part, found[part], time.perf_counter() - started)
            write_json(arguments.out, found)
        if any("failed" in row for part in wanted for row in found[part]):
            sys.exit(1)


if __name__ == "__main__":
    main()
