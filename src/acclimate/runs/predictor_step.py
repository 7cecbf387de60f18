"""Step B: the predictor, over the training domains' images and, where it adapts, their μ."""

from collections.abc import Callable
from dataclasses import replace

from acclimate.data.batches import Batch, DomainSampler, Loader
from acclimate.learn.embeddings import DomainTable
from acclimate.learn.models import Predictor
from acclimate.runs.checkpoint import Position
from acclimate.runs.loop import Loop, Phase
from acclimate.runs.records import Score
from acclimate.runs.session import Session


def learn_predictor(
    session: Session,
    predictor: Predictor,
    table: DomainTable | None,
    validate: Callable[[int], tuple[list[Score], float | None]],
) -> Position:
    """Train `predictor` to the end, or from where a killed run stopped; keep the chosen weights."""
    plan, config, world = session.plan, session.plan.config, session.world
    settings, domains = config.train, plan.train_rows
    sampler = DomainSampler(
        domains,
        per_domain=settings.per_domain,
        domains_per_step=settings.domains_per_step,
        seed=config.seed,
    )
    means = None if table is None else table.means.float().to(world.device)

    def with_mu(batch: Batch) -> Batch:
        return batch if means is None else replace(batch, mu=means[batch.domain])

    loop = Loop(
        objective=plan.objective(predictor, world).to(world.device),
        loader=Loader(
            session.source,
            sampler,
            domains,
            world,
            config.seed,
            augmented=config.data.augment == "domainbed",
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
        world=world,
        folder=session.folder,
        seed=config.seed,
        bf16=session.bf16,
        prepare=with_mu,
        validate=validate,
        watch=session.watch,
        clock=session.seconds,
    )
    return loop.run()
