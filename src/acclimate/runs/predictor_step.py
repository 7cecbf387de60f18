"""Step B: the predictor, over the training domains' images and, where it adapts, their μ."""

from dataclasses import replace

import torch
from torch import Tensor

from acclimate.data.batches import Batch, DomainSampler
from acclimate.learn.embeddings import DomainTable
from acclimate.learn.models import Predictor
from acclimate.learn.objective import Objective
from acclimate.runs.checkpoint import Position
from acclimate.runs.loop import Loop, Phase, Validate
from acclimate.runs.session import Session

MAIN = "main"


def learn_predictor(
    session: Session, predictor: Predictor, table: DomainTable | None, validate: Validate
) -> Position:
    """Train `predictor` to the end, or from where a killed run stopped; keep the chosen weights."""
    device = session.world.device
    means = None if table is None else table.means.float().to(device)
    objective = session.plan.objective(predictor, session.world).to(device)
    return main_loop(session, objective, MAIN, means=means, validate=validate).run()


def main_loop(
    session: Session,
    objective: Objective,
    phase: str,
    *,
    means: Tensor | None = None,
    validate: Validate,
) -> Loop:
    """The main training under the name `phase`: its budget, batches and random numbers.

    `means` [N, d] are the domains' μ, where the objective has use for them.
    """
    plan = session.plan
    settings, seed = plan.config.train, plan.config.seed
    shifts = torch.from_numpy(plan.label_shifts()).float().to(session.world.device)

    def known(batch: Batch) -> Batch:
        return replace(
            batch,
            mu=None if means is None else means[batch.domain],
            shift=shifts[batch.domain] if settings.prior_aware else None,
        )

    sampler = DomainSampler(
        plan.train_rows,
        per_domain=settings.per_domain,
        domains_per_step=settings.domains_per_step,
        seed=seed,
    )
    stretch = Phase(
        phase,
        settings.steps,
        settings.optimiser,
        settings.checkpoint_every,
        settings.evaluate_every,
        settings.keep,
        settings.average,
        seeded_as=MAIN,
    )
    return session.loop(objective, sampler, stretch, seed, prepare=known, validate=validate)
