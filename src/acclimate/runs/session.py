"""A session: work on a run, or on a shared Φ, from the first check to the last file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate import __version__
from acclimate.core.distributed import World, joined, keep_freed_memory
from acclimate.core.files import clear_temporary
from acclimate.core.progress import Watch
from acclimate.core.randomness import derive, own_weights
from acclimate.core.text import count, timestamp
from acclimate.data.batches import Batch, Loader, Sampler
from acclimate.data.source import Quarantine, Source, in_parts, open_source
from acclimate.learn.embeddings import Embedding
from acclimate.learn.frozen import Extraction
from acclimate.learn.model import Networks, build_extractor, ready
from acclimate.learn.models import Backbone, Predictor
from acclimate.learn.models.backbones import TORCH, row_statistics
from acclimate.learn.objective import Objective
from acclimate.records.folder import RunFolder
from acclimate.records.records import Started
from acclimate.runs.device import cpu_micro_batches
from acclimate.runs.identity import learned_identity, run_identity
from acclimate.runs.loop import Loop, Phase, Validate, seconds_worked
from acclimate.runs.plan import Plan, check_batches

Say = Callable[[str], None]


@dataclass
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
    started: float  # by the clock, less what earlier sessions worked
    quarantine: Quarantine = field(init=False)
    source: Source = field(init=False)

    @property
    def size(self) -> int:
        """The side of input images, or the number of features."""
        first: Any = self.extractor or (self.predictor or self.embedding).backbone  # type: ignore[union-attr]
        return self.plan.in_features or self.plan.config.data.image_size or int(first.size)

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
        images = len(sampler.rows(0)[0]) // world.size
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
            compile=train.compile,
            watch=self.watch,
            say=self.say,
            clock=self.seconds,
            micro_batches=train.micro_batches
            or cpu_micro_batches(objective, images, self.size, world, self.say),
        )


@contextmanager
def session(
    plan: Plan,
    folder: RunFolder,
    *,
    device: str,
    watch: Watch,
    say: Say = lambda line: None,
) -> Iterator[Session | None]:
    """A session that is ready to train, or None where nothing is left to do.

    Whatever can be refused is refused before the folder is taken: a wrong backbone or a batch that
    cannot be shared out leaves no trace.
    """
    started = time.perf_counter()
    identity = learned_identity(plan) if folder.shared else run_identity(plan)
    with joined(device) as world:
        if world.device.type == "cpu":
            keep_freed_memory()
        check_batches(plan.config, plan.algorithm, world, main=not folder.shared)
        folder.refuse_others(identity)
        if folder.complete():
            yield None
        else:
            networks = _build(plan, world, phi_alone=folder.shared)
            with folder.locked() if world.main else nullcontext():
                world.wait()
                folder.refuse_others(identity)  # another process may have been here
                if folder.complete():
                    yield None
                else:
                    started -= max(map(seconds_worked, folder.checkpoints()), default=0.0)
                    now = Session(plan, folder, world, watch, say, *networks, started)
                    _begin(now, identity)
                    yield now
        if world.main:
            folder.tidy()


def _build(
    plan: Plan, world: World, *, phi_alone: bool
) -> tuple[Predictor | None, Embedding | None, Backbone | None]:
    """Fresh networks on the device, whose random weights are the seed's, and what is frozen."""
    config, width = plan.config, plan.in_features
    predictor, embedding, extractor = None, None, None
    if plan.frozen:
        with own_weights(0):
            extractor = build_extractor(config, pretrained=True)
        width = extractor.features
    networks = Networks(
        config=config,
        classes=len(plan.classes),
        domains=len(plan.train_domains),
        in_features=width,
        pretrained=True,
        world=world,
    )
    with own_weights(derive(config.seed, "initial weights")):
        if phi_alone:
            embedding = networks.embedding()
        else:
            predictor, embedding = networks.build()
    for network in (predictor, embedding):
        if network is not None:
            ready(network, world.device)
    return predictor, embedding, extractor


def _begin(now: Session, identity: dict[str, Any]) -> None:
    """Take the folder, say in the records that work goes on, and open the data."""
    plan, folder, world = now.plan, now.folder, now.world
    world.wait()  # every process has looked at the folder before the first one writes
    if world.main:
        clear_temporary(folder.path, older_than=0)  # it is ours alone
        folder.take(identity)
    world.wait()
    data, manifest, extraction = plan.config.data, plan.manifest, None
    if now.extractor is not None:
        extraction = Extraction(now.extractor, plan.config.model.backbone, now.size)
        extraction.on(world.device)
    if world.main:
        _announce(folder, world, TORCH if extraction is None else extraction.engine)
    share = data.max_unreadable
    now.quarantine = Quarantine(folder.quarantine, total=len(manifest), max_share=share)
    if extraction is None:
        now.source = open_source(manifest, now.size, data, now.quarantine, world.device)
    else:
        now.source = extraction.extract(
            manifest, plan.rows, data, now.quarantine,
            beside=folder.path, world=world, watch=now.watch,
        )  # fmt: skip
    if plan.on_features:
        _set_statistics(now)


def _announce(folder: RunFolder, world: World, engine: str) -> None:
    device = f"{world.device.type}, {count(torch.get_num_threads(), 'thread')}"
    if world.device.type == "cuda":
        device = torch.cuda.get_device_name(world.device)
    losses = folder.records().losses
    folder.append(
        Started(
            time=timestamp("microseconds"),
            version=__version__,
            device=device if engine == TORCH else f"{device}, features by {engine}",
            processes=world.size,
            resumed_at=f"{losses[-1].phase} {losses[-1].step}" if losses else None,
        )
    )


def _set_statistics(now: Session) -> None:
    """Standardise features by the mean and deviation of the training rows."""

    def chunks() -> Iterator[Tensor]:
        for rows in in_parts(np.concatenate(now.plan.train_rows)):
            features, readable = now.source.take(rows)
            yield features[torch.from_numpy(readable)]

    statistics = row_statistics(chunks)
    for network in (now.predictor, now.embedding):
        if network is not None:
            network.backbone.set_statistics(*statistics)
