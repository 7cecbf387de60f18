"""Scores per domain. An unseen domain is adapted to first, from unlabelled images of its own.

A score comes about in four steps: which rows of a domain adapt and which are scored
(`split_domain`); the classifiers to compare (`_candidates`); one pass of the images, which turns
logits into facts about each row (`predict_rows`); metrics over those rows (`_score`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from acclimate.adapt.choice import adapt_by, chain_for
from acclimate.adapt.methods import Chain, find_chain, nothing_to_embed
from acclimate.adapt.methods.chain import adapt_model, embed
from acclimate.adapt.methods.lame import LAME, SmoothedHead
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.source import Source, in_parts, numbered, readable, sent
from acclimate.learn.embeddings import DomainState, embed_rows
from acclimate.learn.embeddings.state import sample_rows
from acclimate.learn.images import Images
from acclimate.learn.model import Model, Trained
from acclimate.learn.models import Backbone, Predictor
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
    model: Model  # as it was trained
    trained: Trained | None = None  # all that is known of it, once it is finished
    # Of unseen domains, from the images that adapt to them. Φ is fixed, so μ is computed once.
    states: dict[str, DomainState] = field(default_factory=dict)

    @classmethod
    def of(cls, trained: Trained, plan: Plan, source: Source, world: World) -> "Subject":
        return cls(plan, source, world, trained.start(embedding=False), trained)


@dataclass(frozen=True)
class Candidate:
    """A classifier to score, and what it was adapted on."""

    method: str
    predictor: Predictor | None  # plain, or folded; None: too few images, so nothing is scored
    adapted_on: str | None = None
    adapt_n: int | None = None
    chain: str = "none"  # that `auto` has used
    by_batch: bool = False  # its predictions depend on the batch, which is drawn at random


def validate(subject: Subject, step: int) -> Validated:
    """Scores that choose the weights, and their means: validation domains where there are any,
    validation splits of the training domains otherwise. Test domains are not looked at."""
    plan = subject.plan
    rows = _seen_scores(subject, dict.fromkeys(plan.train_domains, "val"))
    if plan.val_domains:
        each = ((name, [_as_trained(subject, name)]) for name in plan.val_domains)
        rows = (score for name, own in each for score in _unseen_scores(subject, name, own))
    scores = [replace(score, moment="validation", step=step) for score, _ in rows]
    value = _mean(s.value(plan.config.train.metric) for s in scores)
    return Validated(scores, value, _mean(s.loss for s in scores))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def final_scores(subject: Subject, methods: Sequence[str] = ()) -> Iterator[RowScore]:
    """Score every domain, with the controls: a wrong embedding, and the true label prior.

    Unseen domains are scored by the run's own further methods and by `methods` as well.
    """
    plan = subject.plan
    usual = "none" if subject.model.embedding is None else "embedding"
    rehearsed = subject.trained is not None and subject.trained.rehearsal is not None
    asked = [*(["auto"] if rehearsed else []), *plan.config.adapt.methods, *methods]
    further = [name for name in dict.fromkeys(asked) if name != usual]
    unseen = (*plan.val_domains, *plan.test_domains)
    seen = _seen_splits(plan)
    passes = [_rows(plan, splits) for splits in seen]
    passes += [split_domain(plan, domain)[1] for domain in unseen]
    memory = remember_shared(subject, passes)
    for splits in seen:
        yield from _seen_scores(subject, splits, memory)
    for domain in unseen:
        candidates = list(_candidates(subject, domain, further))
        yield from _unseen_scores(subject, domain, candidates, memory)


# Which rows adapt, and which are scored.


def split_domain(plan: Plan, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of an unseen domain that adapt to it, and those that are scored."""
    manifest, adapt = plan.manifest, plan.config.adapt
    split, every = _scored_split(plan, domain), plan.scorable(domain)
    rows = every if split == "all" else plan.scorable(domain, split)
    held_out = adapt.source == "held-out"
    others = every[~manifest.same_image(every, rows)]
    apart = held_out and len(others) > 0
    images = manifest.one_row_each(others if apart else rows)  # one of several labels has more rows
    # Small domains give at most half of the images that could be scored away.
    points = min(adapt.points, len(images) // 2 if held_out and not apart else len(images))
    chosen = sample_rows(images, points, plan.config.seed, domain)
    # Plain models leave the same images out, so that both are scored on the same ones.
    return chosen, rows[~manifest.same_image(rows, chosen)] if held_out else rows


def _scored_split(plan: Plan, domain: str) -> str:
    """The split of an unseen domain that is scored: "all" unless another is asked for and there."""
    split = plan.config.adapt.score
    there = split != "all" and len(plan.manifest.rows(domain=domain, split=split)) > 0
    return split if there else "all"


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
    parts = [plan.scorable(domain, split) for domain, split in splits.items()]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


# Adapting.


def _candidates(subject: Subject, domain: str, methods: Sequence[str]) -> Iterator[Candidate]:
    """What an unseen domain is scored by: the model as it was trained, a control, and `methods`."""
    images = None
    if methods:
        stored, good = subject.source.take(split_domain(subject.plan, domain)[0])
        images = Images(stored[torch.from_numpy(good)], subject.world.device)
    yield _as_trained(subject, domain, images)
    if subject.model.embedding is not None:
        yield _with_wrong_embedding(subject, domain)
    else:
        yield _with_true_prior(subject, domain)
    for method in methods:
        assert images is not None
        if method == LAME:
            yield _smoothed(_as_trained(subject, domain, images))
            continue
        own = _by_method(subject, domain, method, images)
        yield own
        if method == "auto":
            yield from _auto_controls(subject, domain, own)


def _smoothed(one: Candidate) -> Candidate:
    """A control: `one` with predictions that the batch changes."""
    if one.predictor is not None:
        head = SmoothedHead(one.predictor.head).eval()
        one = replace(one, predictor=Predictor(one.predictor.backbone, head))
    return replace(one, method=LAME, by_batch=True)


def _auto_controls(subject: Subject, domain: str, auto: Candidate) -> Iterator[Candidate]:
    """The chain that `auto` has used without an image of the domain, at the training domains'
    centre, and with images of a random other domain."""
    trained, config = subject.trained, subject.plan.config.adapt
    assert trained is not None
    neutral = replace(auto, method="auto-neutral", adapted_on=None, adapt_n=None)
    other = replace(auto, method="auto-other")
    if auto.chain != "none":
        stored, good = subject.source.take(_images_of_another(subject, domain))
        images = Images(stored[torch.from_numpy(good)], subject.world.device)
        chain = chain_for(trained.rehearsal, auto.chain, len(images), config)
        model = trained.start(embedding=chain.embedding)
        neutral = replace(neutral, predictor=model.at(None))
        other = replace(other, predictor=adapt_model(model, images, chain)[0], adapt_n=len(images))
    yield from (neutral, other)


def _images_of_another(subject: Subject, domain: str) -> np.ndarray:
    """Rows to adapt on of a random other unseen domain, or of a training domain where there is no
    other."""
    plan = subject.plan
    others = [name for name in (*plan.val_domains, *plan.test_domains) if name != domain]
    names = others or list(plan.train_domains)
    name = names[int(stream(plan.config.seed, "wrong", domain).integers(len(names)))]
    if others:
        return split_domain(plan, name)[0]
    rows = plan.manifest.one_row_each(plan.manifest.rows(domain=name))
    return sample_rows(rows, plan.config.adapt.points, plan.config.seed, name)


def state_of(subject: Subject, domain: str, images: Images | None = None) -> DomainState | None:
    """μ of an unseen domain, None for a plain model; `images` are its own, where they were read."""
    model = subject.model
    if model.embedding is None:
        return None
    if domain not in subject.states and images is not None:
        subject.states[domain] = embed(model, images, find_chain("embedding"))
    elif domain not in subject.states:
        rows = split_domain(subject.plan, domain)[0]
        subject.states[domain] = embed_rows(
            model.embedding, subject.source, rows, subject.world, below=model.below_phi
        )
    return subject.states[domain]


def _as_trained(subject: Subject, domain: str, images: Images | None = None) -> Candidate:
    """The model with the domain's embedding, or as it is where it has none."""
    state = state_of(subject, domain, images)
    if state is None:
        return Candidate("none", subject.model.predictor)
    return _with_state(subject, "embedding", state, subject.plan.config.adapt.source)


def _with_state(subject: Subject, method: str, state: DomainState, on: str) -> Candidate:
    # Without a state's count, not one of the images could be read.
    return Candidate(method, subject.model.at(state) if state.count else None, on, state.count)


def _with_wrong_embedding(subject: Subject, domain: str) -> Candidate:
    """A control: with the embedding of a random other unseen domain, or of a training domain where
    there is no other."""
    plan, table = subject.plan, subject.model.table
    assert table is not None
    others = [name for name in (*plan.val_domains, *plan.test_domains) if name != domain]
    names = others or table.names
    name = names[int(stream(plan.config.seed, "wrong", domain).integers(len(names)))]
    state = state_of(subject, name) if others else table.states[name]
    assert state is not None
    on = plan.config.adapt.source if others else "training"
    return _with_state(subject, "wrong-embedding", state, on)


def _with_true_prior(subject: Subject, domain: str) -> Candidate:
    """A ceiling: the plain model with the true label frequencies of the scored images."""
    labels = subject.source.labels[split_domain(subject.plan, domain)[1]]
    true = np.bincount(labels, minlength=len(subject.plan.classes)) / max(len(labels), 1)
    with np.errstate(divide="ignore"):
        shift = np.log(true) - np.log(np.maximum(subject.model.label_prior, 1e-12))
    predictor, last = subject.model.predictor, subject.model.predictor.last
    bias = last.bias + torch.from_numpy(shift).to(last.bias)
    return Candidate("oracle-prior", predictor.with_last(last.weight, bias))


def _by_method(subject: Subject, domain: str, method: str, images: Images) -> Candidate:
    """Adapted to by `method` from the images set aside for that.

    Every process adapts on all of them: they are few, and most methods cannot share them out.
    """
    config, trained = subject.plan.config.adapt, subject.trained

    def adapt(chain: Chain) -> tuple[Predictor, DomainState]:
        return _adapt(subject, domain, chain, images)

    if method == "auto":  # what rehearsal chose, unless the images speak against it
        if trained is None or trained.rehearsal is None:
            raise ConfigError(
                "nothing was rehearsed, so there is no 'auto' to score; train with "
                "--set adapt.rehearse=true, or name a method"
            )
        predictor, choice = adapt_by(method, trained, images, config, adapt)
        used = choice.method
    else:
        rehearsal = None if trained is None else trained.rehearsal
        chain = chain_for(rehearsal, method, len(images), config)
        method = used = chain.name
        if method in config.methods and len(images) < chain.least_images:
            return Candidate(method, None, config.source, len(images))
        predictor, _ = adapt(chain)
    if used == "none":
        return Candidate(method, predictor)
    return Candidate(method, predictor, config.source, len(images), used)


def _adapt(
    subject: Subject, domain: str, chain: Chain, images: Images
) -> tuple[Predictor, DomainState]:
    """What a chain makes of the images: the classifier, and the state with their μ."""
    if chain.name != "none" and not len(images):
        held_out = split_domain(subject.plan, domain)[0]
        raise ManifestError(
            f"none of the {len(held_out)} images set aside to adapt to domain '{domain}' can "
            f"be read; add images, or choose others with another seed"
        )
    model = subject.model
    if chain.embedding and model.embedding is None:
        if subject.trained is None or subject.trained.site is None:
            raise nothing_to_embed(subject.plan.config.algorithm)
        model = subject.trained.start(embedding=True)
    state = state_of(subject, domain) if chain.embedding else None
    return adapt_model(model, images, chain, state)


# One pass: logits to rows.


@dataclass
class FeatureMemory:
    """What a backbone makes of images, for when they are to pass it again."""

    backbone: Backbone
    images: np.ndarray  # their numbers in the source, ascending
    features: Tensor  # [images, f]
    have: np.ndarray  # [images], bool

    def keep(self, images: np.ndarray, batch: Images) -> None:
        places = np.searchsorted(self.images, images)
        to = sent(torch.from_numpy(places), self.features.device)
        self.features[to] = batch.features(self.backbone).stored
        self.have[places] = True

    def has(self, images: np.ndarray) -> np.ndarray:
        there: np.ndarray = self.have[np.searchsorted(self.images, images)]
        return there

    def recall(self, images: np.ndarray) -> Images:
        """Images that it has, as if they passed."""
        places = torch.from_numpy(np.searchsorted(self.images, images))
        features = self.features[sent(places, self.features.device)]
        batch = Images(features, features.device)
        batch.keep(self.backbone, features)
        return batch


def remember_shared(subject: Subject, passes: Sequence[np.ndarray]) -> FeatureMemory | None:
    """A memory of images, where several of the `passes` (rows each) show the same ones and it fits:
    an image of a long-tailed set then passes the network once."""
    backbone, image = subject.model.predictor.backbone, subject.source.image
    parts = [np.unique(image[rows]) for rows in passes]
    images = np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
    shared = sum(map(len, parts)) > len(images)
    if not shared or len(images) * backbone.features * 4 > MOST_REMEMBERED:
        return None
    try:
        features = torch.empty(len(images), backbone.features, device=backbone.mean.device)
    except torch.OutOfMemoryError:
        return None
    return FeatureMemory(backbone, images, features, np.zeros(len(images), dtype=bool))


def _passes(
    subject: Subject, rows: np.ndarray, memory: FeatureMemory | None
) -> Iterator[tuple[np.ndarray, Images]]:
    """This process's share of `rows`, each of which shows another image: places, and a batch."""
    images = subject.source.image[rows]
    mine = np.arange(len(rows))[subject.world.share(len(rows))]
    if memory is not None:
        there = memory.has(images[mine])
        for some in in_parts(mine[there]):
            if len(some):
                yield some, memory.recall(images[some])
        mine = mine[~there]
    for places, stored in readable(subject.source, rows[mine]):
        some, batch = mine[places], Images(stored, subject.world.device)
        if memory is not None:
            memory.keep(images[some], batch)
        yield some, batch


@torch.no_grad()
def predict_rows(
    subject: Subject,
    predictors: Sequence[Predictor],
    rows: np.ndarray,
    memory: FeatureMemory | None = None,
    *,
    mu: Tensor | None = None,
    group: np.ndarray | None = None,
) -> np.ndarray:
    """Facts about each of `rows` by each predictor: [predictors, rows, 6], of which the columns are
    those of `row_facts`. An image is read once, and passes a backbone once, however many of the
    rows show it and however many heads there are; where it is in `memory`, neither.

    `mu` [groups, d] goes with the `group` [rows] of each row. A row that cannot be read has zeros.
    """
    source, device = subject.source, subject.world.device
    facts = torch.zeros(len(predictors), len(rows), 6, dtype=torch.float64, device=device)
    if memory is not None and any(p.backbone is not memory.backbone for p in predictors):
        memory = None
    first, image = numbered(source.image[rows])
    by_image = np.argsort(image, kind="stable")
    start = np.searchsorted(image[by_image], np.arange(len(first) + 1))
    for images, batch in _passes(subject, rows[first], memory) if predictors else ():
        order = np.concatenate([by_image[start[one] : start[one + 1]] for one in images])
        which = np.repeat(np.arange(len(images)), start[images + 1] - start[images])
        for part in in_parts(np.arange(len(order))):
            places, own = order[part], None
            labels = sent(torch.from_numpy(source.labels[rows[places]]), device)
            seen = sent(torch.from_numpy(which[part]), device)
            if mu is not None and group is not None:
                own = mu[sent(torch.from_numpy(group[places]), device)]
            for number, predictor in enumerate(predictors):
                features = batch.features(predictor.backbone).stored[seen]
                logits = predictor.head(features, own).logits.float()
                facts[number, sent(torch.from_numpy(places), device)] = row_facts(logits, labels)
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


# Rows to scores.


def _unseen_scores(
    subject: Subject,
    domain: str,
    candidates: Sequence[Candidate],
    memory: FeatureMemory | None = None,
) -> Iterator[RowScore]:
    """Every candidate on the scored rows of an unseen domain, in one pass."""
    rows = split_domain(subject.plan, domain)[1]
    able = [one.predictor for one in candidates if one.predictor and not one.by_batch]
    facts = iter(predict_rows(subject, able, rows, memory))
    for one in candidates:
        own = np.zeros((len(rows), 6))
        if one.predictor is not None and one.by_batch:
            order = stream(subject.plan.config.seed, one.method, domain).permutation(len(rows))
            own[order] = predict_rows(subject, [one.predictor], rows[order], memory)[0]
        elif one.predictor is not None:
            own = next(facts)
        yield _score(subject, domain, _scored_split(subject.plan, domain), one, rows, own)


def _seen_scores(
    subject: Subject,
    splits: Mapping[str, str],
    memory: FeatureMemory | None = None,
) -> Iterator[RowScore]:
    """Training domains on one of their splits each, all in one pass with their stored μ."""
    plan, model = subject.plan, subject.model
    sizes = [len(plan.scorable(domain, split)) for domain, split in splits.items()]
    rows, group = _rows(plan, splits), np.repeat(np.arange(len(sizes)), sizes)
    states = [model.table.states[domain] for domain in splits] if model.table else []
    mu = None
    if states:
        mu = torch.stack([state.mean for state in states]).float().to(subject.world.device)
    (facts,) = predict_rows(subject, [model.predictor], rows, memory, mu=mu, group=group)
    for number, (domain, split) in enumerate(splits.items()):
        one, own = Candidate("none", model.predictor), group == number
        if states:
            one = Candidate("embedding", model.predictor, "training", states[number].count)
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
    own = plan.manifest.rows(domain=domain, split=None if split == "all" else split)
    shared, unshared = int(plan.trained_on[own].sum()), None
    if shared and plan.config.data.keep_shared:
        unshared = metric_values(predictions.where(~plan.trained_on[predictions.row]))["top-1"]
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
        shared=shared,
        top1_unshared=unshared,
        metrics=values,
    )
    return score, predictions
