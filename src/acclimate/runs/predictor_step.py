"""Step B: the predictor, over the training domains' images and, where it adapts, their μ."""

from dataclasses import replace

import torch
from torch import Tensor

from acclimate.data.batches import Batch, DomainSampler
from acclimate.data.on_device import sent
from acclimate.learn.algorithms import Algorithm
from acclimate.learn.embeddings import FromERM
from acclimate.runs.checkpoint import Position
from acclimate.runs.loop import Phase, Validate
from acclimate.runs.session import Session

MAIN = "main"


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
    shifts = torch.from_numpy(plan.label_shifts()).float().to(device)

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
    )
    return session.loop(
        objective,
        sampler,
        phase,
        plan.config.seed,
        prepare=with_domain_facts,
        validate=validate,
    ).run()
