"""A run: Step A, the training domains' μ, Step B, final scores. Resumes by itself."""

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate import __version__
from acclimate.config import RunConfig
from acclimate.data.batches import DomainSampler, Loader
from acclimate.data.quarantine import Quarantine
from acclimate.data.source import FeatureSource, ImageSource, open_source
from acclimate.distributed import World, joined, keep_freed_memory
from acclimate.embeddings import DomainState, DomainTable, Embedding, embed_rows
from acclimate.embeddings.domains import (
    load_embedding,
    sample_rows,
    save_domain_map,
    save_embedding,
)
from acclimate.manifest import Manifest
from acclimate.models import Predictor
from acclimate.objective import Batch
from acclimate.plan import Plan, make_plan
from acclimate.randomness import derive
from acclimate.records import DOMAIN_MAP, Finished, Started, append, read
from acclimate.scoring import Evaluator
from acclimate.train.checkpoint import Progress
from acclimate.train.folder import alone, claim, digest_of, finished_before, identity, tidy
from acclimate.train.loop import Loop, Phase, check_shares
from acclimate.trained import Trained, build_networks
from acclimate.watch import Watch, unwatched


@dataclass(frozen=True)
class RunResult:
    folder: Path
    finished: Finished
    already: bool  # the run was complete before this call


def train(
    config: RunConfig,
    manifest: Manifest,
    out: Path,
    *,
    device: str = "auto",
    watch: Watch = unwatched,
) -> RunResult:
    """Train in folder `out`, or go on where a killed run stopped; a finished run is left alone."""
    plan = make_plan(config, manifest)
    with joined(device) as world:
        if world.device.type == "cpu":
            keep_freed_memory()
        main = plan.config.train
        check_shares(main.per_domain, world, main.optimiser, plan.algorithm.build.least_rows)
        if plan.algorithm.adaptive:
            check_shares(plan.config.embedding.per_domain, world, plan.config.embedding.optimiser)
        wanted = identity(plan)
        done = finished_before(out, wanted)
        if done is not None:
            if world.main:
                tidy(out)
            return RunResult(out, done, already=True)
        return _Run(plan, out, world, watch, wanted).go()


class _Run:
    def __init__(
        self, plan: Plan, out: Path, world: World, watch: Watch, identity: dict[str, Any]
    ) -> None:
        self.plan, self.out, self.world, self.watch = plan, out, world, watch
        self.identity, self.config = identity, plan.config
        self.started = time.perf_counter()

    def go(self) -> RunResult:
        predictor, embedding = self._build()
        with alone(self.out, self.world):
            claim(self.out, self.identity, self.world)
            return self._train(predictor, embedding)

    def _train(self, predictor: Predictor, embedding: Embedding | None) -> RunResult:
        source = self._open()
        self._announce()
        table = None if embedding is None else self._embedded(source, embedding)
        prior = self.plan.label_prior()
        trained = Trained(
            self.config,
            self.plan.classes,
            self.plan.train_domains,
            self.plan.manifest.digest(),
            tuple(prior.tolist()),
            self.size,
            predictor,
            embedding,
            table,
        )
        evaluator = Evaluator(self.plan, source, self.world, trained)
        progress = self._learn_predictor(source, predictor, table, evaluator)
        finished = self._finish(trained, evaluator, progress)
        return RunResult(self.out, finished, already=False)

    def _build(self) -> tuple[Predictor, Embedding | None]:
        """The networks, before the folder is claimed: a wrong backbone leaves no trace."""
        manifest = self.plan.manifest
        features = manifest.features() if manifest.has_features else None
        torch.manual_seed(derive(self.config.seed, "initial weights"))
        predictor, embedding = build_networks(
            self.config,
            len(self.plan.classes),
            len(self.plan.train_domains),
            None if features is None else features.shape[1],
            pretrained=True,
            world=self.world,
        )
        if features is None:
            self.size = self.config.data.image_size or predictor.backbone.size
        else:
            self.size = features.shape[1]
            _set_statistics(features[np.concatenate(self.plan.train_rows)], predictor, embedding)
        for network in (predictor, embedding):
            if network is not None:
                # Images come channels-last, the faster layout for convolutions everywhere.
                network.to(self.world.device)
                network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return predictor, embedding

    def _open(self) -> FeatureSource | ImageSource:
        manifest = self.plan.manifest
        self.quarantine = Quarantine(
            self.out / "quarantine.jsonl",
            total=len(manifest),
            max_share=self.config.data.max_unreadable,
        )
        return open_source(manifest, self.size, self.config.data, self.quarantine)

    def _embedded(self, source: FeatureSource | ImageSource, embedding: Embedding) -> DomainTable:
        """Step A and the training domains' μ; both are kept in embedding.safetensors."""
        path = self.out / "embedding.safetensors"
        if not path.exists():
            self._learn_embedding(source, embedding)
            table = self._embed_domains(source, embedding)
            self.quarantine.refresh()
            if self.world.main:
                save_embedding(path, embedding, table)
            self.world.wait()
        return load_embedding(path, embedding)

    def _learn_embedding(self, source: FeatureSource | ImageSource, embedding: Embedding) -> None:
        settings = self.config.embedding
        domains = self.plan.train_rows
        seed = derive(self.config.seed, "embedding")
        loop = Loop(
            objective=embedding,
            loader=Loader(
                source,
                embedding.sampler(domains, settings, seed),
                domains,
                self.world,
                seed,
                augmented=self.config.data.augment == "domainbed",
            ),
            phase=Phase(
                "embedding", settings.steps, settings.optimiser, self.config.train.checkpoint_every
            ),
            world=self.world,
            folder=self.out,
            seed=seed,
            bf16=self._bf16(),
            watch=self.watch,
        )
        loop.run()

    def _embed_domains(
        self, source: FeatureSource | ImageSource, embedding: Embedding
    ) -> DomainTable:
        """μ of each training domain, and Φ standardised by them."""
        states = {}
        for done, name in enumerate(self.plan.train_domains, start=1):
            rows = self.plan.manifest.rows(domain=name, split="train")
            chosen = sample_rows(rows, self.config.embedding.points, self.config.seed, name)
            states[name] = embed_rows(embedding, source, chosen, self.world)
            self.watch("domains", done, len(self.plan.train_domains), name)
        if self.config.embedding.standardise:
            embedding.standardise(DomainTable(states).means)
            centre, spread = embedding.centre, float(embedding.spread)
            states = {name: state.rescaled(centre, spread) for name, state in states.items()}
        return DomainTable(states)

    def _learn_predictor(
        self,
        source: FeatureSource | ImageSource,
        predictor: Predictor,
        table: DomainTable | None,
        evaluator: Evaluator,
    ) -> Progress:
        """Step B."""
        settings = self.config.train
        domains = self.plan.train_rows
        choice = self.plan.algorithm
        objective = choice.build(
            predictor,
            choice.settings,
            domains=len(domains),
            classes=len(self.plan.classes),
            world=self.world,
            seed=self.config.seed,
        ).to(self.world.device)
        sampler = DomainSampler(
            domains,
            per_domain=settings.per_domain,
            domains_per_step=settings.domains_per_step,
            seed=self.config.seed,
        )
        means = None if table is None else table.means.float().to(self.world.device)

        def with_mu(batch: Batch) -> Batch:
            return batch if means is None else replace(batch, mu=means[batch.domain])

        loop = Loop(
            objective=objective,
            loader=Loader(
                source,
                sampler,
                domains,
                self.world,
                self.config.seed,
                augmented=self.config.data.augment == "domainbed",
            ),
            phase=Phase(
                "main",
                settings.steps,
                settings.optimiser,
                settings.checkpoint_every,
                settings.evaluate_every,
                settings.keep,
                settings.average,
            ),
            world=self.world,
            folder=self.out,
            seed=self.config.seed,
            bf16=self._bf16(),
            prepare=with_mu,
            validate=evaluator.validation,
            watch=self.watch,
        )
        return loop.run()

    def _finish(self, trained: Trained, evaluator: Evaluator, progress: Progress) -> Finished:
        kept_best = self.config.train.keep == "best" and progress.best_step is not None
        kept = progress.best_step if kept_best else progress.step
        assert kept is not None
        trained.predictor.eval()
        if self.world.main:
            trained.save(self.out)  # before scoring: whatever fails there, the model is kept
        scores = []
        domains = len({*self.plan.train_domains, *self.plan.val_domains, *self.plan.test_domains})
        for score in evaluator.final(kept):
            scores.append(score)
            self.watch("scoring", len({s.domain for s in scores}), domains, score.domain)
        self.world.wait()
        self.quarantine.refresh()
        finished = Finished(
            kept_step=kept,
            kept_by=self._kept_by() if kept_best else "last step",
            kept_score=progress.best_score if kept_best else None,
            seconds=round(time.perf_counter() - self.started, 1),
            quarantined=len(self.quarantine),
        )
        if self.world.main:
            if trained.table is not None:
                save_domain_map(self.out / DOMAIN_MAP, self._states(trained, evaluator))
            for score in scores:
                append(self.out / "records.jsonl", score)
            append(self.out / "records.jsonl", finished)
            tidy(self.out)
        self.world.wait()
        return finished

    def _states(self, trained: Trained, evaluator: Evaluator) -> dict[str, tuple[str, DomainState]]:
        assert trained.table is not None
        states = {name: ("train", state) for name, state in trained.table.states.items()}
        for name in (*self.plan.val_domains, *self.plan.test_domains):
            state = evaluator.unseen(name).state
            if state is not None and state.count:
                states[name] = (self.plan.role(name), state)
        return states

    def _kept_by(self) -> str:
        return "validation domains" if self.plan.val_domains else "validation splits"

    def _bf16(self) -> bool:
        wanted = self.config.train.precision
        if wanted == "auto":
            device = self.world.device
            return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return wanted == "bf16"

    def _announce(self) -> None:
        if not self.world.main:
            return
        losses = read(self.out / "records.jsonl").losses
        append(
            self.out / "records.jsonl",
            Started(
                time=datetime.now(UTC).isoformat(timespec="microseconds"),
                version=__version__,
                config_digest=digest_of(self.identity["config"]),
                data_digest=self.identity["data"],
                device=_device_name(self.world.device),
                processes=self.world.size,
                resumed_at=f"{losses[-1].phase} {losses[-1].step}" if losses else None,
            ),
        )


def _set_statistics(
    features: np.ndarray, predictor: Predictor, embedding: Embedding | None
) -> None:
    """Feature mode: inputs are standardised with the training rows' mean and deviation."""
    # In float64: a float32 sum over millions of rows drifts.
    mean, std = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    std = np.where(std > 0, std, 1.0)
    for module in (predictor, embedding):
        if module is not None:
            backbone: Any = module.backbone
            backbone.set_statistics(torch.from_numpy(mean).float(), torch.from_numpy(std).float())


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"
