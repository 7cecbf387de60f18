"""Scores per domain. An unseen domain is adapted to first, from unlabelled images of its own.

A score comes about in four steps: which rows of a domain adapt and which are scored
(`split_domain`); the classifiers to compare (`_candidates`); one pass of the images, which turns
logits into facts about each row (`predict_rows`); metrics over those rows (`_score`).
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.choice import Guard, adapt_by_choice, rehearsed_choice
from acclimate.adapt.methods import Chain, base_predictor, find_chain, nothing_to_embed
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.methods.prior import black_box_prior, log_ratio, posteriors, soft_confusion
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.source import Images, Source, in_parts, numbered, readable, sent, to_float
from acclimate.learn.embeddings import DomainState, embed_rows
from acclimate.learn.embeddings.state import sample_rows
from acclimate.learn.model import StartingPoint, Trained
from acclimate.learn.models import Backbone, Plain, Predictor
from acclimate.learn.models.predictors import BatchFeatures, identity_backbone
from acclimate.records.metrics import metric_values
from acclimate.records.predictions import Predictions
from acclimate.records.records import Score, Validated
from acclimate.runs.plan import Plan

MOST_REMEMBERED = 2**30  # bytes of features
RowScore = tuple[Score, Predictions]  # a score, and the rows that it is made from


@dataclass(frozen=True)
class Subject:
    """A model, and the data that it is scored on."""

    plan: Plan
    source: Source
    world: World
    start: StartingPoint  # the model as it was trained
    second: StartingPoint | None = None  # the path by embedding of a plain model that has one
    guard: Guard | None = None  # what a rehearsed model knows: then "auto" is scored too
    # Of unseen domains, from the images that adapt to them. Φ is fixed, so μ is computed once.
    states: dict[str, DomainState] = field(default_factory=dict)

    @classmethod
    def of(cls, trained: Trained, plan: Plan, source: Source, world: World) -> "Subject":
        second = None if trained.site is None else trained.start(embedding=True)
        start = trained.start(embedding=False)
        return cls(plan, source, world, start, second, Guard.of(trained))


@dataclass(frozen=True)
class Candidate:
    """A classifier to score, and what it was adapted on."""

    method: str
    predictor: Predictor | None  # plain, or folded; None: too few images, so nothing is scored
    adapted_on: str | None = None
    adapt_n: int | None = None
    shift: Tensor | None = None  # added to its logits: [C]


def validate(subject: Subject, step: int) -> Validated:
    """Scores that choose the weights, and their means: validation domains where there are any,
    validation splits of the training domains otherwise. Test domains are not looked at."""
    plan = subject.plan
    rows = _seen_scores(subject, dict.fromkeys(plan.train_domains, "val"))
    if plan.val_domains:
        each = ((name, [_as_trained(subject, name)]) for name in plan.val_domains)
        rows = (score for name, own in each for score in _unseen_scores(subject, name, own))
    scores = [replace(score, moment="validation", step=step) for score, _ in rows]
    return Validated(scores, _mean(s.top1 for s in scores), _mean(s.loss for s in scores))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def final_scores(subject: Subject, methods: Sequence[str] = ()) -> Iterator[RowScore]:
    """Score every domain, with the controls: a wrong embedding, and the true label prior.

    Unseen domains are scored by the run's own further methods and by `methods` as well.
    """
    plan = subject.plan
    usual = "none" if subject.start.embedding is None else "embedding"
    asked = [*(["auto"] if subject.guard else []), *plan.config.adapt.methods, *methods]
    further = [name for name in dict.fromkeys(asked) if name != usual]
    unseen = (*plan.val_domains, *plan.test_domains)
    # The check of `prior` needs what the plain model mistakes for what.
    validated = _rows(plan, dict.fromkeys(plan.train_domains, "val"))
    checked = usual == "none" and "prior" in methods and unseen and len(validated)
    seen = _seen_splits(plan)
    passes = [_rows(plan, splits) for splits in seen]
    passes += [split_domain(plan, domain)[1] for domain in unseen]
    memory = remember_shared(subject, [*passes, validated] if checked else passes)
    for splits in seen:
        yield from _seen_scores(subject, splits, memory)
    confusion = confusion_of(subject, validated, memory) if checked else None
    for domain in unseen:
        candidates = list(_candidates(subject, domain, further, confusion))
        yield from _unseen_scores(subject, domain, candidates, memory)


# Which rows adapt, and which are scored.


def split_domain(plan: Plan, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of an unseen domain that adapt to it, and those that are scored."""
    manifest, adapt = plan.manifest, plan.config.adapt
    rows = manifest.rows(domain=domain)
    images = manifest.one_row_each(rows)  # an image of several labels has several rows
    held_out = adapt.source == "held-out"
    # Small domains give at most half of their images away.
    points = min(adapt.points, len(images) // 2 if held_out else len(images))
    chosen = sample_rows(images, points, plan.config.seed, domain)
    # Plain models leave the same images out, so that both are scored on the same ones.
    return chosen, rows[~manifest.same_image(rows, chosen)] if held_out else rows


def _seen_splits(plan: Plan) -> list[dict[str, str]]:
    """Training domains and the split of each that is scored at the end, pass by pass."""
    names, rows = plan.train_domains, plan.manifest.rows
    passes = [{d: "test" if len(rows(domain=d, split="test")) else "val" for d in names}]
    if plan.val_domains:
        # Validation splits that neither chose the weights nor were scored: with them, one can
        # still choose among runs by the training domains alone.
        both = (d for d in names if len(rows(domain=d, split="test")))
        passes.append({d: "val" for d in both if len(rows(domain=d, split="val"))})
    return [splits for splits in passes if splits]


def _rows(plan: Plan, splits: Mapping[str, str]) -> np.ndarray:
    parts = [plan.manifest.rows(domain=domain, split=split) for domain, split in splits.items()]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


# Adapting.


@dataclass
class AdaptingImages(Source):
    """The images that adapt to a domain, read once; a source of its rows, which ascend."""

    rows: np.ndarray
    stored: Tensor
    good: np.ndarray
    labels: np.ndarray
    device: torch.device
    _features: dict[Backbone, Images] = field(default_factory=dict)

    @classmethod
    def read(cls, subject: Subject, domain: str) -> "AdaptingImages":
        rows, source = split_domain(subject.plan, domain)[0], subject.source
        return cls(rows, *source.take(rows), source.labels, subject.world.device)

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        places = np.searchsorted(self.rows, rows)
        return self.stored[torch.from_numpy(places)], self.good[places]

    @cached_property
    def images(self) -> Images:
        """The readable ones."""
        stored = self.stored if self.good.all() else self.stored[torch.from_numpy(self.good)]
        return Images(stored, self.device)

    @torch.no_grad()
    def features(self, backbone: Backbone) -> Images:
        """What a backbone makes of them, for all methods that leave it as it is."""
        if backbone not in self._features:
            parts = [BatchFeatures(x).features(backbone) for x in self.images.batches()]
            self._features[backbone] = Images(torch.cat(parts), self.device)
        return self._features[backbone]


def _candidates(
    subject: Subject, domain: str, methods: Sequence[str], confusion: Tensor | None
) -> Iterator[Candidate]:
    """What an unseen domain is scored by: the model as it was trained, a control, and `methods`;
    with a `confusion` of validation images, a check of `prior` as well."""
    held = AdaptingImages.read(subject, domain) if methods else None
    yield _as_trained(subject, domain, held)
    if subject.start.embedding is not None:
        yield _with_wrong_embedding(subject, domain)
    else:
        yield _with_true_prior(subject, domain)
    for method in methods:
        assert held is not None
        yield _by_method(subject, domain, method, held)
        if method == "prior" and confusion is not None and len(held.images):
            yield _by_black_box(subject, held, confusion)


def state_of(
    subject: Subject, domain: str, held: AdaptingImages | None = None
) -> DomainState | None:
    """μ of an unseen domain, None for a plain model; `held` has the images where they were read."""
    if subject.start.embedding is None:
        return None
    if domain not in subject.states:
        rows, source = split_domain(subject.plan, domain)[0], held or subject.source
        state = embed_rows(subject.start.embedding, source, rows, subject.world)
        subject.states[domain] = state
    return subject.states[domain]


def _as_trained(subject: Subject, domain: str, held: AdaptingImages | None = None) -> Candidate:
    """The model with the domain's embedding, or as it is where it has none."""
    state = state_of(subject, domain, held)
    if state is None:
        return Candidate("none", subject.start.predictor)
    return _with_state(subject, "embedding", state, subject.plan.config.adapt.source)


def _with_state(subject: Subject, method: str, state: DomainState, on: str) -> Candidate:
    predictor = None  # not one of the images could be read
    if state.count:
        predictor = base_predictor(subject.start.predictor, subject.start.table, state)
    return Candidate(method, predictor, on, state.count)


def _with_wrong_embedding(subject: Subject, domain: str) -> Candidate:
    """A control: with the embedding of a random other unseen domain, or of a training domain where
    there is no other."""
    plan, table = subject.plan, subject.start.table
    others = [name for name in (*plan.val_domains, *plan.test_domains) if name != domain]
    rng = stream(plan.config.seed, "wrong", domain)
    if others:
        state, on = (
            state_of(subject, others[int(rng.integers(len(others)))]),
            plan.config.adapt.source,
        )
        assert state is not None
        return _with_state(subject, "wrong-embedding", state, on)
    assert table is not None
    state = table.states[table.names[int(rng.integers(len(table.names)))]]
    return _with_state(subject, "wrong-embedding", state, "training")


def _with_true_prior(subject: Subject, domain: str) -> Candidate:
    """A ceiling: the plain model with the true label frequencies of the scored images."""
    labels = subject.source.labels[split_domain(subject.plan, domain)[1]]
    true = np.bincount(labels, minlength=len(subject.plan.classes)) / max(len(labels), 1)
    with np.errstate(divide="ignore"):
        shift = np.log(true) - np.log(np.maximum(subject.start.label_prior, 1e-12))
    prior = torch.tensor(shift, dtype=torch.float32, device=subject.world.device)
    return Candidate("oracle-prior", subject.start.predictor, shift=prior)


def _by_black_box(subject: Subject, held: AdaptingImages, confusion: Tensor) -> Candidate:
    """A check of `prior`: class frequencies from the confusion matrix of validation images instead
    of by EM."""
    start = subject.start
    images, bare = held.features(start.predictor.backbone), _over_features(start.predictor)
    target = black_box_prior(confusion, posteriors(bare, images).mean(0))
    train = torch.tensor(start.label_prior, dtype=torch.float64)
    shift = log_ratio(target, train).float().to(subject.world.device)
    on = subject.plan.config.adapt.source
    return Candidate("black-box-prior", start.predictor, on, len(images), shift)


def _by_method(subject: Subject, domain: str, method: str, held: AdaptingImages) -> Candidate:
    """Adapted to by `method` from the images set aside for that.

    Every process adapts on all of them: they are few, and most methods cannot share them out.
    """
    config, images = subject.plan.config.adapt, len(held.images)
    if method == "auto":
        chain, predictor = _by_choice(subject, domain, held)
    else:
        chain = find_chain(method, config)
        if method in config.methods and images < chain.least_images:
            return Candidate(chain.name, None, config.source, images)
        predictor, _ = _adapt(subject, domain, chain, held)
        method = chain.name
    if chain.name == "none":
        return Candidate(method, predictor)
    return Candidate(method, predictor, config.source, images)


def _by_choice(subject: Subject, domain: str, held: AdaptingImages) -> tuple[Chain, Predictor]:
    """As `adapt` does it: what rehearsal chose, unless the images speak against it."""
    if subject.guard is None:
        raise ConfigError(
            "nothing was rehearsed, so there is no 'auto' to score; train with "
            "--set adapt.rehearse=true, or name a method"
        )
    config, guard = subject.plan.config.adapt, subject.guard

    def adapt(chain: Chain) -> tuple[tuple[Chain, Predictor], DomainState]:
        predictor, state = _adapt(subject, domain, chain, held)
        return (chain, predictor), state

    choice = rehearsed_choice(guard.rehearsal, len(held.images))
    return adapt_by_choice(choice, guard, held.images, config, adapt)[0]


def _adapt(
    subject: Subject, domain: str, chain: Chain, held: AdaptingImages
) -> tuple[Predictor, DomainState]:
    """What a chain makes of the images: the classifier, and the state with their μ."""
    start, state = subject.start, DomainState.empty("", 0)
    if chain.name != "none" and not len(held.images):
        raise ManifestError(
            f"none of the {len(held.rows)} images set aside to adapt to domain '{domain}' can "
            f"be read; add images, or choose others with another seed"
        )
    if chain.embedding and start.embedding is None:
        if subject.second is None:
            raise nothing_to_embed(subject.plan.config.algorithm)
        start = subject.second
    if chain.embedding and start.embedding is not None:
        state = state_of(subject, domain, held) or embed_rows(
            start.embedding, held, held.rows, subject.world
        )
    if not chain.methods or not chain.head_only:
        return adapt_model(start, held.images, chain, state)
    # The backbone stays, so that all such chains can share what it makes of the images.
    backbone = start.predictor.backbone
    bare = start._replace(predictor=_over_features(start.predictor))
    adapted, state = adapt_model(bare, held.features(backbone), chain, state)
    assert isinstance(adapted, Plain)
    return Plain.of(backbone, adapted.head), state


def _over_features(predictor: Predictor) -> Predictor:
    """The same classifier of what its backbone makes of images; it shares the rest."""
    backbone, bare = predictor.backbone, copy.copy(predictor)
    identity = identity_backbone(backbone.features).to(backbone.mean.device)
    bare._modules = {**predictor._modules, "backbone": identity}
    return bare


# One pass: logits to rows.


@dataclass
class FeatureMemory:
    """What a backbone makes of images that are to pass it again."""

    backbone: Backbone
    place: np.ndarray  # [images of a source]: of its features; -1 for images that pass once
    features: Tensor  # [places, f]
    have: np.ndarray  # [images], bool

    def keep(self, images: np.ndarray, passed: BatchFeatures) -> None:
        places = self.place[images]
        chosen = np.flatnonzero(places >= 0)
        if len(chosen):
            device = self.features.device
            of, to = torch.from_numpy(chosen), torch.from_numpy(places[chosen])
            self.features[sent(to, device)] = passed.features(self.backbone)[sent(of, device)]
            self.have[images[chosen]] = True

    def recall(self, images: np.ndarray) -> BatchFeatures:
        """Images that it has, as if they passed."""
        places = sent(torch.from_numpy(self.place[images]), self.features.device)
        return BatchFeatures.before(self.backbone, self.features[places])


def remember_shared(subject: Subject, passes: Sequence[np.ndarray]) -> FeatureMemory | None:
    """A memory for images that are in several of the `passes` (rows each), where there are any and
    it fits: an image of a long-tailed set then passes the network once."""
    backbone, image = subject.start.predictor.backbone, subject.source.image
    if backbone.extractor is not None:  # features come from a cache, as a rule
        return None
    times = np.zeros(int(image.max(initial=-1)) + 1, dtype=np.int64)
    for rows in passes:
        times[np.unique(image[rows])] += 1
    shared = times > 1
    count = int(shared.sum())
    if not 0 < count * backbone.features * 4 <= MOST_REMEMBERED:
        return None
    try:
        features = torch.empty(count, backbone.features, device=backbone.mean.device)
    except torch.OutOfMemoryError:
        return None
    place = np.where(shared, np.cumsum(shared) - 1, -1)
    return FeatureMemory(backbone, place, features, np.zeros(len(shared), dtype=bool))


@dataclass(frozen=True)
class LabelledBatch:
    """Some rows of a pass over images: what networks see, and labels and places of the rows."""

    passed: BatchFeatures
    which: Tensor | None  # [n]: the image that each row shows; None: as they come
    labels: Tensor
    places: np.ndarray

    def logits(self, predictor: Predictor, mu: Tensor | None = None) -> Tensor:
        return self.passed.logits(predictor, mu, self.which).float()


def labelled_batches(
    subject: Subject, rows: np.ndarray, memory: FeatureMemory | None = None
) -> Iterator[LabelledBatch]:
    """This process's share of what can be read of `rows`. An image is read once, and passes a
    network once, however many of them show it; where it is in `memory`, neither."""
    source, device = subject.source, subject.world.device
    first, image = numbered(source.image[rows])
    by_image = np.argsort(image, kind="stable")
    start = np.searchsorted(image[by_image], np.arange(len(first) + 1))
    for images, passed in _passes(subject, rows[first], memory):
        shown = np.concatenate([by_image[start[one] : start[one + 1]] for one in images])
        which = np.repeat(np.arange(len(images)), start[images + 1] - start[images])
        several = len(shown) > len(images)
        for part in in_parts(np.arange(len(shown))):
            yield LabelledBatch(
                passed,
                sent(torch.from_numpy(which[part]), device) if several else None,
                sent(torch.from_numpy(source.labels[rows[shown[part]]]), device),
                shown[part],
            )


def _passes(
    subject: Subject, rows: np.ndarray, memory: FeatureMemory | None
) -> Iterator[tuple[np.ndarray, BatchFeatures]]:
    """This process's share of `rows`, each of which shows another image: places, and a batch."""
    images = subject.source.image[rows]
    mine = np.arange(len(rows))[subject.world.share(len(rows))]
    if memory is not None:
        there = memory.have[images[mine]]
        for some in in_parts(mine[there]):
            if len(some):
                yield some, memory.recall(images[some])
        mine = mine[~there]
    for places, stored in readable(subject.source, rows[mine]):
        some, passed = mine[places], BatchFeatures(to_float(stored, subject.world.device))
        if memory is not None:
            memory.keep(images[some], passed)
        yield some, passed


@torch.no_grad()
def predict_rows(
    subject: Subject,
    classifiers: Sequence[tuple[Predictor, Tensor | None]],
    rows: np.ndarray,
    memory: FeatureMemory | None = None,
    *,
    mu: Tensor | None = None,
    group: np.ndarray | None = None,
) -> np.ndarray:
    """Facts about each of `rows` by each predictor, with what is added to its logits; in one pass:
    [classifiers, rows, 6], of which the columns are those of `row_facts`.

    `mu` [groups, d] goes with the `group` [rows] of each row. A row that cannot be read has zeros.
    """
    device = subject.world.device
    facts = torch.zeros(len(classifiers), len(rows), 6, dtype=torch.float64, device=device)
    if memory is not None and any(p.backbone is not memory.backbone for p, _ in classifiers):
        memory = None
    for batch in labelled_batches(subject, rows, memory) if classifiers else ():
        places, own = sent(torch.from_numpy(batch.places), device), None
        if mu is not None and group is not None:
            own = mu[sent(torch.from_numpy(group[batch.places]), device)]
        logits: dict[Predictor, Tensor] = {}  # several classifiers may share a predictor
        for number, (predictor, shift) in enumerate(classifiers):
            if predictor not in logits:
                logits[predictor] = batch.logits(predictor, own)
            shifted = logits[predictor] if shift is None else logits[predictor] + shift
            facts[number, places] = row_facts(shifted, batch.labels)
    # Each process has filled in its own rows.
    return subject.world.sum(facts).cpu().numpy()


def row_facts(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each row: 1, the predicted class, the rank of the label, the probability of the
    prediction, the sum of squared probabilities, and the loss: [b, C], [b] -> [b, 6] float64

    `topk` breaks ties: a label that it leaves out is not among the first five.
    """
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hit, own = best == labels[:, None], labels[:, None]
    larger = (logits > logits.gather(1, own)).sum(1).clamp(min=best.shape[1])
    rank = 1 + torch.where(hit.any(1), hit.int().argmax(1), larger)
    logs = logits.log_softmax(1)
    shares = logs.exp()
    sure, loss = shares.gather(1, best[:, :1])[:, 0], -logs.gather(1, own)[:, 0]
    columns = (torch.ones_like(rank), best[:, 0], rank, sure, shares.square().sum(1), loss)
    return torch.stack([column.double() for column in columns], dim=1)


@torch.no_grad()
def confusion_of(subject: Subject, rows: np.ndarray, memory: FeatureMemory | None = None) -> Tensor:
    """What a plain model takes for what on `rows`: probabilities summed, [C predicted, C true]"""
    classes = len(subject.plan.classes)
    total = torch.zeros(classes, classes, dtype=torch.float64, device=subject.world.device)
    for batch in labelled_batches(subject, rows, memory):
        shares = batch.logits(subject.start.predictor).double().softmax(1)
        total += soft_confusion(shares, batch.labels)
    return subject.world.sum(total).cpu()


# Rows to scores.


def _unseen_scores(
    subject: Subject,
    domain: str,
    candidates: Sequence[Candidate],
    memory: FeatureMemory | None = None,
) -> Iterator[RowScore]:
    """Every candidate on the scored rows of an unseen domain, in one pass."""
    rows = split_domain(subject.plan, domain)[1]
    able = [(one.predictor, one.shift) for one in candidates if one.predictor is not None]
    facts = iter(predict_rows(subject, able, rows, memory))
    for one in candidates:
        own = np.zeros((len(rows), 6)) if one.predictor is None else next(facts)
        yield _score(subject, domain, "all", one, rows, own)


def _seen_scores(
    subject: Subject,
    splits: Mapping[str, str],
    memory: FeatureMemory | None = None,
) -> Iterator[RowScore]:
    """Training domains on one of their splits each, all in one pass with their stored μ."""
    plan, start = subject.plan, subject.start
    sizes = [len(plan.manifest.rows(domain=d, split=split)) for d, split in splits.items()]
    rows, group = _rows(plan, splits), np.repeat(np.arange(len(sizes)), sizes)
    states = [start.table.states[domain] for domain in splits] if start.table else []
    mu = None
    if states:
        mu = torch.stack([state.mean for state in states]).float().to(subject.world.device)
    (facts,) = predict_rows(subject, [(start.predictor, None)], rows, memory, mu=mu, group=group)
    for number, (domain, split) in enumerate(splits.items()):
        one, own = Candidate("none", start.predictor), group == number
        if states:
            one = Candidate("embedding", start.predictor, "training", states[number].count)
        yield _score(subject, domain, split, one, rows[own], facts[own])


def _score(
    subject: Subject,
    domain: str,
    split: str,
    candidate: Candidate,
    rows: np.ndarray,
    facts: np.ndarray,
) -> RowScore:
    """A final score; whoever knows of another moment or step says so."""
    plan, seen = subject.plan, facts[:, 0] > 0
    predicted, rank, sure, squares, loss = facts[seen, 1:].T
    names = {"domain": domain, "split": split, "method": candidate.method}
    predictions = Predictions(
        plan.classes,
        row=rows[seen],
        **{key: np.full(len(rank), name, dtype=object) for key, name in names.items()},
        label=subject.source.labels[rows[seen]].astype(np.int32),
        predicted=predicted.astype(np.int32),
        rank=rank.astype(np.int32),
        p_predicted=sure.astype(np.float32),
        p_label=np.exp(-loss).astype(np.float32),
        p_squares=squares.astype(np.float32),
        loss=loss.astype(np.float32),
    )
    values, on = metric_values(predictions), candidate.adapted_on
    score = Score(
        moment="final",
        step=0,
        role=plan.role(domain),
        **names,
        n=len(predictions),
        top1=values["top-1"],
        top5=values["top-5"],
        loss=values["nll"],
        adapted_on=on,
        adapt_n=candidate.adapt_n,
        adapt_seed=plan.config.seed if on not in (None, "training") else None,
        metrics=values,
    )
    return score, predictions
