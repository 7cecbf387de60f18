"""Step A: Φ, the training domains' μ, and how well few images would have told them."""

import torch

from acclimate.core.randomness import derive
from acclimate.learn.embeddings import DomainTable, Embedding, FromERM, embed_rows
from acclimate.learn.embeddings.consistency import Sample, measure, measured_domains
from acclimate.learn.embeddings.domains import load_embedding, sample_rows, save_embedding
from acclimate.runs.loop import Phase
from acclimate.runs.predictor_step import train_predictor
from acclimate.runs.records import Validated
from acclimate.runs.scoring import Evaluator
from acclimate.runs.session import Session
from acclimate.runs.shared import Baseline


def learn_embedding(
    session: Session, embedding: Embedding, baseline: Baseline | None = None
) -> DomainTable:
    """Learn Φ and the training domains' μ, or load them: the folder keeps both in one file."""
    path = session.folder.phi
    if not path.exists():
        if baseline is not None and isinstance(embedding, FromERM):
            baseline.adopt(session.folder, embedding, session.quarantine, session.world)
        else:
            _learn(session, embedding)
        table = _embed_domains(session, embedding)
        session.quarantine.refresh()
        if session.world.main:
            save_embedding(path, embedding, table)
        session.world.wait()
    return load_embedding(path, embedding)


def _learn(session: Session, embedding: Embedding) -> None:
    if isinstance(embedding, FromERM):
        _learn_baseline(session, embedding)
        return
    config, domains = session.plan.config, session.plan.train_rows
    settings, seed = config.embedding, derive(config.seed, "embedding")
    sampler = embedding.sampler(domains, settings, seed)
    phase = Phase("embedding", settings.steps, settings.optimiser, config.train.checkpoint_every)
    session.loop(embedding, sampler, phase, seed).run()


def _learn_baseline(session: Session, embedding: FromERM) -> None:
    """The training of the run `erm`, which chooses its weights by validation as that run does."""
    plan = session.plan
    evaluator = Evaluator(
        plan, session.source, session.world, embedding.predictor, plan.label_prior().tolist()
    )

    def validate(step: int) -> Validated:
        # The run's records are of its own predictor.
        return evaluator.validation(step)._replace(scores=[])

    train_predictor(session, embedding, validate, name="embedding")


def _embed_domains(session: Session, embedding: Embedding) -> DomainTable:
    """μ of each training domain, and Φ standardised by them; their consistency is written down."""
    plan, world, seed = session.plan, session.world, session.plan.config.seed
    settings = plan.config.embedding
    measured = measured_domains(plan.train_domains, seed)
    states, points = {}, {}
    for done, (name, rows) in enumerate(
        zip(plan.train_domains, plan.train_rows, strict=True), start=1
    ):
        # Every image once, as at test time, where images come without labels.
        chosen = sample_rows(plan.manifest.one_row_each(rows), settings.points, seed, name)
        sample = Sample(chosen, seed, name) if name in measured else None
        states[name] = embed_rows(embedding, session.source, chosen, world, seen=sample)
        if sample is not None:
            points[name] = sample.whole(embedding.dim, world)
        session.watch("domains", done, len(plan.train_domains), name)
    if settings.standardise:
        embedding.standardise(DomainTable(states).means)
        centre, spread = embedding.centre, float(embedding.spread)
        states = {name: state.rescaled(centre, spread) for name, state in states.items()}
        middle = centre.to("cpu", torch.float64)
        points = {name: (rows - middle) / spread for name, rows in points.items()}
    if world.main:
        found = measure({name: rows.numpy() for name, rows in points.items()}, seed)
        session.folder.write_consistency(found.to_dict())
    return DomainTable(states)
