"""Scores per domain. An unseen domain is adapted to first, from unlabelled images of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from acclimate.data.source import Source, to_float
from acclimate.distributed import World
from acclimate.embeddings import DomainState, DomainTable, Embedding, embed_rows
from acclimate.embeddings.domains import EVALUATION_BATCH, sample_rows
from acclimate.errors import ManifestError
from acclimate.models import Conditioned, Predictor
from acclimate.plan import Plan
from acclimate.randomness import stream
from acclimate.records import Score
from acclimate.trained import Trained


@dataclass(frozen=True)
class Counts:
    n: int
    top1: int
    top5: int


@torch.no_grad()
def count_correct(
    predictor: Predictor,
    source: Source,
    rows: np.ndarray,
    world: World,
    log_prior: Tensor | None = None,
) -> Counts:
    """How many readable `rows` a plain (or folded) predictor gets right, `log_prior` [C] added."""
    totals = torch.zeros(3, dtype=torch.float64, device=world.device)
    mine = rows[world.share(len(rows))]
    for start in range(0, len(mine), EVALUATION_BATCH):
        part = mine[start : start + EVALUATION_BATCH]
        stored, good = source.take(part)
        if not good.any():
            continue
        x = to_float(stored[torch.from_numpy(good)], world.device)
        labels = torch.from_numpy(source.labels[part[good]]).to(world.device)
        logits = predictor(x).logits.float()
        if log_prior is not None:
            logits = logits + log_prior
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        totals[0] += len(best)
        totals[1] += best[:, 0].sum()
        totals[2] += best.sum()
    n, top1, top5 = (int(total) for total in world.sum(totals).cpu())
    return Counts(n, top1, top5)


@dataclass(frozen=True)
class Unseen:
    """An unseen domain: the images that adapt to it, the images that are scored, and its state."""

    adapted_on: np.ndarray
    scored: np.ndarray
    state: DomainState | None


@dataclass
class Evaluator:
    """Scores a predictor on a plan's domains. Φ is fixed, so each unseen μ is worked out once."""

    plan: Plan
    source: Source
    world: World
    trained: Trained
    _unseen: dict[str, Unseen] = field(default_factory=dict)

    @property
    def embedding(self) -> Embedding | None:
        return self.trained.embedding

    @property
    def table(self) -> DomainTable | None:
        return self.trained.table

    def validation(self, step: int) -> tuple[list[Score], float | None]:
        """Scores that choose the weights, and their mean: validation domains where there are any,
        validation splits of the training domains otherwise. Test domains are not looked at."""
        if self.plan.val_domains:
            scores = [self._unseen_score("validation", step, d) for d in self.plan.val_domains]
        else:
            scores = [
                self._seen_score("validation", step, d, "val") for d in self.plan.train_domains
            ]
        known = [score.top1 for score in scores if score.top1 is not None]
        return scores, (float(np.mean(known)) if known else None)

    def final(self, step: int) -> Iterator[Score]:
        """Every domain, with the controls: a wrong embedding, and the true label prior."""
        for domain in self.plan.train_domains:
            has_test = len(self.plan.manifest.rows(domain=domain, split="test")) > 0
            yield self._seen_score("final", step, domain, "test" if has_test else "val")
        for domain in (*self.plan.val_domains, *self.plan.test_domains):
            yield self._unseen_score("final", step, domain)
            if self.embedding is not None:
                yield self._unseen_score("final", step, domain, wrong=True)
            else:
                yield self._oracle_score("final", step, domain)

    def unseen(self, domain: str) -> Unseen:
        if domain not in self._unseen:
            self._unseen[domain] = self._adapt(domain)
        return self._unseen[domain]

    def _adapt(self, domain: str) -> Unseen:
        rows = self.plan.manifest.rows(domain=domain)
        adapt = self.plan.config.adapt
        held_out = adapt.source == "held-out"
        # Small domains give at most half of their images away.
        points = min(adapt.points, len(rows) // 2) if held_out else min(adapt.points, len(rows))
        if points == 0:
            raise ManifestError(
                f"domain '{domain}' has {len(rows)} image, too few to adapt on one and score "
                f"another; add images, or use --set adapt.source=test"
            )
        chosen = sample_rows(rows, points, self.plan.config.seed, domain)
        # Plain models leave the same images out, so that both are scored on the same ones.
        scored = np.setdiff1d(rows, chosen) if held_out else rows
        state = None
        if self.embedding is not None:
            state = embed_rows(self.embedding, self.source, chosen, self.world)
        return Unseen(chosen, scored, state)

    def _seen_score(self, moment: str, step: int, domain: str, split: str) -> Score:
        rows = self.plan.manifest.rows(domain=domain, split=split)
        state = self.table.states[domain] if self.table else None
        method = "none" if state is None else "embedding"
        counts = count_correct(self._for(state), self.source, rows, self.world)
        on = None if state is None else "training"
        return self._score(moment, step, domain, split, counts, method, on, state)

    def _unseen_score(self, moment: str, step: int, domain: str, *, wrong: bool = False) -> Score:
        this = self.unseen(domain)
        state = this.state
        on: str = self.plan.config.adapt.source
        if wrong:
            state, on = self._another(domain)
        counts = count_correct(self._for(state), self.source, this.scored, self.world)
        if state is None:
            return self._score(moment, step, domain, "all", counts, "none", None, None)
        method = "wrong-embedding" if wrong else "embedding"
        return self._score(moment, step, domain, "all", counts, method, on, state)

    def _oracle_score(self, moment: str, step: int, domain: str) -> Score:
        """The plain model told the true label frequencies of the scored images: a ceiling."""
        rows = self.unseen(domain).scored
        classes = len(self.plan.classes)
        true = np.bincount(self.source.labels[rows], minlength=classes) / max(len(rows), 1)
        with np.errstate(divide="ignore"):
            shift = np.log(true) - np.log(np.maximum(self.trained.label_prior, 1e-12))
        prior = torch.tensor(shift, dtype=torch.float32, device=self.world.device)
        counts = count_correct(self._for(None), self.source, rows, self.world, log_prior=prior)
        return self._score(moment, step, domain, "all", counts, "oracle-prior", None, None)

    def _another(self, domain: str) -> tuple[DomainState | None, str]:
        """A random other unseen domain's state; a training domain's where there is no other."""
        others = [d for d in (*self.plan.val_domains, *self.plan.test_domains) if d != domain]
        rng = stream(self.plan.config.seed, "wrong", domain)
        if others:
            state = self.unseen(others[int(rng.integers(len(others)))]).state
            return state, self.plan.config.adapt.source
        assert self.table is not None
        names = self.table.names
        return self.table.states[names[int(rng.integers(len(names)))]], "training"

    def _for(self, state: DomainState | None) -> Predictor:
        predictor = self.trained.predictor
        if state is None:
            return predictor
        assert isinstance(predictor, Conditioned) and self.table is not None
        return predictor.fold(state.mean.to(self.world.device)).eval()

    def _score(
        self,
        moment: str,
        step: int,
        domain: str,
        split: str,
        counts: Counts,
        method: str,
        adapted_on: str | None,
        state: DomainState | None,
    ) -> Score:
        many = len(self.plan.classes) > 5
        return Score(
            moment=moment,
            step=step,
            domain=domain,
            role=self.plan.role(domain),
            split=split,
            n=counts.n,
            top1=counts.top1 / counts.n if counts.n else None,
            top5=counts.top5 / counts.n if counts.n and many else None,
            method=method,
            adapted_on=adapted_on,
            adapt_n=state.count if state else None,
            adapt_seed=self.plan.config.seed if state and adapted_on != "training" else None,
        )
