"""A run: Step A, the training domains' μ, Step B, final scores. Resumes by itself. Algorithms that
learn Φ with the predictor have no Step A, and the training domains' μ after Step B.

Step A can be a job of its own, whose Φ many runs then share.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.methods import backbone_chains, scored_chains
from acclimate.config import RunConfig
from acclimate.core.distributed import one_thread
from acclimate.core.errors import RunError
from acclimate.core.files import write_document
from acclimate.core.progress import Watch, unwatched
from acclimate.core.randomness import derive
from acclimate.core.tensors import save_tensors
from acclimate.data.batches import Batch, DomainSampler, fit_ratios, label_prior, label_shifts
from acclimate.data.manifest import Manifest
from acclimate.data.source import sent
from acclimate.learn.algorithms import Algorithm
from acclimate.learn.consistency import choose_domains, measure
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding, FromERM, embed_rows
from acclimate.learn.embeddings.state import (
    Sample,
    load_embedding,
    sample_rows,
    save_domain_map,
    save_embedding,
)
from acclimate.learn.model import Model, Trained, on_features_of
from acclimate.learn.models import Backbone, Head, Predictor
from acclimate.learn.models.class_vectors import class_vector_head
from acclimate.learn.site import Site
from acclimate.records.folder import (
    CONSISTENCY,
    DOMAINS,
    PHI,
    PICTURES,
    PREDICTIONS,
    RunFolder,
    stored,
    write_checksums,
)
from acclimate.records.predictions import Predictions
from acclimate.records.records import Finished, Record, Validated
from acclimate.records.rehearsal import Rehearsal
from acclimate.runs.identity import adopt_shared_embedding, check_shared_embedding, phi_digest
from acclimate.runs.loop import Phase, Position, Validate
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.scoring import Subject, final_scores, validate
from acclimate.runs.session import Say, Session, session

MAIN = "main"


class Rehearsed(NamedTuple):
    """What rehearsal adds to a finished plain model."""

    site: Site | None = None  # its second path
    rehearsal: Rehearsal | None = None
    confusion: Tensor | None = None  # [C, C] of the plain model on new images of its own domains
    centre: Tensor | None = None  # [h] its mean hidden layer there
    head: Head | None = None  # on the features, in the place of the predictor's own


After = Callable[[Session, Predictor], Rehearsed]


@dataclass(frozen=True)
class RunResult:
    folder: Path
    finished: Finished
    already: bool  # the run was complete before this call


def train(
    plan: Plan,
    out: Path,
    *,
    device: str = "auto",
    watch: Watch = unwatched,
    say: Say = lambda line: None,
    embedding: Path | None = None,
    after: After | None = None,
    listen: Callable[[Record], None] | None = None,
) -> RunResult:
    """Train in folder `out`, or go on where a killed run stopped; a finished run is left alone.

    `embedding` is a folder of `train_embedding`: the run then uses that Φ instead of learning the
    very same one. `after` is called with the finished predictor before it is saved and scored: see
    `rehearse.training`. `listen` is told each record once it is written.
    """
    folder, config = RunFolder(out, listen=listen), plan.config
    shared = None if embedding is None else RunFolder(embedding, shared=True)
    if shared is not None and not (folder.phi.exists() or folder.complete()):
        check_shared_embedding(shared, plan)
    with session(plan, folder, device=device, watch=watch, say=say) as now:
        if now is not None:
            learned, phi, world = now.predictor, now.embedding, now.world
            assert learned is not None
            predictor = learned
            if plan.on_features:
                predictor = on_features_of(now.extractor, learned, now.size)
            for chain in scored_chains(config.adapt, config.algorithm):
                chain.require(predictor, frozen=plan.frozen)
            for chain in backbone_chains(config.adapt) if after is not None else ():
                chain.require(predictor)
            if vectors := config.model.class_vectors:  # now, and not after hours
                class_vector_head(vectors, plan.classes, predictor.backbone.features)
            # Step A, and the training domains' μ, unless Step B learns Φ.
            first, joint = (phi, None) if plan.algorithm.over_mu else (None, phi)
            table = None if first is None else learn_embedding(now, first, shared)
            # Step B.
            prior = label_prior(plan.label_counts)
            ratios = fit_ratios(plan.label_counts, prior)
            known = tuple(prior.tolist()), tuple(ratios.tolist())
            start = Model(predictor, phi, table, config.train.prior_aware, *known)
            subject = Subject(plan, now.source, world, start)
            means = None if table is None else table.means.float().to(world.device)
            objective = plan.objective(learned, world, joint).to(world.device)
            alone = plan.on_features and world.device.type == "cpu"
            with one_thread() if alone else nullcontext():
                position = train_predictor(now, objective, partial(_validated, now, subject), means)
                start.predictor.eval()
                if joint is not None:
                    start = start._replace(table=_embed_domains(now, joint, start.below_phi))
                # The model, with what rehearsal adds: before scoring, so that it is kept whatever
                # fails there.
                trained = _save(now, start, after)
            # Final scores.
            final = Subject.of(trained, plan, now.source, world)
            _finish(now, replace(final, states=subject.states), position)
    finished = folder.finished
    assert finished is not None
    return RunResult(out, finished, already=now is None)


def train_embedding(
    config: RunConfig, manifest: Manifest, out: Path, *, device: str = "auto"
) -> Path:
    """Step A of the run that `config` describes, in a folder of its own, for `train(embedding=…)`.

    It resumes by itself, and a finished one is left alone.
    """
    folder = RunFolder(out, shared=True)
    plan = make_plan(folder.settled(config), manifest, device=device)
    with session(plan, folder, device=device, watch=unwatched) as now:
        if now is not None:
            assert now.embedding is not None
            learn_embedding(now, now.embedding)
    return folder.phi


def learn_embedding(
    session: Session, embedding: Embedding, shared: RunFolder | None = None
) -> DomainTable:
    """Learn Φ and the training domains' μ, take them over from the folder `shared`, or load what
    was learned before: the folder keeps both in one file."""
    folder, world, of = session.folder, session.world, phi_digest(session.plan)
    if folder.phi.exists():
        path = folder.path / CONSISTENCY
        if world.main and path.exists() and stored(path).get("of") != of:
            raise RunError(f"{path} is another run's; restore it, or delete it with {PHI}")
    else:
        if shared is None:
            _learn(session, embedding)
            table = _embed_domains(session, embedding)
            session.quarantine.refresh()
            if world.main:
                save_embedding(folder.phi, embedding, table, of)
        elif world.main:
            adopt_shared_embedding(shared, folder, embedding, session.quarantine, of)
        world.wait()
    return load_embedding(folder.phi, embedding, of)


def _learn(session: Session, embedding: Embedding) -> None:
    """Train Φ. One that is made of an ERM model trains as the run `erm` does, with validation."""
    plan, config = session.plan, session.plan.config
    if not isinstance(embedding, FromERM):
        settings, seed = config.embedding, derive(config.seed, "embedding")
        sampler = embedding.sampler(plan.train_rows, settings, seed, plan.manifest.picture_ids)
        every = config.train.checkpoint_every
        phase = Phase("embedding", settings.steps, settings.optimiser, every)
        session.loop(embedding, sampler, phase, seed).run()
        return
    subject = Subject(plan, session.source, session.world, Model(embedding.predictor))

    def validated(step: int) -> Validated:
        # The run's records are of its own predictor.
        return validate(subject, step)._replace(scores=[])

    train_predictor(session, embedding, validated, name="embedding")


def _embed_domains(
    session: Session, embedding: Embedding, below: Backbone | None = None
) -> DomainTable:
    """μ of each training domain, and Φ standardised by them; their consistency is written down.

    `below` is the backbone whose features Φ takes. A Φ that was learned with the predictor stays on
    the scale that the predictor knows.
    """
    plan, world, seed = session.plan, session.world, session.plan.config.seed
    settings = plan.config.embedding
    measured = choose_domains(plan.train_domains, seed)
    states, points = {}, {}
    for done, (name, rows) in enumerate(
        zip(plan.train_domains, plan.train_rows, strict=True), start=1
    ):
        chosen = _rows_of_mu(plan, name, rows)
        sample = Sample(chosen, seed, name) if name in measured else None
        states[name] = embed_rows(
            embedding, session.source, chosen, world, below=below, seen=sample
        )
        if sample is not None:
            points[name] = sample.whole(embedding.dim, world)
        session.watch("domains", done, len(plan.train_domains), name)
    if settings.standardise and plan.algorithm.over_mu:
        embedding.standardise(DomainTable(states).means)
        centre, spread = embedding.centre, float(embedding.spread)
        states = {name: state.rescaled(centre, spread) for name, state in states.items()}
        middle = centre.to("cpu", torch.float64)
        points = {name: (rows - middle) / spread for name, rows in points.items()}
    if world.main:
        consistency = measure({name: rows.numpy() for name, rows in points.items()}, seed)
        consistency["of"] = phi_digest(plan) if plan.algorithm.over_mu else session.folder.whose
        write_document(session.folder.path / CONSISTENCY, consistency)
    return DomainTable(states)


def _rows_of_mu(plan: Plan, domain: str, rows: np.ndarray) -> np.ndarray:
    """Those of a training domain's `rows` whose mean is its μ: every image once, as at test time,
    where images come without labels."""
    images = plan.manifest.one_row_each(rows)
    return sample_rows(images, plan.config.embedding.points, plan.config.seed, domain)


def _validated(now: Session, subject: Subject, step: int) -> Validated:
    """The scores that choose the weights. A Φ that is learned with the predictor gives every domain
    another μ each time."""
    phi, below = subject.model.embedding, subject.model.below_phi
    if phi is None or now.plan.algorithm.over_mu:
        return validate(subject, step)
    states = {
        name: embed_rows(phi, now.source, _rows_of_mu(now.plan, name, rows), now.world, below=below)
        for name, rows in zip(now.plan.train_domains, now.plan.train_rows, strict=True)
    }
    model = subject.model._replace(table=DomainTable(states))
    return validate(replace(subject, model=model, states={}), step)


def train_predictor(
    session: Session,
    objective: Algorithm | FromERM,
    validate: Validate,
    means: Tensor | None = None,
    name: str = MAIN,
) -> Position:
    """Train to the end, or from where a killed run stopped, and load the weights that are kept.

    `means` [N, d] are the domains' μ, where the objective has use for them. `name` is that of the
    phase in records and checkpoints.
    """
    plan, device = session.plan, session.world.device
    settings = plan.config.train
    shifts = torch.from_numpy(label_shifts(plan.label_counts)).float().to(device)

    def with_domain_facts(batch: Batch) -> Batch:
        domain = sent(batch.domain, device)
        return replace(
            batch,
            mu=None if means is None else means[domain],
            shift=shifts[domain] if settings.prior_aware else None,
        )

    sampler = DomainSampler(
        plan.train_rows,
        per_domain=settings.per_domain,
        domains_per_step=settings.domains_per_step,
        seed=plan.config.seed,
    )
    phase = Phase(
        name,
        settings.steps,
        settings.optimiser,
        settings.checkpoint_every,
        settings.evaluate_every,
        settings.keep,
        settings.average,
        seeded_as=MAIN,  # Step A that repeats the run `erm` draws what that one draws
        metric=settings.metric,
    )
    return session.loop(
        objective,
        sampler,
        phase,
        plan.config.seed,
        prepare=with_domain_facts,
        validate=validate,
    ).run()


def _save(now: Session, start: Model, after: After | None) -> Trained:
    """Rehearse where that is asked for, and write the model."""
    plan, world = now.plan, now.world
    rehearsed = Rehearsed()
    if after is not None and world.main:  # one process: others might choose otherwise
        rehearsed = after(now, start.predictor)
        if rehearsed.head is not None:
            start = start._replace(predictor=Predictor(start.predictor.backbone, rehearsed.head))
    trained = Trained(
        config=plan.config,
        classes=plan.classes,
        train_domains=plan.train_domains,
        data=plan.manifest.digest(),
        label_prior=tuple(start.label_prior),
        size=now.size,
        predictor=start.predictor,
        embedding=start.embedding,
        table=start.table,
        val_domains=plan.val_domains,
        test_domains=plan.test_domains,
        site=rehearsed.site,
        rehearsal=rehearsed.rehearsal,
        label_ratios=tuple(start.ratios or ()),
        confusion=rehearsed.confusion,
        centre=rehearsed.centre,
    )
    if world.main:
        seen = plan.training_pictures()
        keys = {"pictures": seen.pictures, "groups": seen.groups}
        save_tensors(
            now.folder.path / PICTURES, {name: torch.from_numpy(own) for name, own in keys.items()}
        )
        trained.save(now.folder.path)
    world.wait()
    if after is not None and not world.main:
        return Trained.load(now.folder.path, world.device)
    return trained


def _finish(now: Session, subject: Subject, progress: Position) -> None:
    """Final scores of the kept weights with their rows, and the record that ends the run."""
    plan, train = now.plan, now.plan.config.train
    step = progress.kept_step(train.keep)
    chosen = step == progress.best_step and (train.keep == "best" or progress.window is not None)
    scores, domains = [], (*plan.train_domains, *plan.val_domains, *plan.test_domains)
    for score, rows in final_scores(subject):
        scores.append((replace(score, step=step), rows))
        seen = len({one.domain for one, _ in scores})
        now.watch("scoring", seen, len(domains), score.domain)
    now.world.wait()
    now.quarantine.refresh()
    if now.world.main:
        if subject.model.table is not None:
            save_domain_map(now.folder.path / DOMAINS, _states(subject))
        Predictions.joined([rows for _, rows in scores]).write(now.folder.path / PREDICTIONS)
        for score, _ in scores:
            now.folder.append(score)
        judges = "validation domains" if plan.val_domains else "validation splits"
        now.folder.append(
            Finished(
                kept_step=step,
                kept_by=judges if chosen else "last step",
                kept_score=progress.best_score if chosen else None,
                kept_from=None if progress.window is None else progress.window[0],
                seconds=round(now.seconds(), 1),
                quarantined=len(now.quarantine),
            )
        )
        write_checksums(now.folder.path, finished=True)
    now.world.wait()


def _states(subject: Subject) -> dict[str, tuple[str, DomainState]]:
    assert subject.model.table is not None
    states = {name: ("train", state) for name, state in subject.model.table.states.items()}
    for name, state in subject.states.items():
        if state.count:
            states[name] = (subject.plan.role(name), state)
    return states
