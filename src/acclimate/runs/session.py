"""A session: work on a run, or on a shared Φ, from the first check to the last file."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from acclimate import __version__
from acclimate.core.distributed import World, joined, keep_freed_memory
from acclimate.core.files import clear_temporary
from acclimate.core.progress import Watch
from acclimate.core.randomness import derive, own_weights
from acclimate.core.text import count
from acclimate.data.batches import Batch, Loader, Sampler
from acclimate.data.source import Quarantine, Shown, in_parts, open_source
from acclimate.learn.embeddings import Embedding
from acclimate.learn.frozen import Extracted, Extraction
from acclimate.learn.model import build_embedding, build_extractor, build_networks, ready
from acclimate.learn.models import Backbone, Predictor
from acclimate.learn.models.backbones import TORCH
from acclimate.learn.objective import Objective
from acclimate.records.folder import SHARED, RunFolder
from acclimate.records.records import Started
from acclimate.runs.checkpoint import seconds_worked
from acclimate.runs.compiling import trained_backbones
from acclimate.runs.identity import settings_digest
from acclimate.runs.loop import Loop, Phase, Validate
from acclimate.runs.memory import fitting_micro_batches
from acclimate.runs.optimisation import check_batches, uses_bf16
from acclimate.runs.plan import Plan
from acclimate.runs.shared import SharedEmbedding, refuse_plain


@dataclass
class Session:
    """What work on a folder needs: its plan, processes, networks, data and clock."""

    plan: Plan
    folder: RunFolder
    identity: dict[str, Any]
    world: World
    watch: Watch
    say: Callable[[str], None] = lambda line: None
    predictor: Predictor | None = field(init=False, default=None)  # None for a Φ on its own
    embedding: Embedding | None = field(init=False, default=None)  # None for plain algorithms
    extractor: Backbone | None = field(init=False, default=None)  # a backbone that is frozen
    size: int = field(init=False)  # side of input images, or the number of features
    source: Shown = field(init=False)
    quarantine: Quarantine = field(init=False)
    _before: float = field(init=False, default=0.0)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Worked until now, with what earlier sessions worked."""
        return self._before + time.perf_counter() - self._started

    @property
    def bf16(self) -> bool:
        return uses_bf16(self.plan.config.train, self.world.device)

    def build(self) -> None:
        """Fresh networks, whose random weights are the seed's, fitted to data and device."""
        plan, width = self.plan, self.plan.in_features
        if plan.frozen:
            with own_weights(0):
                self.extractor = build_extractor(plan.config, pretrained=True)
            width = self.extractor.features
        with own_weights(derive(plan.config.seed, "initial weights")):
            counts = len(plan.classes), len(plan.train_domains), width
            if self.folder.kind is SHARED:
                self.embedding = build_embedding(
                    plan.config, *counts, pretrained=True, world=self.world
                )
            else:
                self.predictor, self.embedding = build_networks(
                    plan.config, *counts, pretrained=True, world=self.world
                )
        self.size = prepare(plan, self.world, *self.networks, extractor=self.extractor)

    @property
    def networks(self) -> list[Predictor | Embedding]:
        return [one for one in (self.predictor, self.embedding) if one is not None]

    def begin(self) -> None:
        """Take the folder, open the data, and say in the records that work goes on."""
        self.world.wait()  # every process has looked at the folder before the first one writes
        if self.world.main:
            self.folder.take(self.identity)
        self.world.wait()
        config, manifest = self.plan.config, self.plan.manifest
        self.quarantine = Quarantine(
            self.folder.quarantine, total=len(manifest), max_share=config.data.max_unreadable
        )
        self._before = seconds_worked(self.folder.checkpoints())
        extraction = None
        if self.extractor is not None:
            extraction = Extraction(self.extractor, config.model.backbone, self.size)
            extraction.on(self.world.device)
        if self.world.main:
            self._announce(TORCH if extraction is None else extraction.engine)
        if extraction is None:
            self.source = open_source(
                manifest, self.size, config.data, self.quarantine, self.world.device
            )
        else:
            self.source = self._extracted(extraction)

    def _extracted(self, extraction: Extraction) -> Extracted:
        """The frozen features of all rows, by whose statistics those who learn on them go."""
        plan = self.plan
        found = extraction.extract(
            plan.manifest,
            plan.rows,
            plan.config.data,
            self.quarantine,
            beside=self.folder.path,
            world=self.world,
            watch=self.watch,
        )

        def parts() -> Iterator[np.ndarray]:
            for rows in in_parts(np.concatenate(plan.train_rows)):
                features, good = found.take(rows)
                yield features.numpy()[good]

        set_statistics(parts, self.networks)
        return found

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
        augmented = self.plan.config.data.augment == "domainbed"
        rows = self.plan.train_rows
        return Loop(
            objective=objective,
            loader=Loader(self.source, sampler, rows, self.world, seed, augmented=augmented),
            phase=phase,
            world=self.world,
            folder=self.folder,
            seed=seed,
            bf16=self.bf16,
            prepare=prepare,
            validate=validate,
            compile="off" if self.plan.on_features else self.plan.config.train.compile,
            watch=self.watch,
            say=self.say,
            clock=self.seconds,
            micro_batches=self._micro_batches(objective, sampler),
        )

    def _micro_batches(self, objective: Objective, sampler: Sampler) -> int:
        """As asked for; otherwise as many as the memory of a CPU needs."""
        images = len(sampler.rows(0)[0]) // self.world.size * getattr(objective, "copies", 1)
        asked = self.plan.config.train.micro_batches
        return asked or fitting_micro_batches(
            objective, trained_backbones(objective), images, self.size, self.world, self.say
        )

    def _announce(self, engine: str) -> None:
        device = device_name(self.world.device)
        losses = self.folder.records().losses
        self.folder.append(
            Started(
                time=datetime.now(UTC).isoformat(timespec="microseconds"),
                version=__version__,
                config_digest=settings_digest(self.identity),
                data_digest=self.identity["data"],
                device=device if engine == TORCH else f"{device}, features by {engine}",
                processes=self.world.size,
                resumed_at=f"{losses[-1].phase} {losses[-1].step}" if losses else None,
            )
        )


@contextmanager
def session(
    plan: Plan,
    folder: RunFolder,
    identity: dict[str, Any],
    *,
    device: str,
    watch: Watch,
    say: Callable[[str], None] = lambda line: None,
    shared: SharedEmbedding | None = None,
) -> Iterator[Session | None]:
    """A session that is ready to train, or None where nothing is left to do.

    Whatever can be refused is refused before the folder is taken: a wrong backbone, a Φ in
    `shared` that is another one, or a batch that does not fit leave no trace.
    """
    with joined(device) as world, _state_of(world.device):
        if world.device.type == "cpu":
            keep_freed_memory()
        check_batches(plan.config, plan.algorithm, world, main=folder.kind is not SHARED)
        folder.refuse_others(identity)
        if folder.complete():
            yield None
        else:
            if shared is not None and not folder.phi.exists():
                refuse_plain(plan)
                shared.check()
            now = Session(plan, folder, identity, world, watch, say)
            now.build()
            with folder.locked() if world.main else nullcontext():
                world.wait()
                folder.refuse_others(identity)  # another process may have been here
                if folder.complete():
                    yield None
                else:
                    if world.main:
                        clear_temporary(folder.path, older_than=0)  # it is ours alone
                    now.begin()
                    yield now
        if world.main:
            folder.tidy()


@contextmanager
def _state_of(device: torch.device) -> Iterator[None]:
    """Give a GPU's generator back as it was: once, as asking for it takes time."""
    if device.type != "cuda":
        yield
        return
    state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(state, device)


def prepare(
    plan: Plan, world: World, *networks: Predictor | Embedding, extractor: Backbone | None = None
) -> int:
    """Fit fresh networks to the data and the device; the side of images, or number of features."""
    size = plan.in_features
    if size is None:
        reader: Any = extractor or networks[0].backbone
        size = plan.config.data.image_size or int(reader.size)
    else:
        features, rows = plan.manifest.features(), np.concatenate(plan.train_rows)
        set_statistics(lambda: (features[part] for part in in_parts(rows)), networks)
    for network in networks:
        ready(network, world.device)
    return size


def set_statistics(
    parts: Callable[[], Iterator[np.ndarray]], networks: Sequence[Predictor | Embedding]
) -> None:
    """Feature mode: inputs are standardised with the training rows' mean and deviation."""
    # In float64: a float32 sum over millions of rows drifts.
    rows = sum(len(part) for part in parts())
    mean = np.asarray(sum(part.sum(0, dtype=np.float64) for part in parts())) / rows
    std = np.sqrt(sum(np.square(part - mean).sum(0) for part in parts()) / rows)
    for network in networks:
        backbone: Any = network.backbone
        backbone.set_statistics(torch.from_numpy(mean).float(), torch.from_numpy(std).float())


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {count(torch.get_num_threads(), 'thread')}"
