"""Scores per domain. An unseen domain is adapted to first, from unlabelled images of its own."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.adapt.choice import Guard, MethodChoice, rehearsed_choice
from acclimate.adapt.methods import Chain, Context, base_predictor, find_chain, nothing_to_embed
from acclimate.adapt.methods.prior import black_box_prior, log_ratio, posteriors, soft_confusion
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.data.source import Images, Shown, in_parts, numbered, readable, sent, to_float
from acclimate.learn.embeddings import DomainState, DomainTable, Embedding, embed_rows
from acclimate.learn.embeddings.state import sample_rows
from acclimate.learn.model import StartingPoint
from acclimate.learn.models import Backbone, Plain, Predictor, over_features
from acclimate.learn.models.predictors import Passed
from acclimate.records.records import Score, Validated
from acclimate.runs.plan import Plan


@dataclass(frozen=True)
class Counts:
    n: int
    top1: int
    top5: int
    loss: float = 0.0  # sum of cross-entropies

    @classmethod
    def of(cls, totals: Tensor) -> "list[Counts]":
        """[n, 4] as `_found` has them"""
        rows = totals.cpu().tolist()
        return [cls(int(n), int(top1), int(top5), loss) for n, top1, top5, loss in rows]


@dataclass(frozen=True)
class Candidate:
    """A plain (or folded) classifier, and what is added to its logits: [C]"""

    predictor: Predictor
    log_prior: Tensor | None = None


class Remembered:
    """What a backbone makes of images that are to pass it again."""

    def __init__(self, backbone: Backbone, wanted: np.ndarray) -> None:
        """`wanted` [images of a source], bool"""
        self.backbone = backbone
        self.have = np.zeros(len(wanted), dtype=bool)
        self._place = np.where(wanted, np.cumsum(wanted) - 1, -1)
        self._count = int(wanted.sum())
        self._features: Tensor | None = None

    def keep(self, images: np.ndarray, passed: Passed) -> None:
        places = self._place[images]
        chosen = np.flatnonzero(places >= 0)
        if not len(chosen):
            return
        features = passed.features(self.backbone)
        if self._features is None:
            try:
                self._features = features.new_empty((self._count, *features.shape[1:]))
            except torch.OutOfMemoryError:  # then they pass again
                self._place[:] = -1
                return
        of, to = torch.from_numpy(chosen), torch.from_numpy(places[chosen])
        device = features.device
        self._features[sent(to, device)] = features[sent(of, device)]
        self.have[images[chosen]] = True

    def passed(self, images: np.ndarray) -> Passed:
        """Images that it has, as if they passed."""
        assert self._features is not None
        places = sent(torch.from_numpy(self._place[images]), self._features.device)
        return Passed.before(self.backbone, self._features[places])


@torch.no_grad()
def count_each(
    candidates: Sequence[Candidate],
    source: Shown,
    rows: np.ndarray,
    world: World,
    known: Remembered | None = None,
) -> list[Counts]:
    """How many readable `rows` each candidate gets right."""
    if not candidates:
        return []
    totals = torch.zeros(len(candidates), 4, dtype=torch.float64, device=world.device)
    places: dict[Predictor, list[int]] = {}  # several share the logits of one predictor
    for place, candidate in enumerate(candidates):
        places.setdefault(candidate.predictor, []).append(place)
    if known is not None and any(one.backbone is not known.backbone for one in places):
        known = None
    for seen in labelled_batches(source, rows, world, known):
        for predictor, own in places.items():
            logits = seen.logits(predictor)
            for place in own:
                prior = candidates[place].log_prior
                shifted = logits if prior is None else logits + prior
                totals[place] += _found(shifted, seen.labels).sum(0)
    return Counts.of(world.sum(totals))


@torch.no_grad()
def count_by_group(
    predictor: Predictor,
    source: Shown,
    rows: np.ndarray,
    group: np.ndarray,
    groups: int,
    world: World,
    *,
    mu: Tensor | None = None,
    told: Callable[[Tensor, Tensor, np.ndarray], None] | None = None,
    known: Remembered | None = None,
) -> list[Counts]:
    """The same of one predictor for many groups of rows in one pass; `mu` [groups, d] goes with
    each group. `told` gets the logits, labels and groups of each batch."""
    totals = torch.zeros(groups, 4, dtype=torch.float64, device=world.device)
    for seen in labelled_batches(source, rows, world, known):
        of = sent(torch.from_numpy(group[seen.places]), world.device)
        logits = seen.logits(predictor, None if mu is None else mu[of])
        totals.index_add_(0, of, _found(logits, seen.labels))
        if told is not None:
            told(logits, seen.labels, group[seen.places])
    return Counts.of(world.sum(totals))


def _found(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each row: 1, whether it is right, or among five, and its loss: [b, C], [b] -> [b, 4]"""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    losses = F.cross_entropy(logits, labels, reduction="none")
    found = (torch.ones_like(labels), best[:, 0], best.any(1), losses)
    return torch.stack([column.double() for column in found], dim=1)


@dataclass(frozen=True)
class Seen:
    """Some rows of a pass over images: what networks see, and labels and places of the rows."""

    passed: Passed
    which: Tensor | None  # [n]: the image that each row shows; None: as they come
    labels: Tensor
    places: np.ndarray

    def logits(self, predictor: Predictor, mu: Tensor | None = None) -> Tensor:
        return self.passed.logits(predictor, mu, self.which).float()


def labelled_batches(
    source: Shown, rows: np.ndarray, world: World, known: Remembered | None = None
) -> Iterator[Seen]:
    """This process's share of what can be read of `rows`. An image is read once, and passes a
    network once, however many of them show it; where it is `known`, neither."""
    first, image = numbered(source.image[rows])
    by_image = np.argsort(image, kind="stable")
    start = np.searchsorted(image[by_image], np.arange(len(first) + 1))
    mine = np.arange(len(first))[world.share(len(first))]
    for images, passed in _passed(source, rows[first], mine, world, known):
        shown = np.concatenate([by_image[start[one] : start[one + 1]] for one in images])
        which = np.repeat(np.arange(len(images)), start[images + 1] - start[images])
        several = len(shown) > len(images)
        for part in in_parts(np.arange(len(shown))):
            places = shown[part]
            labels = torch.from_numpy(source.labels[rows[places]])
            yield Seen(
                passed,
                sent(torch.from_numpy(which[part]), world.device) if several else None,
                sent(labels, world.device),
                places,
            )


def _passed(
    source: Shown, rows: np.ndarray, mine: np.ndarray, world: World, known: Remembered | None
) -> Iterator[tuple[np.ndarray, Passed]]:
    """Those at the places `mine` of `rows`, each of which shows another image, in batches."""
    images = source.image[rows]
    if known is not None:
        there = known.have[images[mine]]
        for some in in_parts(mine[there]):
            if len(some):
                yield some, known.passed(images[some])
        mine = mine[~there]
    for found, stored in readable(source, rows[mine]):
        some, passed = mine[found], Passed(to_float(stored, world.device))
        if known is not None:
            known.keep(images[some], passed)
        yield some, passed


CHECK = "black-box-prior"
MOST_REMEMBERED = 2**30  # bytes of features


@dataclass(frozen=True)
class Unseen:
    """An unseen domain: the images that adapt to it, the images that are scored, and its state."""

    adapted_on: np.ndarray
    scored: np.ndarray
    state: DomainState | None


@dataclass(frozen=True)
class Pending:
    """A score that lacks its counts; without a candidate there is nothing to count."""

    method: str
    adapted_on: str | None
    adapt_n: int | None
    candidate: Candidate | None


@dataclass
class Held:
    """The images that adapt to a domain, read once; as a source of its rows, which ascend."""

    rows: np.ndarray
    stored: Tensor
    good: np.ndarray
    labels: np.ndarray
    device: torch.device
    _features: dict[Backbone, Images] = field(default_factory=dict)

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
        """What a backbone makes of them, in the batches in which methods see images."""
        if backbone not in self._features:
            made = [Passed(x).features(backbone) for x in self.images.batches()]
            self._features[backbone] = Images(torch.cat(made), self.device)
        return self._features[backbone]


@dataclass
class Evaluator:
    """Scores a predictor on a plan's domains. Φ is fixed, so each unseen μ is worked out once."""

    plan: Plan
    source: Shown
    world: World
    predictor: Predictor
    label_prior: Sequence[float]  # class frequencies that the predictor was trained on
    embedding: Embedding | None = None
    table: DomainTable | None = None  # of the training domains, where there is an embedding
    second: StartingPoint | None = None  # the path by embedding of a plain model that has one
    guard: Guard | None = None  # what a rehearsed model knows: then "auto" is scored too
    ratios: Sequence[float] | None = None  # how label frequencies vary: see `fit_ratios`
    _unseen: dict[str, Unseen] = field(default_factory=dict)
    _confused: set[str] = field(default_factory=set)  # training domains that `_confusions` has
    _confusions: Tensor | None = None  # sum over them: [C, C]
    _known: Remembered | None = None  # while final scores are counted

    def validation(self, step: int) -> Validated:
        """Scores that choose the weights, and their means: validation domains where there are any,
        validation splits of the training domains otherwise. Test domains are not looked at."""
        if self.plan.val_domains:
            scores = [
                score
                for domain in self.plan.val_domains
                for score in self._counted("validation", step, domain, [self._as_meant(domain)])
            ]
        else:
            splits = dict.fromkeys(self.plan.train_domains, "val")
            scores = list(self._seen_scores("validation", step, splits))
        known = [score.top1 for score in scores if score.top1 is not None]
        losses = [score.loss for score in scores if score.loss is not None]
        return Validated(
            scores,
            float(np.mean(known)) if known else None,
            float(np.mean(losses)) if losses else None,
        )

    def final(self, step: int, methods: Sequence[str] = ()) -> Iterator[Score]:
        """Every domain, with the controls: a wrong embedding, and the true label prior.

        Unseen domains are scored by the run's own further methods and by `methods` as well.
        """
        usual = "none" if self.embedding is None else "embedding"
        rehearsed = [] if self.guard is None else ["auto"]
        asked = [*rehearsed, *self.plan.config.adapt.methods, *methods]
        further = [name for name in dict.fromkeys(asked) if name != usual]
        confused = self.embedding is None and "prior" in methods
        self._confused, self._confusions = set(), None  # the predictor may have gone on since
        self._known = self._to_remember()
        try:
            yield from self._final_seen(step, confused=confused)
            for domain in (*self.plan.val_domains, *self.plan.test_domains):
                pending = list(self._pending(domain, further, checked=confused))
                yield from self._counted("final", step, domain, pending)
        finally:
            self._known = None

    def _to_remember(self) -> Remembered | None:
        """Features of images that domains share, where there are any and they fit: an image of a
        long-tailed set is in several passes, and passes the network in the first of them alone."""
        backbone, rows = self.predictor.backbone, self.plan.manifest.rows
        if backbone.extractor is not None:  # features come from a cache, as a rule
            return None
        passes = [
            np.concatenate([rows(domain=domain, split=split) for domain, split in splits.items()])
            for splits in self._seen_splits()
        ]
        unseen = (*self.plan.val_domains, *self.plan.test_domains)
        passes += [self._shared_out(domain)[1] for domain in unseen]
        times = np.zeros(int(self.source.image.max(initial=-1)) + 1, dtype=np.int64)
        for some in passes:
            times[np.unique(self.source.image[some])] += 1
        shared = times > 1
        fits = int(shared.sum()) * backbone.features * 4 <= MOST_REMEMBERED
        return Remembered(backbone, shared) if shared.any() and fits else None

    def _pending(self, domain: str, methods: Sequence[str], *, checked: bool) -> Iterator[Pending]:
        """What an unseen domain is scored by: as the model is meant, a control, and `methods`; with
        `checked`, a check of `prior` as well."""
        held = self._held(domain) if methods else None
        yield self._as_meant(domain, held=held)
        if self.embedding is not None:
            yield self._as_meant(domain, wrong=True)
        else:
            yield self._oracle(domain)
        for method in methods:
            assert held is not None
            yield self._by_method(domain, method, held)
            if checked and method == "prior" and self._confusion.any():
                yield self._black_box(domain, held)

    def _counted(
        self, moment: str, step: int, domain: str, pending: Sequence[Pending]
    ) -> Iterator[Score]:
        """All of them in one pass over the scored images."""
        candidates = [one.candidate for one in pending if one.candidate is not None]
        rows = self.unseen(domain).scored
        counts = iter(count_each(candidates, self.source, rows, self.world, self._known))
        for one in pending:
            found = Counts(0, 0, 0) if one.candidate is None else next(counts)
            used = (one.method, one.adapted_on, one.adapt_n)
            yield self._score(moment, step, domain, "all", found, *used)

    def _final_seen(self, step: int, *, confused: bool = False) -> Iterator[Score]:
        for splits in self._seen_splits():
            yield from self._seen_scores("final", step, splits, confused=confused)

    def _seen_splits(self) -> list[dict[str, str]]:
        """Training domains and the split of each that is scored at the end, pass by pass."""
        names, rows = self.plan.train_domains, self.plan.manifest.rows
        passes = [{d: "test" if len(rows(domain=d, split="test")) else "val" for d in names}]
        if self.plan.val_domains:
            # Validation splits that neither chose the weights nor were scored: with them, one can
            # still choose among runs by the training domains alone.
            both = (d for d in names if len(rows(domain=d, split="test")))
            passes.append({d: "val" for d in both if len(rows(domain=d, split="val"))})
        return [splits for splits in passes if splits]

    def unseen(self, domain: str, held: Held | None = None) -> Unseen:
        """`held` has the images that adapt to it, where they have been read."""
        if domain not in self._unseen:
            chosen, scored = self._shared_out(domain)
            state = None
            if self.embedding is not None:
                source = held or self.source
                state = embed_rows(self.embedding, source, chosen, self.world)
            self._unseen[domain] = Unseen(chosen, scored, state)
        return self._unseen[domain]

    def _held(self, domain: str) -> Held:
        rows = self._shared_out(domain)[0]
        stored, good = self.source.take(rows)
        return Held(rows, stored, good, self.source.labels, self.world.device)

    def _shared_out(self, domain: str) -> tuple[np.ndarray, np.ndarray]:
        """The rows of an unseen domain that adapt to it, and those that are scored."""
        manifest, adapt = self.plan.manifest, self.plan.config.adapt
        rows = manifest.rows(domain=domain)
        images = manifest.one_row_each(rows)  # an image of several labels has several rows
        held_out = adapt.source == "held-out"
        # Small domains give at most half of their images away.
        points = min(adapt.points, len(images) // 2 if held_out else len(images))
        chosen = sample_rows(images, points, self.plan.config.seed, domain)
        # Plain models leave the same images out, so that both are scored on the same ones.
        return chosen, rows[~manifest.same_image(rows, chosen)] if held_out else rows

    def _seen_scores(
        self, moment: str, step: int, splits: Mapping[str, str], *, confused: bool = False
    ) -> Iterator[Score]:
        """Training domains on one of their splits each, all in one pass with their stored μ.

        With `confused`, what is taken for what in validation splits is written down on the way.
        """
        rows = [self.plan.manifest.rows(domain=d, split=split) for d, split in splits.items()]
        group = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        states = [self.table.states[domain] for domain in splits] if self.table else []
        mu = torch.stack([state.mean for state in states]).float() if states else None
        validated = np.array([split == "val" for split in splits.values()])
        if confused:
            self._confused |= {domain for domain, split in splits.items() if split == "val"}

        def confusion(logits: Tensor, labels: Tensor, groups: np.ndarray) -> None:
            rows = sent(torch.from_numpy(np.flatnonzero(validated[groups])), self.world.device)
            self._confuse(logits[rows], labels[rows])

        counts = count_by_group(
            self.predictor,
            self.source,
            np.concatenate(rows),
            group,
            len(rows),
            self.world,
            mu=None if mu is None else mu.to(self.world.device),
            told=confusion if confused and validated.any() else None,
            known=self._known,
        )
        for place, (domain, split) in enumerate(splits.items()):
            used = (
                ("embedding", "training", states[place].count) if states else ("none", None, None)
            )
            yield self._score(moment, step, domain, split, counts[place], *used)

    def _as_meant(self, domain: str, *, wrong: bool = False, held: Held | None = None) -> Pending:
        """With the domain's embedding, or as it is where there is none; or, to see what that is
        worth, with the `wrong` embedding."""
        state = self.unseen(domain, held).state
        on: str = self.plan.config.adapt.source
        if wrong:
            state, on = self._another(domain)
        if state is None:
            return Pending("none", None, None, Candidate(self._for(None)))
        method = "wrong-embedding" if wrong else "embedding"
        if state.count == 0:  # not one of the images could be read
            return Pending(method, on, 0, None)
        return Pending(method, on, state.count, Candidate(self._for(state)))

    def _by_method(self, domain: str, method: str, held: Held) -> Pending:
        """Adapted to by `method` from the images set aside for that.

        Every process adapts on all of them: they are few, and most methods cannot share them out.
        """
        if method == "auto":
            predictor, used = self._auto(domain, held)
            name = method
        else:
            chain = find_chain(method, self.plan.config.adapt)
            name, readable = chain.name, int(held.good.sum())
            if method in self.plan.config.adapt.methods and readable < chain.least_images:
                return Pending(name, self.plan.config.adapt.source, readable, None)
            predictor, used, _ = self._by(chain, domain, held)
        on = None if used is None else self.plan.config.adapt.source
        return Pending(name, on, used, Candidate(predictor))

    def _auto(self, domain: str, held: Held) -> tuple[Predictor, int | None]:
        """As `adapt` does it: what rehearsal chose, unless the images speak against it."""
        if self.guard is None:
            raise ConfigError(
                "nothing was rehearsed, so there is no 'auto' to score; train with "
                "--set adapt.rehearse=true, or name a method"
            )
        images = int(held.good.sum())
        choice: MethodChoice | None = rehearsed_choice(self.guard.rehearsal, images)
        config = self.plan.config.adapt
        while choice is not None:
            chain = find_chain(choice.method, config, choice.settings)
            predictor, used, state = self._by(chain, domain, held)
            # Without a readable image nothing was chosen, and nothing speaks against that.
            choice = self.guard.reconsidered(choice, state, held.images) if used else None
        return predictor, used

    def _by(
        self, chain: Chain, domain: str, held: Held
    ) -> tuple[Predictor, int | None, DomainState | None]:
        """What a chain makes of the images, how many it used, and the state with their μ."""
        start, state = self._start(chain), None
        if chain.embedding and start.embedding is not None:
            state = self.unseen(domain, held).state or embed_rows(
                start.embedding, held, held.rows, self.world
            )
        predictor = base_predictor(start.predictor, start.table, state)
        if not chain.methods:
            return predictor, state.count if state else None, state
        self._require_images(domain, held)
        context = chain.context(
            start.predictor,
            start.table,
            self.label_prior,
            prior_aware=start.prior_aware,
            ratios=self.ratios,
        )
        return _adapted(chain, predictor, held, context), len(held.images), state

    def _start(self, chain: Chain) -> StartingPoint:
        if chain.embedding and self.embedding is None:
            if self.second is None:
                raise nothing_to_embed(self.plan.config.algorithm)
            return self.second
        aware = self.plan.config.train.prior_aware
        return StartingPoint(self.predictor, self.embedding, self.table, prior_aware=aware)

    def _black_box(self, domain: str, held: Held) -> Pending:
        """A check of `prior`: the same correction, with class frequencies worked out from the
        confusion matrix of the training domains' validation images instead of by EM."""
        self._require_images(domain, held)
        predictor, seen = self._for(None), held.images
        if isinstance(predictor, Plain):
            predictor, seen = over_features(predictor), held.features(predictor.backbone)
        target = black_box_prior(self._confusion, posteriors(predictor, seen).mean(0))
        train = torch.tensor(self.label_prior, dtype=torch.float64)
        shift = log_ratio(target, train).float().to(self.world.device)
        on = self.plan.config.adapt.source
        return Pending(CHECK, on, len(held.images), Candidate(self._for(None), shift))

    @property
    def _confusion(self) -> Tensor:
        """Of a plain model on the training domains' validation images: [C, C], 0 without any."""
        for domain in self.plan.train_domains:
            if domain not in self._confused:
                rows = self.plan.manifest.rows(domain=domain, split="val")
                with torch.no_grad():
                    for seen in labelled_batches(self.source, rows, self.world, self._known):
                        self._confuse(seen.logits(self._for(None)), seen.labels)
                self._confused.add(domain)
        if self._confusions is None:
            classes = len(self.plan.classes)
            self._confusions = torch.zeros(classes, classes, dtype=torch.float64)
        return self.world.sum(self._confusions.to(self.world.device)).cpu()

    def _confuse(self, logits: Tensor, labels: Tensor) -> None:
        found = soft_confusion(logits.double().softmax(1), labels)
        self._confusions = found if self._confusions is None else self._confusions + found

    def _require_images(self, domain: str, held: Held) -> None:
        if not held.good.any():
            raise ManifestError(
                f"none of the {len(held.rows)} images set aside to adapt to domain '{domain}' can "
                f"be read; add images, or choose others with another seed"
            )

    def _oracle(self, domain: str) -> Pending:
        """The plain model told the true label frequencies of the scored images: a ceiling."""
        rows = self.unseen(domain).scored
        classes = len(self.plan.classes)
        true = np.bincount(self.source.labels[rows], minlength=classes) / max(len(rows), 1)
        with np.errstate(divide="ignore"):
            shift = np.log(true) - np.log(np.maximum(self.label_prior, 1e-12))
        prior = torch.tensor(shift, dtype=torch.float32, device=self.world.device)
        return Pending("oracle-prior", None, None, Candidate(self._for(None), prior))

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
        loss = counts.loss / counts.n if counts.n else math.nan
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
            loss=loss if math.isfinite(loss) else None,
        )


def _adapted(chain: Chain, start: Predictor, held: Held, context: Context) -> Predictor:
    """What a chain makes of `start`; where it only changes the head, the backbone's work is that
    of all such chains."""
    if not chain.head_only or not isinstance(start, Plain):
        return chain.adapt(start, held.images, context)[0]
    if isinstance(context.centre, Plain):  # it shares the backbone
        context = replace(context, centre=over_features(context.centre))
    features = held.features(start.backbone)
    adapted = chain.adapt(over_features(start), features, context)[0]
    assert isinstance(adapted, Plain)
    return Plain.of(start.backbone, adapted.head)
