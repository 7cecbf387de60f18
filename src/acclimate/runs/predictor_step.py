"""Step B: the predictor, over the training domains' images and, where it adapts, their μ."""

from dataclasses import replace

from acclimate.data.batches import Batch, DomainSampler
from acclimate.learn.embeddings import DomainTable
from acclimate.learn.models import Predictor
from acclimate.runs.checkpoint import Position
from acclimate.runs.loop import Phase, Validate
from acclimate.runs.session import Session


def learn_predictor(
    session: Session, predictor: Predictor, table: DomainTable | None, validate: Validate
) -> Position:
    """Train `predictor` to the end, or from where a killed run stopped; keep the chosen weights."""
    plan, device = session.plan, session.world.device
    settings, seed = plan.config.train, plan.config.seed
    means = None if table is None else table.means.float().to(device)

    def with_mu(batch: Batch) -> Batch:
        return batch if means is None else replace(batch, mu=means[batch.domain])

    sampler = DomainSampler(
        plan.train_rows,
        per_domain=settings.per_domain,
        domains_per_step=settings.domains_per_step,
        seed=seed,
    )
    phase = Phase(
        "main",
        settings.steps,
        settings.optimiser,
        settings.checkpoint_every,
        settings.evaluate_every,
        settings.keep,
        settings.average,
    )
    objective = plan.objective(predictor, session.world).to(device)
    loop = session.loop(objective, sampler, phase, seed, prepare=with_mu, validate=validate)
    return loop.run()
