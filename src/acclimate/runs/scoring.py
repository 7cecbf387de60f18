"""Scores per domain. An unseen domain is adapted to first, from unlabelled images of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.methods import Chain, base_predictor, find_chain, nothing_to_embed
from acclimate.adapt.methods.prior import black_box_prior, log_ratio, posteriors, soft_confusion
from acclimate.adapt.rehearsal import Rehearsal
from acclimate.config import merged, nested
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.core.tensors import require_finite
from acclimate.data.source import Images, Source, readable, to_float
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding, embed_rows
from acclimate.learn.embeddings.domains import sample_rows
from acclimate.learn.model import StartingPoint
from acclimate.learn.models import Predictor
from acclimate.runs.plan import Plan
from acclimate.runs.records import Score

CHECK = "black-box-prior"


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
    everything = np.zeros(len(rows), dtype=np.int64)
    return count_by_group(predictor, source, rows, everything, 1, world, log_prior=log_prior)[0]


@torch.no_grad()
def count_by_group(
    predictor: Predictor,
    source: Source,
    rows: np.ndarray,
    group: np.ndarray,
    groups: int,
    world: World,
    *,
    mu: Tensor | None = None,
    log_prior: Tensor | None = None,
) -> list[Counts]:
    """The same for many groups of rows in one pass; `mu` [groups, d] goes with each group."""
    totals = torch.zeros(groups, 3, dtype=torch.float64, device=world.device)
    for x, labels, places in labelled_batches(source, rows, world):
        of = torch.from_numpy(group[places]).to(world.device)
        logits = predictor(x, None if mu is None else mu[of]).logits.float()
        require_finite(logits, "a prediction")
        if log_prior is not None:
            logits = logits + log_prior
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        found = torch.stack([torch.ones_like(labels), best[:, 0], best.any(1)], dim=1).double()
        totals.index_add_(0, of, found)
    return [Counts(*map(int, row)) for row in world.sum(totals).cpu().tolist()]


def labelled_batches(
    source: Source, rows: np.ndarray, world: World
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """The readable of this process's share of `rows`: inputs, labels and places in `rows`."""
    mine = np.arange(len(rows))[world.share(len(rows))]
    for found, stored in readable(source, rows[mine]):
        places = mine[found]
        labels = torch.from_numpy(source.labels[rows[places]])
        yield to_float(stored, world.device), labels.to(world.device), places


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
    predictor: Predictor
    label_prior: Sequence[float]  # class frequencies that the predictor was trained on
    embedding: Embedding | None = None
    table: DomainTable | None = None  # of the training domains, where there is an embedding
    second: StartingPoint | None = None  # the path by embedding of a plain model that has one
    rehearsal: Rehearsal | None = None
    _unseen: dict[str, Unseen] = field(default_factory=dict)

    def validation(self, step: int) -> tuple[list[Score], float | None]:
        """Scores that choose the weights, and their mean: validation domains where there are any,
        validation splits of the training domains otherwise. Test domains are not looked at."""
        if self.plan.val_domains:
            scores = [self._unseen_score("validation", step, d) for d in self.plan.val_domains]
        else:
            splits = dict.fromkeys(self.plan.train_domains, "val")
            scores = list(self._seen_scores("validation", step, splits))
        known = [score.top1 for score in scores if score.top1 is not None]
        return scores, (float(np.mean(known)) if known else None)

    def final(self, step: int, methods: Sequence[str] = ()) -> Iterator[Score]:
        """Every domain, with the controls: a wrong embedding, and the true label prior.

        Unseen domains are scored by `methods` as well.
        """
        usual = "none" if self.embedding is None else "embedding"
        rehearsed = [] if self.rehearsal is None else ["auto"]
        further = [name for name in dict.fromkeys([*rehearsed, *methods]) if name != usual]
        if self.plan.train_domains:
            tests = (
                self.plan.manifest.rows(domain=d, split="test") for d in self.plan.train_domains
            )
            splits = ["test" if len(rows) else "val" for rows in tests]
            seen = dict(zip(self.plan.train_domains, splits, strict=True))
            yield from self._seen_scores("final", step, seen)
            if self.plan.val_domains:
                yield from self._unlooked_at(step, seen)
        for domain in (*self.plan.val_domains, *self.plan.test_domains):
            yield self._unseen_score("final", step, domain)
            if self.embedding is not None:
                yield self._unseen_score("final", step, domain, wrong=True)
            else:
                yield self._oracle_score("final", step, domain)
            for method in further:
                yield self.method_score("final", step, domain, method)
                if method == "prior" and self.embedding is None and self._confusion.any():
                    yield self._black_box_score("final", step, domain)

    def _unlooked_at(self, step: int, scored: Mapping[str, str]) -> Iterator[Score]:
        """Validation splits that neither chose the weights nor were scored: with them, one can
        still choose among runs by the training domains alone."""
        splits = {
            domain: "val"
            for domain, split in scored.items()
            if split == "test" and len(self.plan.manifest.rows(domain=domain, split="val"))
        }
        if splits:
            yield from self._seen_scores("final", step, splits)

    def unseen(self, domain: str) -> Unseen:
        if domain not in self._unseen:
            self._unseen[domain] = self._adapt(domain)
        return self._unseen[domain]

    def _adapt(self, domain: str) -> Unseen:
        manifest, adapt = self.plan.manifest, self.plan.config.adapt
        rows = manifest.rows(domain=domain)
        images = manifest.one_row_each(rows)  # an image of several labels has several rows
        held_out = adapt.source == "held-out"
        # Small domains give at most half of their images away.
        points = min(adapt.points, len(images) // 2 if held_out else len(images))
        chosen = sample_rows(images, points, self.plan.config.seed, domain)
        # Plain models leave the same images out, so that both are scored on the same ones.
        scored = rows[~manifest.same_image(rows, chosen)] if held_out else rows
        state = None
        if self.embedding is not None:
            state = embed_rows(self.embedding, self.source, chosen, self.world)
        return Unseen(chosen, scored, state)

    def _seen_scores(self, moment: str, step: int, splits: Mapping[str, str]) -> Iterator[Score]:
        """Training domains on one of their splits each, all in one pass with their stored μ."""
        rows = [self.plan.manifest.rows(domain=d, split=split) for d, split in splits.items()]
        group = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        states = [self.table.states[domain] for domain in splits] if self.table else []
        mu = torch.stack([state.mean for state in states]).float() if states else None
        counts = count_by_group(
            self.predictor,
            self.source,
            np.concatenate(rows),
            group,
            len(rows),
            self.world,
            mu=None if mu is None else mu.to(self.world.device),
        )
        for place, (domain, split) in enumerate(splits.items()):
            used = (
                ("embedding", "training", states[place].count) if states else ("none", None, None)
            )
            yield self._score(moment, step, domain, split, counts[place], *used)

    def _unseen_score(self, moment: str, step: int, domain: str, *, wrong: bool = False) -> Score:
        this = self.unseen(domain)
        state = this.state
        on: str = self.plan.config.adapt.source
        if wrong:
            state, on = self._another(domain)
        method = "wrong-embedding" if wrong else "embedding"
        if state is not None and state.count == 0:  # not one of the images could be read
            return self._score(moment, step, domain, "all", Counts(0, 0, 0), method, on, 0)
        counts = count_correct(self._for(state), self.source, this.scored, self.world)
        if state is None:
            return self._score(moment, step, domain, "all", counts, "none", None, None)
        return self._score(moment, step, domain, "all", counts, method, on, state.count)

    def method_score(self, moment: str, step: int, domain: str, method: str) -> Score:
        """An unseen domain, adapted to by `method` from the images set aside for that.

        Every process adapts on all of them: they are few, and most methods cannot share them out.
        """
        this = self.unseen(domain)
        readable = self.source.take(this.adapted_on)[1] if method == "auto" else this.adapted_on
        chain = self._chain(method, int(np.count_nonzero(readable)))
        start = self._start(chain)
        state = None
        if chain.embedding and start.embedding is not None:
            state = this.state or embed_rows(
                start.embedding, self.source, this.adapted_on, self.world
            )
        predictor = base_predictor(start.predictor, start.table, state)
        used = state.count if state else None
        if chain.methods:
            images = self._images(domain)
            context = chain.context(
                start.predictor, start.table, self.label_prior, prior_aware=start.prior_aware
            )
            predictor, _ = chain.adapt(predictor, images, context)
            used = len(images)
        counts = count_correct(predictor, self.source, this.scored, self.world)
        on = None if used is None else self.plan.config.adapt.source
        name = method if method == "auto" else chain.name
        return self._score(moment, step, domain, "all", counts, name, on, used)

    def _chain(self, method: str, images: int) -> Chain:
        """The chain of a name; "auto" is what rehearsal chose for so many images."""
        config = self.plan.config.adapt
        if method != "auto":
            return find_chain(method, config)
        if self.rehearsal is None:
            raise ConfigError(
                "nothing was rehearsed, so there is no 'auto' to score; train with "
                "--set adapt.rehearse=true, or name a method"
            )
        chosen = self.rehearsal.chain_for(images)
        settings = nested(self.rehearsal.settings_for(chosen))
        return find_chain(chosen, replace(config, components=merged(config.components, settings)))

    def _start(self, chain: Chain) -> StartingPoint:
        if chain.embedding and self.embedding is None:
            if self.second is None:
                raise nothing_to_embed(self.plan.config.algorithm)
            return self.second
        aware = self.plan.config.train.prior_aware
        return StartingPoint(self.predictor, self.embedding, self.table, prior_aware=aware)

    def _black_box_score(self, moment: str, step: int, domain: str) -> Score:
        """A check of `prior`: the same correction, with class frequencies worked out from the
        confusion matrix of the training domains' validation images instead of by EM."""
        images, predictor = self._images(domain), self._for(None)
        target = black_box_prior(self._confusion, posteriors(predictor, images).mean(0))
        train = torch.tensor(self.label_prior, dtype=torch.float64)
        shift = log_ratio(target, train).float().to(self.world.device)
        rows = self.unseen(domain).scored
        counts = count_correct(predictor, self.source, rows, self.world, log_prior=shift)
        on = self.plan.config.adapt.source
        return self._score(moment, step, domain, "all", counts, CHECK, on, len(images))

    @cached_property
    def _confusion(self) -> Tensor:
        """Of a plain model on the training domains' validation images: [C, C], 0 without any."""
        classes = len(self.plan.classes)
        total = torch.zeros(classes, classes, dtype=torch.float64, device=self.world.device)
        for domain in self.plan.train_domains:
            rows = self.plan.manifest.rows(domain=domain, split="val")
            for x, labels, _ in labelled_batches(self.source, rows, self.world):
                with torch.no_grad():
                    found = self._for(None)(x).logits.double().softmax(1)
                total += soft_confusion(found, labels)
        return self.world.sum(total).cpu()

    def _images(self, domain: str) -> Images:
        """The readable of the images that adapt to an unseen domain."""
        rows = self.unseen(domain).adapted_on
        stored, good = self.source.take(rows)
        if not good.any():
            raise ManifestError(
                f"none of the {len(rows)} images set aside to adapt to domain '{domain}' can be "
                f"read; add images, or choose others with another seed"
            )
        return Images(stored[torch.from_numpy(good)], self.world.device)

    def _oracle_score(self, moment: str, step: int, domain: str) -> Score:
        """The plain model told the true label frequencies of the scored images: a ceiling."""
        rows = self.unseen(domain).scored
        classes = len(self.plan.classes)
        true = np.bincount(self.source.labels[rows], minlength=classes) / max(len(rows), 1)
        with np.errstate(divide="ignore"):
            shift = np.log(true) - np.log(np.maximum(self.label_prior, 1e-12))
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
        return base_predictor(self.predictor, self.table, state)

    def _score(
        self,
        moment: str,
        step: int,
        domain: str,
        split: str,
        counts: Counts,
        method: str,
        adapted_on: str | None,
        adapt_n: int | None,
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
            adapt_n=adapt_n,
            adapt_seed=self.plan.config.seed if adapted_on not in (None, "training") else None,
        )
