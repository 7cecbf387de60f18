"""A run: Step A, the training domains' μ, Step B, final scores. Resumes by itself."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acclimate.config import RunConfig
from acclimate.core.distributed import joined, keep_freed_memory
from acclimate.core.watch import Watch, unwatched
from acclimate.data.batches import Batch, DomainSampler, Loader
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding
from acclimate.learn.embeddings.domains import save_domain_map
from acclimate.learn.model import Trained, build_networks
from acclimate.learn.models import Predictor
from acclimate.runs.checkpoint import Progress
from acclimate.runs.embedding_step import step_a
from acclimate.runs.folder import RunFolder
from acclimate.runs.identity import run_identity
from acclimate.runs.loop import Loop, Phase, check_shares
from acclimate.runs.memory import check_memory
from acclimate.runs.plan import make_plan
from acclimate.runs.records import Finished
from acclimate.runs.scoring import Evaluator
from acclimate.runs.session import Sitting, in_features, locked, prepare, seed_weights, take
from acclimate.runs.shared import adopt, check_shared


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
    embedding: Path | None = None,
) -> RunResult:
    """Train in folder `out`, or go on where a killed run stopped; a finished run is left alone.

    `embedding` is a folder of `train_embedding`: the run then uses that Φ instead of learning the
    very same one.
    """
    plan = make_plan(config, manifest)
    with joined(device) as world:
        if world.device.type == "cpu":
            keep_freed_memory()
        main = plan.config.train
        check_shares(main.per_domain, world, main.optimiser, plan.algorithm.build.least_rows)
        if plan.algorithm.adaptive:
            check_shares(plan.config.embedding.per_domain, world, plan.config.embedding.optimiser)
        wanted, folder = run_identity(plan), RunFolder(out)
        done = folder.finished_before(wanted)
        if done is not None:
            if world.main:
                folder.tidy()
            return RunResult(out, done, already=True)
        if embedding is not None and not folder.phi.exists():
            check_shared(embedding, plan, manifest.digest())
        return _Run(Sitting(plan, folder, world, watch), wanted, embedding).go()


class _Run:
    def __init__(self, sitting: Sitting, identity: dict[str, Any], shared: Path | None) -> None:
        self.sitting, self.identity, self.shared = sitting, identity, shared
        self.plan, self.folder, self.world = sitting.plan, sitting.folder, sitting.world
        self.config = sitting.plan.config

    def go(self) -> RunResult:
        """Networks come before the folder is claimed: a wrong backbone leaves no trace."""
        seed_weights(self.plan)
        counts = len(self.plan.classes), len(self.plan.train_domains)
        predictor, embedding = build_networks(
            self.config, *counts, in_features(self.plan), pretrained=True, world=self.world
        )
        networks = (predictor,) if embedding is None else (predictor, embedding)
        size = prepare(self.plan, self.world, *networks)
        with locked(self.folder, self.world):
            # Another process may have finished the run since it was looked at.
            done = self.folder.finished_before(self.identity)
            if done is not None:
                return RunResult(self.folder.path, done, already=True)
            learned = self.shared is not None or self.folder.phi.exists()
            ahead = networks[:1] if learned else networks[::-1]  # Step A first
            check_memory(self.plan, self.world, size, *ahead, bf16=self.sitting.bf16)
            take(self.folder, self.identity, self.world)
            self.sitting.begin(self.identity, size)
            return self._train(predictor, embedding, size)

    def _train(self, predictor: Predictor, embedding: Embedding | None, size: int) -> RunResult:
        table = None if embedding is None else self._embedded(embedding)
        trained = Trained(
            self.config,
            self.plan.classes,
            self.plan.train_domains,
            self.plan.manifest.digest(),
            tuple(self.plan.label_prior().tolist()),
            size,
            predictor,
            embedding,
            table,
        )
        evaluator = Evaluator(self.plan, self.sitting.source, self.world, trained)
        progress = self._learn_predictor(predictor, table, evaluator)
        finished = self._finish(trained, evaluator, progress)
        return RunResult(self.folder.path, finished, already=False)

    def _embedded(self, embedding: Embedding) -> DomainTable:
        if self.shared is not None and not self.folder.phi.exists():
            adopt(self.shared, self.sitting, embedding)
        return step_a(self.sitting, embedding)

    def _learn_predictor(
        self, predictor: Predictor, table: DomainTable | None, evaluator: Evaluator
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
                self.sitting.source,
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
            folder=self.folder,
            seed=self.config.seed,
            bf16=self.sitting.bf16,
            prepare=with_mu,
            validate=evaluator.validation,
            watch=self.sitting.watch,
            clock=self.sitting.seconds,
        )
        return loop.run()

    def _finish(self, trained: Trained, evaluator: Evaluator, progress: Progress) -> Finished:
        kept_best = self.config.train.keep == "best" and progress.best_step is not None
        kept = progress.best_step if kept_best else progress.step
        assert kept is not None
        trained.predictor.eval()
        if self.world.main:
            # Before scoring: whatever fails there, the model is kept.
            trained.save(self.folder.path)
        scores = []
        domains = len({*self.plan.train_domains, *self.plan.val_domains, *self.plan.test_domains})
        for score in evaluator.final(kept):
            scores.append(score)
            self.sitting.watch("scoring", len({s.domain for s in scores}), domains, score.domain)
        self.world.wait()
        self.sitting.quarantine.refresh()
        finished = Finished(
            kept_step=kept,
            kept_by=self._kept_by() if kept_best else "last step",
            kept_score=progress.best_score if kept_best else None,
            seconds=round(self.sitting.seconds(), 1),
            quarantined=len(self.sitting.quarantine),
        )
        if self.world.main:
            if trained.table is not None:
                save_domain_map(self.folder.domain_map, self._states(trained, evaluator))
            for score in scores:
                self.folder.append(score)
            self.folder.append(finished)
            self.folder.tidy()
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
