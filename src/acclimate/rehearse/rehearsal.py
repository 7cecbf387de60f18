"""Rehearsal: training domains play "new site" in turn, on features of the finished backbone.

For each fold of domains, the heads are fitted on the others alone; each domain of the fold is then
adapted to from some of its images, unlabelled, and scored on the rest. Where the backbone was
frozen this is what training without those domains would have given. Where it was trained, it has
seen them, and the rehearsal says so; unless whole models were trained without them
(`rehearse.training`), which then take the stage with the features of their own backbones.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.adapt.choice import explained_by_em
from acclimate.adapt.methods import METHODS, Chain, find_chain
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.methods.prior import soft_confusion
from acclimate.config import SiteConfig
from acclimate.core.progress import Watch, unwatched
from acclimate.core.randomness import stream
from acclimate.data.source import Images, in_parts, numbered, readable, to_float
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import StartingPoint
from acclimate.learn.models import Output, Paired, Plain, Predictor, over_features
from acclimate.learn.models.predictors import on_hidden
from acclimate.learn.site import LEAST_DOMAINS, FeatureRows, Site, fit_plain, fit_site, folds_of
from acclimate.records.rehearsal import Frequencies, Rehearsal
from acclimate.rehearse.conclusion import Trial, Tried, conclude
from acclimate.runs.plan import Plan
from acclimate.runs.session import Session
from acclimate.runs.training import Rehearsed

STARTS = ("none", "embedding")  # of chains: the plain model, or F(·, μ) beside it
SIZES = (5, 20, 100, 300)  # unlabelled images that a new site might offer
MOST_CONFUSED = 1024  # classes up to which a confusion matrix is kept
LEAST_LEFT = 0.5  # of the rows to fit on, once the pictures of held-out domains are left out
ENOUGH_UNSEEN = 200  # pictures of a domain, for half of them to be adapted on
ENOUGH_DOMAINS = 10  # from here on, the domains themselves show how label frequencies vary
CONCENTRATION = 0.3  # of the Dirichlet distribution that frequencies are drawn anew from


@dataclass(frozen=True)
class Stage:
    """What is rehearsed on: features of the training domains, and which rows may do what."""

    rows: FeatureRows
    names: Sequence[str]
    images: np.ndarray  # [n]: rows with the same number show the same image
    fitted: np.ndarray  # [n] bool: rows that heads may be fitted on
    scored: np.ndarray  # [n] bool: rows that may play a new site
    layers: bool  # whether the plain model learned layers of its own on the features
    exact: bool
    logits: Tensor | None = None  # [n, C] of the plain model itself, whose heads are stood in for
    second: bool = True  # whether there is a path by embedding to rehearse
    prior_aware: bool = False
    dropout: float = 0.0
    pictures: np.ndarray | None = None  # as `images`, but painted otherwise it is still the same


class Beside(NamedTuple):
    """What a classifier says of new rows of domains that it knows, which it was not fitted on."""

    rows: np.ndarray
    logits: Tensor
    labels: Tensor

    def confusion(self, temperature: float) -> Tensor | None:
        """[C predicted, C true], None without rows, or for too many classes."""
        if not len(self.rows) or self.logits.shape[1] > MOST_CONFUSED:
            return None
        found = (self.logits.double().cpu() / temperature).softmax(1)
        return soft_confusion(found, self.labels.cpu())


def rehearse_run(
    now: Session, predictor: Predictor, retrained: "Retrained | None" = None
) -> Rehearsed:
    """The second path of a finished plain predictor, and what rehearsal says of both.

    `retrained` has whole models that were trained without some domains.
    """
    assert isinstance(predictor, Plain), "adaptive algorithms are not rehearsed"
    plan, config = now.plan, now.plan.config
    rows, logits, read = feature_rows(now, predictor)
    stage = replace(stage_of(plan, rows, read), logits=logits)
    every = range(len(plan.train_domains))
    new, site = _new_rows(stage, every), None
    if stage.second and len(every) > LEAST_DOMAINS:
        part = rows.among(every, stage.fitted)
        site = fit_site(part, plan.train_domains, config.adapt.site, seed=config.seed)
    if not stage.exact:
        # Its backbone has seen the domains that play, and so may its head: another would be one
        # that fits the features better or worse, and be taken for what adaptation does.
        scale = 1.0 if site is None else _scale(stage, site, new)
        retrained = _as_it_is(rows.x, over_features(predictor), scale)
    rehearsal = rehearse(
        stage, config.adapt.site, seed=config.seed, watch=now.watch, retrained=retrained
    )
    if rehearsal is None:
        return Rehearsed()
    if site is not None:
        rehearsed = "embedding" in rehearsal.chains
        site = replace(site, scale=rehearsal.plain_scale) if rehearsed else None
    own = Beside(new, logits[new], rows.y[new])
    confusion = own.confusion(rehearsal.temperatures["none"])
    return Rehearsed(site, rehearsal, confusion)


def _as_it_is(x: Tensor, plain: Plain, scale: float) -> "Retrained":
    """Who plays before every domain, with logits so many times as large."""
    scaled = Plain.of(plain.backbone, copy.deepcopy(plain.head))
    with torch.no_grad():
        for value in scaled.head.last.parameters():
            value.mul_(scale)
    return lambda split: (x, scaled.eval())


@torch.no_grad()
def _scale(stage: Stage, site: Site, new: np.ndarray) -> float:
    """How much larger the logits of the conditioned head are than those of the plain model, on new
    rows of the domains that both know: with it both count alike. Labels play no part."""
    assert stage.logits is not None
    conditioned = torch.zeros_like(stage.logits)
    for mu, rows in zip(site.table.means, stage.rows.domains, strict=True):
        own = rows[np.isin(rows, new)]
        head = site.predictor.fold(mu.to(conditioned.device)).eval()
        conditioned[own] = head(stage.rows.at(own)).logits
    plain = _spread(stage.logits[new]) if len(new) else 0.0
    return _within(_spread(conditioned[new]) / plain) if plain else 1.0


def stage_of(plan: Plan, rows: FeatureRows | None = None, read: np.ndarray | None = None) -> Stage:
    """What a run is rehearsed on; without features and what could be `read`, who may do what."""
    manifest, config = plan.manifest, plan.config
    images, learned_on = manifest.image_ids, manifest.splits == "train"
    if rows is None:
        domains = [manifest.rows(domain=name) for name in plan.train_domains]
        labels = torch.from_numpy(manifest.label_index)
        rows = FeatureRows(torch.empty(len(manifest), 0), labels, domains, len(plan.classes))
    if read is None:
        read = np.ones(len(manifest), dtype=bool)
    fitted = read & learned_on
    usable = read & (manifest.splits != "test")  # which are for the final scores alone
    # Features that were there before training tell of a new domain what they tell of these.
    exact = plan.on_features or config.adapt.depth == "whole"
    # A backbone that was trained knows the images it was trained on better than any new ones.
    seen = np.isin(images, images[learned_on])
    return Stage(
        rows=rows,
        names=plan.train_domains,
        images=images,
        fitted=fitted,
        scored=usable if exact else usable & ~seen,
        layers=plan.on_features,
        exact=exact,
        second=all(fitted[own].sum() >= 2 for own in rows.domains),
        prior_aware=config.train.prior_aware,
        dropout=config.model.dropout,
        pictures=manifest.picture_ids,
    )


@torch.no_grad()
def feature_rows(now: Session, predictor: Plain) -> tuple[FeatureRows, Tensor, np.ndarray]:
    """Features of all rows of the training domains, the predictor's logits [n, C], and which rows
    could be read: bool [n].

    Features are those of the trained backbone, unless the run learned on features anyway.
    """
    plan, device = now.plan, now.world.device
    domains = [plan.manifest.rows(domain=name) for name in plan.train_domains]
    rows = np.concatenate(domains)
    # Rows of features are each their own, whatever image they are said to be of.
    own = plan.manifest.has_features
    first, image = numbered(np.arange(len(rows)) if own else plan.manifest.image_ids[rows])
    images, x = rows[first], torch.zeros(len(first), 0, device=device)
    logits = torch.zeros(len(first), len(plan.classes), device=device)
    there = np.zeros(len(first), dtype=bool)
    watch = unwatched if plan.on_features else _named(now.watch, "features")
    for places, stored in readable(now.source, images, watch):
        found = to_float(stored, device)
        if found.ndim > 2:  # one pass: the head goes on from the backbone's features
            found = predictor.backbone(found)
            logits[places] = predictor.head(found).logits.float()
        else:
            logits[places] = predictor(found).logits.float()
        if not there.any():
            x = torch.zeros(len(first), found.shape[1], device=device)
        x[places] = found.float()
        there[places] = True
    count = len(plan.manifest)
    shown, read = torch.zeros(count, dtype=torch.int64, device=device), np.zeros(count, dtype=bool)
    shown[rows], read[rows] = torch.from_numpy(image).to(device), there[image]
    y = torch.from_numpy(plan.manifest.label_index).to(device)
    return FeatureRows(x, y, domains, len(plan.classes), shown), logits[shown], read


def _named(watch: Watch, phase: str) -> Watch:
    return lambda _, done, total, note: watch(phase, done, total, note)


class Split(NamedTuple):
    """Who plays, who is learned from, and which rows show nothing that plays."""

    fold: int  # its number, whoever of the fold can play
    held: list[int]
    kept: list[int]
    apart: np.ndarray  # [n] bool


Retrained = Callable[[Split], tuple[Tensor, Plain]]  # features of images, who classifies them


def rehearse(
    stage: Stage,
    config: SiteConfig,
    *,
    seed: int,
    watch: Watch = unwatched,
    retrained: Retrained | None = None,
) -> Rehearsal | None:
    """None where too few domains or images are there to play with."""
    stage, folds = splits(stage, seed)
    scenes: list[_Scene] = []
    for done, split in enumerate(folds):
        watch("rehearsal", done, len(folds), ", ".join(stage.names[d] for d in split.held)[:40])
        scenes += _play(stage, split, config, seed, retrained)
    watch("rehearsal", len(folds), len(folds), "")
    if not scenes:
        return None
    heat = {
        start: torch.stack([_losses(scene.whole[start], scene.y) for scene in scenes])
        for start in STARTS
        if all(start in scene.whole for scene in scenes)
    }
    trials: list[Trial] = []
    explained: dict[int, list[float]] = {}
    for place, scene in enumerate(scenes):
        # Each with the temperature that the others have: its own labels must not help it.
        others = {
            start: _coolest(losses.sum(0) - losses[place] if len(scenes) > 1 else losses.sum(0))
            for start, losses in heat.items()
        }
        trials += scene.trials(others, seed, len(stage.names))
        for n, share in scene.explained(others["none"], seed):
            explained.setdefault(n, []).append(share)
    temperatures = {start: _coolest(losses.sum(0)) for start, losses in heat.items()}
    surer = _own_scale(stage, scenes)
    temperatures["none"] *= surer
    ahead = _ahead(stage, scenes)
    found = conclude(trials, temperatures, exact=stage.exact, explained=explained, ahead=ahead)
    settings = {
        chain: {**chosen, **_calibration(chain, temperatures)}
        for chain, chosen in found.settings.items()
    }
    return replace(found, settings=settings, plain_scale=1 / surer)


def _calibration(chain: str, temperatures: Mapping[str, float]) -> dict[str, float]:
    """The temperature of what `chain` starts from, as a setting of its methods that calibrate."""
    steps = find_chain(chain)
    start = "embedding" if steps.embedding else "none"
    own = (name for name, method in steps.methods.items() if method.calibrates)
    return {f"{name}.temperature": temperatures[start] for name in own}


def _own_scale(stage: Stage, scenes: "Sequence[_Scene]") -> float:
    """How much larger the logits of the plain model itself are than those of the heads that stood
    in for it, on new rows of domains that both know: labels play no part."""
    told = [scene.beside for scene in scenes if len(scene.beside.rows)]
    if stage.logits is None or not told:
        return 1.0
    own = fmean(_spread(stage.logits[beside.rows]) for beside in told)
    stood_in = fmean(_spread(beside.logits) for beside in told)
    return _within(own / max(stood_in, 1e-9))


def _ahead(stage: Stage, scenes: "Sequence[_Scene]") -> float:
    """How much more often the plain model itself is right than what stood in for it, on new rows of
    domains that both know: it has learned from more domains, and from all of their images."""
    told = {id(scene.beside): scene.beside for scene in scenes if len(scene.beside.rows)}
    if stage.logits is None or not stage.exact or not told:
        return 0.0
    return fmean(
        _right(stage.logits[beside.rows], beside.labels) - _right(beside.logits, beside.labels)
        for beside in told.values()
    )


def _right(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).double().mean())


def _within(scale: float) -> float:
    """A head that says nearly nothing must not be heard as if it knew."""
    return min(max(scale, 0.01), 100.0)


def _spread(logits: Tensor) -> float:
    """Standard deviation of the logits of a row, on average: [n, C]"""
    return float(logits.double().std(1, correction=0).mean())


def _apart(stage: Stage, folds: Sequence[Sequence[int]]) -> Stage:
    """The stage, arranged so that heads know no picture that plays.

    Heads are not fitted on what a held-out domain shows. Where domains share so many pictures that
    this would leave them little, the pictures that no head is fitted on play instead. Where those
    are too few as well, the same picture painted otherwise counts as another.
    """
    if len(folds) < 2:
        return stage
    by_picture = stage if stage.pictures is None else replace(stage, images=stage.pictures)
    if all(_left(by_picture, held) >= LEAST_LEFT for held in folds):
        return by_picture
    seen = np.isin(by_picture.images, by_picture.images[stage.fitted])
    unseen = replace(by_picture, scored=stage.scored & ~seen)
    playing = (np.unique(unseen.images[_playing(unseen, d)]) for d in range(len(stage.names)))
    able = sum(len(images) >= ENOUGH_UNSEEN for images in playing)
    return unseen if 2 * able >= len(stage.names) else stage


def _left(stage: Stage, held: Sequence[int]) -> float:
    """Share of the rows that heads could be fitted on without the domains `held`, once what these
    show is left out."""
    others = np.concatenate([r for d, r in enumerate(stage.rows.domains) if d not in held])
    theirs = np.concatenate([_playing(stage, d) for d in held])
    fitted = others[stage.fitted[others]]
    known = np.isin(stage.images[fitted], stage.images[theirs])
    return 1 - known.mean() if len(known) else 0.0


def _folds(domains: int, seed: int) -> Iterator[list[int]]:
    """Each domain in one fold."""
    folds = folds_of(domains)
    order = stream(seed, "rehearsal folds").permutation(domains)
    for number in range(folds):
        yield sorted(int(d) for d in order[number::folds])


def _playing(stage: Stage, domain: int) -> np.ndarray:
    rows = stage.rows.domains[domain]
    playing: np.ndarray = rows[stage.scored[rows]]
    return playing


def _new_rows(stage: Stage, domains: Iterable[int]) -> np.ndarray:
    """Those of these domains that may play, and that no head is fitted on."""
    playing = np.concatenate([_playing(stage, domain) for domain in domains])
    new: np.ndarray = playing[~stage.fitted[playing]]
    return new


def _sizes(rows: np.ndarray) -> list[int]:
    """Numbers of images to adapt on; as many at least are left to score."""
    return [n for n in SIZES if 2 * n <= len(rows)]


def splits(stage: Stage, seed: int) -> tuple[Stage, list[Split]]:
    """Each domain that can play is held out once; the stage is arranged for it."""
    folds = list(_folds(len(stage.names), seed))
    stage = _apart(stage, folds)
    found = (_split(stage, fold, held) for fold, held in enumerate(folds))
    return stage, [split for split in found if split is not None]


def _split(stage: Stage, fold: int, held: Sequence[int]) -> Split | None:
    """Without these domains, or any image of theirs; None where nobody is left to play or teach."""
    held = [d for d in held if _sizes(np.unique(stage.images[_playing(stage, d)]))]
    others = [d for d in range(len(stage.names)) if d not in held]
    if not held or not others:
        return None
    theirs = np.concatenate([_playing(stage, d) for d in held])
    apart = ~np.isin(stage.images, stage.images[theirs])
    kept = [d for d in others if (stage.fitted & apart)[stage.rows.domains[d]].sum() >= 2]
    return Split(fold, held, kept, apart) if kept else None


def _play(
    stage: Stage, split: Split, config: SiteConfig, seed: int, retrained: Retrained | None
) -> "list[_Scene]":
    """Fit the heads without the domains that are held out, and look at these."""
    if retrained is not None:
        x, plain = retrained(split)
        stage = replace(stage, rows=replace(stage.rows, x=x))
    part = stage.rows.among(split.kept, stage.fitted & split.apart)
    if retrained is None:
        plain = fit_plain(
            part,
            config,
            layers=stage.layers,
            prior_aware=stage.prior_aware,
            dropout=stage.dropout,
            seed=seed,
        )
    names, site = [stage.names[d] for d in split.kept], None
    if stage.second and len(split.kept) >= LEAST_DOMAINS:
        site = fit_site(part, names, config, seed=seed)
    new = _new_rows(stage, split.kept)
    with torch.no_grad():
        logits = torch.cat([plain(stage.rows.at(part)).logits for part in in_parts(new)])
    beside = Beside(new, logits, stage.rows.y[new])
    return [_Scene(stage, d, part, plain, site, beside) for d in split.held]


class _Scene:
    """One held-out domain before the heads that were fitted without it."""

    @torch.no_grad()
    def __init__(
        self,
        stage: Stage,
        domain: int,
        part: FeatureRows,
        plain: Plain,
        site: Site | None,
        beside: Beside,
    ) -> None:
        rows = _playing(stage, domain)
        self.name, self.images = stage.names[domain], stage.images[rows]
        self.x, self.y = stage.rows.at(rows), stage.rows.y[rows]
        self.prior, self.beside = part.prior.cpu(), beside
        self.many = len(part.domains) >= LEAST_DOMAINS
        self.known: dict[str, Any] = {
            "label_prior": self.prior.tolist(),
            "ratios": part.ratios if self.many else None,
        }
        self.starts = {"none": StartingPoint(plain, None, None, True, **self.known)}
        every = np.arange(len(rows))
        if site is not None:
            pair = Paired(plain, site.predictor, 1.0).eval()
            start = StartingPoint(pair, site.embedding, site.table, True, **self.known)
            self.starts["embedding"], self.phi = start, site.embedding.phi(self.x)
        self.whole = {start: self._started(start, every)[1].logits for start in self.starts}
        self.plain = self.whole["none"]

    def _started(self, start: str, seen: np.ndarray) -> tuple[Plain, Output]:
        """What a chain without methods makes of the images `seen`, and what it says of all rows."""
        state = None
        if start == "embedding":
            state = DomainState.empty("", self.phi.shape[1]).updated(self.phi[seen])
        images = Images(self.x[seen], self.x.device)
        predictor, _ = adapt_model(self.starts[start], images, find_chain(start), state)
        assert isinstance(predictor, Plain)
        return predictor, predictor(self.x)

    @torch.no_grad()
    def trials(self, temperatures: dict[str, float], seed: int, domains: int) -> Iterator[Trial]:
        """Every chain, with every number of images, as the domain is and with frequencies anew.

        With many domains, the domains themselves show how frequencies vary between sites.
        """
        kinds: list[Frequencies] = ["as they are"]
        if domains < ENOUGH_DOMAINS:
            kinds.append("drawn anew")
        for kind in kinds:
            for draw in range(1 if domains >= ENOUGH_DOMAINS else 3):
                rng = stream(seed, "rehearsal", self.name, kind, draw)
                seen, scored = self._split(rng, anew=kind == "drawn anew")
                for n in _sizes(np.unique(self.images)):
                    yield from self._adapted(seen[:n], scored, n, kind, temperatures)

    def _split(self, rng: np.random.Generator, *, anew: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images to adapt on, in random order and one row each, and the rows of all others."""
        images, first = np.unique(self.images, return_index=True)
        order = rng.permutation(len(images))
        seen = first[order[: len(order) // 2]]
        scored = np.flatnonzero(~np.isin(self.images, self.images[seen]))
        if not anew:
            return seen, scored
        labels, classes = self.y.cpu().numpy(), len(self.prior)
        wanted = rng.dirichlet(np.full(classes, CONCENTRATION))
        # Both halves must be able to have the frequencies.
        both = np.intersect1d(labels[seen], labels[scored])
        wanted = np.where(np.isin(np.arange(classes), both), wanted, 0.0)
        return (
            _resampled(seen, labels, wanted, rng),
            _resampled(scored, labels, wanted, rng),
        )

    def _adapted(
        self,
        seen: np.ndarray,
        scored: np.ndarray,
        n: int,
        kind: Frequencies,
        temperatures: dict[str, float],
    ) -> Iterator[Trial]:
        for start, temperature in temperatures.items():
            predictor, output = self._started(start, seen)
            yield self._trial(start, n, kind, output.logits, temperature, seen, scored)
            # The methods see the hidden layer, and change nothing below it.
            last = StartingPoint(on_hidden(predictor), None, None, True, **self.known)
            hidden = Images(output.hidden[seen], self.x.device)
            for chain, settings, left in self._candidates(temperature):
                logits = adapt_model(last, hidden, chain)[0](output.hidden).logits
                name = chain.name if start == "none" else f"{start}+{chain.name}"
                yield self._trial(name, n, kind, logits, left, seen, scored, settings)

    def _candidates(self, temperature: float) -> Iterator[tuple[Chain, Tried, float]]:
        """Each row of the table of methods with each of its settings that are tried, and what its
        logits are yet to be divided by."""
        kinds = {name: row.method for name, row in METHODS.items() if row.method is not None}
        for name, kind in kinds.items():
            for settings in kind.rehearsed(many_domains=self.many):
                more = {"temperature": temperature} if kind.calibrates else {}
                method = kind(kind.Config(**settings, **more))
                tried = tuple((f"{name}.{key}", value) for key, value in settings.items())
                yield Chain(False, {name: method}), tried, 1.0 if kind.calibrates else temperature

    def explained(self, temperature: float, seed: int) -> Iterator[tuple[int, float]]:
        """Of how predictions differ here from those at the other domains, the share that label
        shift explains, by the number of images that are seen."""
        confusion = self.beside.confusion(temperature)
        if confusion is None:
            return
        seen, _ = self._split(stream(seed, "rehearsal", self.name, "as they are", 0), anew=False)
        found = (self.plain.double().cpu() / temperature).softmax(1)
        for n in _sizes(np.unique(self.images)):
            share = explained_by_em(found[seen[:n]], self.prior, confusion)
            if share is not None:
                yield n, share

    def _trial(
        self,
        chain: str,
        n: int,
        kind: Frequencies,
        logits: Tensor,
        temperature: float,
        seen: np.ndarray,
        scored: np.ndarray,
        settings: Tried = (),
    ) -> Trial:
        """Of all rows' `logits`, which are as sure as they are right after `temperature`."""
        cool = logits.double().cpu() / temperature
        right = cool[scored].argmax(1) == self.y.cpu()[scored]
        return Trial(
            domain=self.name,
            chain=chain,
            n=n,
            frequencies=kind,
            accuracy=float(right.double().mean()),
            confidence=float(cool[seen].softmax(1).amax(1).mean()),
            settings=settings,
        )


def _resampled(
    rows: np.ndarray, labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """As many of `rows`, with repetition, with class frequencies `wanted` as far as there are
    images of each class."""
    own = np.bincount(labels[rows], minlength=len(wanted))
    weight = np.where(own > 0, wanted / np.maximum(own, 1), 0.0)[labels[rows]]
    if weight.sum() == 0:
        return rows
    return rng.choice(rows, len(rows), p=weight / weight.sum())


_GRID = torch.logspace(-1, 1, 41, dtype=torch.float64)  # temperatures


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy under each temperature of the grid: [n, C], [n] -> [41]"""
    rows, y = logits.double().cpu(), labels.cpu()
    return torch.stack([F.cross_entropy(rows / temperature, y) for temperature in _GRID])


def _coolest(losses: Tensor) -> float:
    """What logits must be divided by to be as sure as they are right."""
    return float(_GRID[losses.argmin()])
