"""What a run will do, for how long, with how much memory and where: said before it starts.

Times and memory are measured: a few steps on random images of the real shape, a few real images
read, and, where a backbone stays as it is, extracted from.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate.core.distributed import World, pick_device
from acclimate.core.generators import turns
from acclimate.core.graphs import give_back
from acclimate.core.randomness import stream
from acclimate.core.wording import count, duration
from acclimate.data.on_device import fits_on, free_on
from acclimate.data.quarantine import Quarantine
from acclimate.data.source import ImageSource, readable
from acclimate.learn.embeddings import Embedding
from acclimate.learn.frozen import BATCH, Extraction
from acclimate.learn.model import build_extractor, build_networks
from acclimate.learn.models import Predictor
from acclimate.learn.site import FeatureRows, batch_size, fit_plain, fit_site
from acclimate.runs.folder import RunFolder
from acclimate.runs.memory import GIB, available, is_tiny, measured, stage_of
from acclimate.runs.optimisation import uses_bf16
from acclimate.runs.plan import Plan
from acclimate.runs.rehearsal import LEAST_DOMAINS, folds_of
from acclimate.runs.retraining import folds
from acclimate.runs.session import device_name
from acclimate.runs.timing import seconds_a, seconds_b, time_plan
from acclimate.runs.trial import peak, resident

FEW_STEPS = 5  # of heads in rehearsal, timed
FEW_IMAGES = 16  # read, to see how long that takes
FEW_BATCHES = 4  # of images read and passed through a network that stays as it is
NAMED = 8  # sites that are named


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """`seconds` by part, and `memory` in bytes; empty or None where they were not measured."""

    what: str
    data: str
    why: Sequence[str]
    device: str
    folder: Path
    seconds: Mapping[str, float]
    memory: float | None
    free: float | None

    @property
    def total(self) -> float | None:
        return sum(self.seconds.values()) if self.seconds else None

    def lines(self) -> list[str]:
        said = [f"will train {self.what}", f"on {self.data}", *self.why]
        if self.total is not None:
            parts = ", ".join(f"{name} {duration(took)}" for name, took in self.seconds.items())
            said.append(f"time: about {duration(self.total)} on {self.device} ({parts})")
        if self.memory is not None:
            free = "" if self.free is None else f", and {self.free / GIB:.1f} GiB are free"
            said.append(f"memory: about {self.memory / GIB:.1f} GiB{free}")
        return [*said, f"ends up in {self.folder}"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.folder),
            "what": self.what,
            "data": self.data,
            "why": list(self.why),
            "device": self.device,
            "seconds": dict(self.seconds),
            "total_seconds": self.total,
            "memory_gib": None if self.memory is None else self.memory / GIB,
            "free_gib": None if self.free is None else self.free / GIB,
        }


def forecast(plan: Plan, folder: RunFolder, device: str) -> Forecast:
    """Nothing is written, and no random number of the run is drawn."""
    where = pick_device(device)
    # Processes that share a run would be timed against each other.
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    try:
        seconds, memory = _measured(plan, folder, where) if alone else ({}, None)
    except torch.OutOfMemoryError:  # the run itself will take more parts
        seconds, memory = {}, None
    return Forecast(
        what=what_is_trained(plan),
        data=what_it_learns_from(plan),
        why=plan.decided,
        device=device_name(where),
        folder=folder.path,
        seconds=seconds,
        memory=memory,
        free=_free(where),
    )


def what_is_trained(plan: Plan) -> str:
    """The algorithm, and what follows from the number of sites."""
    name, sites = plan.algorithm.name, len(plan.train_domains)
    if plan.algorithm.adaptive:
        return f"{name}: an embedding of domains (Step A), then a classifier that sees it (Step B)"
    if not plan.config.adapt.rehearse:
        return f"{name}, a plain model"
    if sites < 2:
        return f"{name}, a plain model: with one site there is nothing to rehearse"
    if sites < 3:
        return f"{name}, then a rehearsal, though two sites cannot tell whether adaptation pays"
    return f'{name}, then a rehearsal: each site plays "new site", and that decides how to adapt'


def what_it_learns_from(plan: Plan) -> str:
    rows, sites = sum(map(len, plan.train_rows)), len(plan.train_domains)
    kind = "row" if plan.manifest.has_features else "image"
    classes = count(len(plan.classes), "class", "classes")
    named = ", ".join(plan.train_domains[:NAMED]) + (", …" if sites > NAMED else "")
    unseen = (*plan.val_domains, *plan.test_domains)
    further = f"; unseen: {', '.join(unseen[:NAMED])}" if unseen else ""
    return f"{count(rows, kind)} of {classes} from {count(sites, 'site')}: {named}{further}"


@turns()
def _measured(
    plan: Plan, folder: RunFolder, device: torch.device
) -> tuple[dict[str, float], float]:
    config, seconds = plan.config, dict[str, float]()
    width, size, before = plan.in_features, 0, resident()
    networks: list[Predictor | Embedding] = []
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # or there is nothing to reset yet
        torch.cuda.reset_peak_memory_stats(device)
    if plan.frozen:
        lacking = to_extract(plan, device, beside=folder.path)
        width, size = lacking.width, lacking.size
        if lacking.images:
            seconds[f"features of {count(lacking.images, 'image')}"] = lacking.seconds
    elif width is None:
        counts = len(plan.classes), len(plan.train_domains), None
        built = build_networks(config, *counts, pretrained=True)  # or say now that none are there
        networks = [one for one in built if one is not None]
        backbone = built[0].backbone
        width, size = backbone.features, config.data.image_size or backbone.size
        images = _images(plan)
        seconds[f"reading {count(images, 'image')}"] = images * _per_image(plan, size)
    timing = time_plan(plan, device)
    give_back()  # what it has freed counts as free
    if plan.algorithm.adaptive and not folder.phi.exists():
        seconds["Step A"] = seconds_a(plan, timing)
    seconds["Step B"] = seconds_b(plan, timing) * _left(plan, folder)
    if config.adapt.rehearse and len(plan.train_domains) > 1:
        seconds["rehearsal"] = _rehearsing(plan, width, device)
        if config.adapt.depth == "whole":
            anew = sum(not RunFolder(f.folder).complete() for f in folds(plan, folder.path))
            seconds["rehearsal"] += anew * seconds_b(plan, timing)
    return seconds, _memory(plan, device, width, networks, size, before)


def _left(plan: Plan, folder: RunFolder) -> float:
    """Of Step B, in a run that goes on."""
    done = [loss.step for loss in folder.records().losses if loss.phase == "main"]
    return 1 - max(done, default=0) / plan.config.train.steps


@dataclass(frozen=True, kw_only=True)
class ToExtract:
    """Of images of `size` px, those whose features no run has kept, and how long they will take."""

    images: int
    seconds: float
    width: int
    size: int


@turns()
def to_extract(plan: Plan, device: torch.device, *, beside: Path) -> ToExtract:
    network = build_extractor(plan.config, pretrained=True)
    size = plan.config.data.image_size or int(network.size)
    extraction = Extraction(network, plan.config.model.backbone, size)
    extraction.on(device)
    lacking = _images(plan) - extraction.kept(plan.manifest, plan.rows, beside=beside)
    each = _per_image(plan, size, extraction) if lacking else 0.0
    return ToExtract(images=lacking, seconds=lacking * each, width=network.features, size=size)


def _images(plan: Plan) -> int:
    return len(np.unique(plan.manifest.image_ids[plan.rows]))


def _per_image(plan: Plan, size: int, extraction: Extraction | None = None) -> float:
    """Seconds to read an image and, where asked for, to extract its features."""
    rows = stream(0, "forecast").permutation(plan.rows)
    settings = replace(plan.config.data, cache_gib=0.0, pack_gib=0.0)
    source = ImageSource(plan.manifest, size, settings, Quarantine.lenient(len(plan.manifest)))
    first, _ = source.take(rows[:2])  # what comes once does not count
    if extraction is not None:
        extraction.passed(first)
        return _extracting(extraction, source, rows[: FEW_BATCHES * BATCH])
    some = rows[:FEW_IMAGES]
    started = time.perf_counter()
    source.take(some)
    return (time.perf_counter() - started) / len(some)


def _extracting(extraction: Extraction, source: ImageSource, rows: np.ndarray) -> float:
    """Per image, as it goes on for long: the first batch finds nothing read, and beside the last
    nothing is."""
    ends, counts = [time.perf_counter()], []
    for places, stored in readable(source, rows, most=BATCH):
        extraction.passed(stored)
        ends.append(time.perf_counter())
        counts.append(len(places))
    between = slice(1, -1) if len(counts) > 2 else slice(None)
    return float(sum(np.diff(ends)[between]) / max(sum(counts[between]), 1))


def _rehearsing(plan: Plan, width: int, device: torch.device) -> float:
    """Heads of a few steps, on random features of the real shape, as often as they are fitted."""
    site, sites = plan.config.adapt.site, len(plan.train_domains)
    # What is fitted on in a fold decides how large a step is.
    fitted = sum(map(len, plan.train_rows)) * (folds_of(sites) - 1) // folds_of(sites)
    batch = batch_size(fitted, site)
    per_site = max(2, batch // sites)
    x = torch.rand(sites * per_site, width, device=device)
    y = torch.arange(len(x), device=device) % len(plan.classes)
    domains = [np.arange(n * per_site, (n + 1) * per_site) for n in range(sites)]
    rows = FeatureRows(x, y, domains, len(plan.classes))
    few = replace(site, steps=FEW_STEPS, batch=batch)
    started = time.perf_counter()
    fit_plain(rows, few, layers=plan.frozen, seed=0)
    total = folds_of(sites) * (time.perf_counter() - started)
    if sites > LEAST_DOMAINS:
        started = time.perf_counter()
        fit_site(rows, plan.train_domains, few, seed=0)
        total += (folds_of(sites) + 1) * (time.perf_counter() - started)
    return total * site.steps / FEW_STEPS


def _memory(
    plan: Plan,
    device: torch.device,
    width: int,
    networks: Sequence[Predictor | Embedding],
    size: int,
    before: int,
) -> float:
    """What this process holds at most: as a step was tried, on top of what it held `before`;
    otherwise what it has needed so far, for it has taken steps."""
    rows, config = len(plan.rows), plan.config
    if device.type == "cuda":
        held = len(np.unique(plan.manifest.image_ids)) * 3 * size**2 if networks else 0
        stay = fits_on(device, held, config.data.cache_gib)
        return float(torch.cuda.max_memory_allocated(device)) + (held if stay else 0)
    if not networks:
        return float(peak() + 4 * rows * width)
    images = min(rows * 3 * size**2, config.data.cache_gib * GIB)
    needs = (_step(plan, network, size, device) for network in networks)
    steps = [need for need in needs if need is not None]
    if not steps:
        return peak() + images
    weights = sum(p.nbytes for network in networks for p in network.parameters())
    return before + weights + max(steps) + images


def _step(
    plan: Plan, network: Predictor | Embedding, size: int, device: torch.device
) -> float | None:
    """Bytes that a step of it takes, in as many parts as fit; None where that is little."""
    stage, world = stage_of(plan, network), World()
    if is_tiny(stage, world, size):
        return None
    need = measured(plan, stage, size, bf16=uses_bf16(plan.config.train, device))
    if need is None:
        return None
    free = available()
    fitting = stage.parts(need, math.inf if free is None else free, world)
    parts = plan.config.train.parts or fitting or 1
    return need.of(-(-stage.images(stage.per_domain, world) // parts))


def _free(device: torch.device) -> float | None:
    if device.type == "cuda":
        return free_on(device)
    return available()
