"""A session: work on a run, or on a shared Φ, from the first check to the last file."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import torch

from acclimate import __version__
from acclimate.core.distributed import World, joined, keep_freed_memory
from acclimate.core.files import clear_temporary
from acclimate.core.progress import Watch
from acclimate.core.randomness import derive, own_weights
from acclimate.core.text import count
from acclimate.data.batches import Batch, Loader, Sampler
from acclimate.data.source import Quarantine, Source, in_parts, open_source
from acclimate.learn.embeddings import Embedding
from acclimate.learn.frozen import Extraction
from acclimate.learn.model import build_embedding, build_extractor, build_networks, ready
from acclimate.learn.models import Backbone, Predictor
from acclimate.learn.models.backbones import TORCH
from acclimate.learn.objective import Objective
from acclimate.records.folder import SHARED, RunFolder
from acclimate.records.records import Started
from acclimate.runs.device import fitting_micro_batches
from acclimate.runs.identity import SharedEmbedding, settings_digest
from acclimate.runs.loop import Loop, Phase, Validate, seconds_worked
from acclimate.runs.optimisation import check_batches
from acclimate.runs.plan import Plan

Say = Callable[[str], None]


@dataclass(frozen=True)
class Session:
    """What work on a folder needs: its plan, processes, networks, data and clock."""

    plan: Plan
    folder: RunFolder
    world: World
    watch: Watch
    say: Say
    predictor: Predictor | None  # None for a Φ on its own
    embedding: Embedding | None  # None for plain algorithms
    extractor: Backbone | None  # a backbone that is frozen
    size: int  # side of input images, or the number of features
    quarantine: Quarantine
    source: Source
    started: float  # by the clock, less what earlier sessions worked

    def seconds(self) -> float:
        """Worked until now, with what earlier sessions worked."""
        return time.perf_counter() - self.started

    def loop(
        self,
        objective: Objective,
        sampler: Sampler,
        phase: Phase,
        seed: int,
        *,
        prepare: Callable[[Batch], Batch] = lambda batch: batch,
        validate: Validate | None = None,
    ) -> Loop:
        """The loop of a phase, over the training rows of the training domains."""
        plan, world, train = self.plan, self.world, self.plan.config.train
        augmented = plan.config.data.augment == "domainbed"
        bf16 = train.precision == "bf16"
        if train.precision == "auto" and world.device.type == "cuda":
            bf16 = torch.cuda.get_device_capability(world.device) >= (8, 0)
        images = len(sampler.rows(0)[0]) // world.size * getattr(objective, "copies", 1)
        return Loop(
            objective=objective,
            loader=Loader(self.source, sampler, plan.train_rows, world, seed, augmented=augmented),
            phase=phase,
            world=world,
            folder=self.folder,
            seed=seed,
            bf16=bf16,
            prepare=prepare,
            validate=validate,
            compile="off" if plan.on_features else train.compile,
            watch=self.watch,
            say=self.say,
            clock=self.seconds,
            micro_batches=train.micro_batches
            or fitting_micro_batches(objective, images, self.size, world, self.say),
        )


@contextmanager
def session(
    plan: Plan,
    folder: RunFolder,
    identity: dict[str, Any],
    *,
    device: str,
    watch: Watch,
    say: Say = lambda line: None,
    shared: SharedEmbedding | None = None,
) -> Iterator[Session | None]:
    """A session that is ready to train, or None where nothing is left to do.

    Whatever can be refused is refused before the folder is taken: a wrong backbone, a Φ in
    `shared` that is another one, or a batch that does not fit leave no trace.
    """
    started = time.perf_counter()
    with joined(device) as world, _same_generator(world.device):
        if world.device.type == "cpu":
            keep_freed_memory()
        check_batches(plan.config, plan.algorithm, world, main=folder.kind is not SHARED)
        folder.refuse_others(identity)
        if folder.complete():
            yield None
        else:
            if shared is not None and not folder.phi.exists():
                shared.check()
            networks = _build(plan, world, phi_alone=folder.kind is SHARED)
            with folder.locked() if world.main else nullcontext():
                world.wait()
                folder.refuse_others(identity)  # another process may have been here
                if folder.complete():
                    yield None
                else:
                    started -= max(map(seconds_worked, folder.checkpoints()), default=0.0)
                    data = _begin(plan, folder, identity, world, watch, networks)
                    yield Session(plan, folder, world, watch, say, *networks, *data, started)
        if world.main:
            folder.tidy()


@contextmanager
def _same_generator(device: torch.device) -> Iterator[None]:
    """Give a GPU's generator back as it was: once, as asking for it takes time."""
    if device.type != "cuda":
        yield
        return
    state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(state, device)


class _Networks(NamedTuple):
    predictor: Predictor | None
    embedding: Embedding | None
    extractor: Backbone | None
    size: int

    @property
    def learning(self) -> list[Predictor | Embedding]:
        return [one for one in (self.predictor, self.embedding) if one is not None]


def _build(plan: Plan, world: World, *, phi_alone: bool) -> _Networks:
    """Fresh networks on the device, whose random weights are the seed's."""
    config, width = plan.config, plan.in_features
    predictor, extractor = None, None
    if plan.frozen:
        with own_weights(0):
            extractor = build_extractor(config, pretrained=True)
        width = extractor.features
    embedding: Embedding | None
    with own_weights(derive(config.seed, "initial weights")):
        counts = len(plan.classes), len(plan.train_domains), width
        if phi_alone:
            embedding = build_embedding(config, *counts, pretrained=True, world=world)
        else:
            predictor, embedding = build_networks(config, *counts, pretrained=True, world=world)
    first: Any = extractor or (predictor or embedding).backbone  # type: ignore[union-attr]
    size = plan.in_features or config.data.image_size or int(first.size)
    networks = _Networks(predictor, embedding, extractor, size)
    for network in networks.learning:
        ready(network, world.device)
    return networks


def _begin(
    plan: Plan,
    folder: RunFolder,
    identity: dict[str, Any],
    world: World,
    watch: Watch,
    networks: _Networks,
) -> tuple[Quarantine, Source]:
    """Take the folder, say in the records that work goes on, and open the data."""
    world.wait()  # every process has looked at the folder before the first one writes
    if world.main:
        clear_temporary(folder.path, older_than=0)  # it is ours alone
        folder.take(identity)
    world.wait()
    data, manifest, engine = plan.config.data, plan.manifest, TORCH
    quarantine = Quarantine(folder.quarantine, total=len(manifest), max_share=data.max_unreadable)
    extraction = None
    if networks.extractor is not None:
        extraction = Extraction(networks.extractor, plan.config.model.backbone, networks.size)
        extraction.on(world.device)
        engine = extraction.engine
    if world.main:
        _announce(folder, identity, world, engine)
    source: Source
    if extraction is None:
        source = open_source(manifest, networks.size, data, quarantine, world.device)
    else:
        source = extraction.extract(
            manifest, plan.rows, data, quarantine, beside=folder.path, world=world, watch=watch
        )
    if plan.on_features:
        _set_statistics(source, np.concatenate(plan.train_rows), networks.learning)
    return quarantine, source


def _announce(folder: RunFolder, identity: dict[str, Any], world: World, engine: str) -> None:
    device = f"{world.device.type}, {count(torch.get_num_threads(), 'thread')}"
    if world.device.type == "cuda":
        device = torch.cuda.get_device_name(world.device)
    losses = folder.records().losses
    folder.append(
        Started(
            time=datetime.now(UTC).isoformat(timespec="microseconds"),
            version=__version__,
            config_digest=settings_digest(identity),
            data_digest=identity["data"],
            device=device if engine == TORCH else f"{device}, features by {engine}",
            processes=world.size,
            resumed_at=f"{losses[-1].phase} {losses[-1].step}" if losses else None,
        )
    )


def _set_statistics(
    source: Source, rows: np.ndarray, networks: Sequence[Predictor | Embedding]
) -> None:
    """Standardise features by the mean and deviation of the training rows."""

    def parts() -> Iterator[np.ndarray]:
        for part in in_parts(rows):
            features, good = source.take(part)
            yield features.numpy()[good]

    # In float64: a float32 sum over millions of rows drifts.
    total = sum(len(part) for part in parts())
    mean = np.asarray(sum(part.sum(0, dtype=np.float64) for part in parts())) / total
    std = np.sqrt(sum(np.square(part - mean).sum(0) for part in parts()) / total)
    for network in networks:
        backbone: Any = network.backbone
        backbone.set_statistics(torch.from_numpy(mean).float(), torch.from_numpy(std).float())
