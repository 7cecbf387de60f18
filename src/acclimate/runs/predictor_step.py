"""Step B: the predictor, over the training domains' images and, where it adapts, their μ."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from acclimate.core.randomness import derive
from acclimate.data.batches import Batch, DomainSampler
from acclimate.data.on_device import sent
from acclimate.learn.algorithms import Algorithm
from acclimate.learn.embeddings import FromERM
from acclimate.learn.models.backbones import held_still
from acclimate.runs.checkpoint import Position
from acclimate.runs.loop import Loop, Phase, Validate
from acclimate.runs.session import Session

MAIN = "main"


@dataclass
class Fit:
    """The main training, with what may come before and after it, each resumed by itself.

    `means` [N, d] are the domains' μ, where the objective has use for them.
    """

    session: Session
    objective: Algorithm | FromERM
    validate: Validate
    means: Tensor | None = None
    name: str = MAIN
    _initial: dict[str, Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.session.plan.config.train.last_fit:
            state = self.objective.state_dict()
            self._initial = {name: value.detach().cpu().clone() for name, value in state.items()}

    def choose(self) -> Position:
        """Train to the end, or from where a killed run stopped; keep the chosen weights."""
        settings, rows = self.session.plan.config.train, self.session.plan.train_rows
        self._probe(self.name, rows)
        phase = Phase(
            self.name,
            settings.steps,
            settings.optimiser,
            settings.checkpoint_every,
            settings.evaluate_every,
            settings.keep,
            settings.average,
            seeded_as=MAIN,
        )
        return self._loop(phase, rows, self.validate).run()

    def repeat(self, chosen: Position) -> None:
        """The last fit: from the beginning, for as many steps as were `chosen`, on all rows.

        Nothing is held out from it, so that nothing is chosen any more: of SWAD, the window is the
        one that was found.
        """
        settings, rows = self.session.plan.config.train, self.session.plan.fitted_rows
        name, average = f"{self.name}-last", settings.average
        self.objective.load_state_dict(self._initial)
        self._probe(name, rows)
        phase = Phase(
            name,
            chosen.kept(settings.keep),
            settings.optimiser,
            settings.checkpoint_every,
            average=replace(average, kind="none") if average.kind == "swad" else average,
            seeded_as=MAIN,
            planned=settings.steps,
            window=chosen.window,
        )
        self._loop(phase, rows).run()

    def _probe(self, name: str, rows: Sequence[np.ndarray]) -> None:
        """The head learns alone, on what the backbone makes of images when it is used."""
        settings = self.session.plan.config.train
        if not settings.probe.steps:
            return
        rate = {"lr": settings.probe.lr, "schedule": "cosine", "warmup": 0}
        phase = Phase(
            f"{name}-probe",
            settings.probe.steps,
            replace(settings.optimiser, **rate),  # type: ignore[arg-type]
            settings.checkpoint_every,
            seeded_as="probe",
        )
        seed = derive(self.session.plan.config.seed, "probe")  # other batches than what follows
        with held_still(self.objective.predictor.backbone):
            self._loop(phase, rows, seed=seed).run()

    def _loop(
        self,
        phase: Phase,
        rows: Sequence[np.ndarray],
        validate: Validate | None = None,
        seed: int | None = None,
    ) -> Loop:
        plan, settings = self.session.plan, self.session.plan.config.train
        seed = plan.config.seed if seed is None else seed
        shifts = torch.from_numpy(plan.label_shifts(rows)).float().to(self.session.world.device)

        def known(batch: Batch) -> Batch:
            domain = sent(batch.domain, self.session.world.device)
            return replace(
                batch,
                mu=None if self.means is None else self.means[domain],
                shift=shifts[domain] if settings.prior_aware else None,
            )

        sampler = DomainSampler(
            rows,
            per_domain=settings.per_domain,
            domains_per_step=settings.domains_per_step,
            seed=seed,
        )
        return self.session.loop(
            self.objective, sampler, phase, seed, rows=rows, prepare=known, validate=validate
        )
