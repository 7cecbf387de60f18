"""Rehearsal: leave-one-domain-out over the table of methods, on features of the finished backbone.

For each fold of domains, heads are fitted on the other domains alone. Each held-out domain is then
adapted to by every method from some of its images, unlabelled, and scored on the rest. Where the
backbone was frozen this is what training without those domains would have given. Where it was
trained, it has seen them, and the rehearsal says so; unless whole models were trained without them
(`rehearse.training`), which are then used with the features of their own backbones.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import chi2_contingency
from torch import Tensor

from acclimate.adapt.choice import explained_by_em
from acclimate.adapt.methods import METHODS, Chain, find_chain, open_to_labels
from acclimate.adapt.methods.chain import adapt_model
from acclimate.adapt.methods.prior import soft_confusion
from acclimate.adapt.suggest import spread
from acclimate.config import SiteConfig
from acclimate.core.distributed import cores, one_thread
from acclimate.core.files import json_digest, read_document, write_document
from acclimate.core.progress import Watch, unwatched
from acclimate.core.randomness import stream
from acclimate.core.tensors import tensors_digest
from acclimate.data.source import in_parts
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Head, Output, Predictor
from acclimate.learn.models.predictors import PairHead, identity_backbone, on_hidden
from acclimate.learn.site import LEAST_DOMAINS, Features, Site, fit_plain, fit_site, mean_hidden
from acclimate.records.doubt import count_answers, scores_of
from acclimate.records.rehearsal import NETWORK, PAIR, STARTS, Frequencies, Rehearsal
from acclimate.rehearse.backbone import Pixels
from acclimate.rehearse.conclusion import (
    Trial,
    Tried,
    conclude,
    conclude_labels,
    promises_beside,
    with_controls,
)
from acclimate.rehearse.folds import (
    LEAVE_ONE_OUT,
    SIZES,
    Fold,
    RehearsalData,
    extract_features,
    make_folds,
    rehearsal_data,
    sizes,
)
from acclimate.rehearse.plain import LIGHT, accuracies, choose_head, fit_regressions
from acclimate.runs.identity import run_identity
from acclimate.runs.session import Session
from acclimate.runs.training import Rehearsed

MOST_CONFUSED = 1024  # classes up to which a confusion matrix is kept
ENOUGH_DOMAINS = 10  # from here on, the domains themselves show how label frequencies vary
BY_CHANCE = 0.05  # what differs no more than once in so many times without a cause
CONCENTRATION = 0.3  # of the Dirichlet distribution that frequencies are drawn anew from
LABELLED = (5, 10, 20, 50)  # images of a new site that somebody might label
MOST_LABELLED = 20  # sites whose labels are tried
STRENGTHS = (10.0, 1.0, 0.3, 0.1, 0.03, 0.01)  # of `labels`; of equal ones the firmest
PIECES = 3  # of a fold, that are told of: network, second path, regressions
_GRID = torch.logspace(-1, 1, 41, dtype=torch.float64)  # temperatures

# From a fold to the features [m, f] of images and the plain head on them, trained without it.
Retrained = Callable[[Fold], tuple[Tensor, Head]]


class FoldModels(NamedTuple):
    """Models that were fitted without the domains of a fold."""

    features: Features  # that they are on
    models: Mapping[str, Model]  # by `STARTS`
    rows: np.ndarray  # of the domains they know: those that they were not fitted on,
    logits: Tensor  # the plain model's logits for them,
    base: Tensor  # and those of its head without the second path

    @property
    def labels(self) -> Tensor:
        return self.features.y[self.rows]

    def at_centre(self) -> "FoldModels":
        """Models of which the plain one is the second path at the training domains' centre."""
        plain = self.models["embedding"].at_centre()
        logits = _logits(plain.predictor, self.features, self.rows)
        return self._replace(models={**self.models, "none": plain}, logits=logits)


def confusion_of(logits: Tensor, labels: Tensor) -> Tensor | None:
    """[C predicted, C true] of a plain model that is calibrated, None without rows, or for too many
    classes."""
    if not len(labels) or logits.shape[1] > MOST_CONFUSED:
        return None
    return soft_confusion(logits.double().cpu().softmax(1), labels.cpu())


def rehearse_run(
    now: Session, predictor: Predictor, retrained: Retrained | None, folder: Path
) -> Rehearsed:
    """Rehearse a finished plain predictor: choose its head, and fit its second path.

    `retrained` has whole models that were trained without some domains. What is finished of it is
    kept in `folder`, by what the run and its weights are, so that a killed rehearsal goes on.
    """
    plan, config = now.plan, now.plan.config
    weights = tensors_digest(predictor.state_dict().items())
    store = folder / json_digest([run_identity(plan), weights])[:16]
    features, read = extract_features(now, predictor)
    data = rehearsal_data(plan, features, read)
    every, heads = range(len(plan.train_domains)), dict(data.given)
    part = features.among(every, data.fitted)

    def fit_second() -> Site | None:
        if not data.second or len(every) <= LEAST_DOMAINS:
            return None
        return fit_site(part, plan.train_domains, config.adapt.site, seed=config.seed, store=store)

    def fit_first() -> Head:
        if not (data.exact and data.layers and retrained is None and len(every) > 1):
            return predictor.head
        return _fit_network(data, part, config.adapt.site, config.seed, store)

    now.watch("heads", 0, 1, "all sites")
    with _workers(data) as pool:
        second, first = pool.submit(fit_second), pool.submit(fit_first)
        site, heads[NETWORK] = second.result(), first.result()

    def logits_of(name: str) -> Tensor:
        if name not in heads:
            heads.update(fit_regressions(part, [name]))
        return _logits(heads[name], features)

    if not data.exact:
        # The backbone has seen the held-out domains, and so may the head: another one would fit the
        # features better or worse, and that would be taken for what adaptation does.
        scale = 1.0 if site is None else _scale(data, site, logits_of(NETWORK))
        head = predictor.head.scaled(scale)
        retrained = lambda fold: (features.x, head)  # noqa: E731
    rehearsal = rehearse(
        data,
        config.adapt.site,
        seed=config.seed,
        watch=now.watch,
        retrained=retrained,
        store=store,
        final=logits_of,
        pixels=Pixels.of(now, predictor.backbone),
    )
    if rehearsal is None:
        return Rehearsed()
    new, own = data.new_rows(every), data.unfitted(every)
    head = heads[NETWORK if rehearsal.head == PAIR else rehearsal.head]
    if site is not None and "embedding" in rehearsal.chains:
        centre = mean_hidden(site.at_centre(), own)
        site = replace(site, scale=rehearsal.plain_scale, centre=centre)
    else:
        site = None
    logits = _logits(head, features, new)
    if rehearsal.head == PAIR and site is not None:
        logits = (site.scale * logits + _logits(site.at_centre(), features, new)) / 2
    confusion = confusion_of(logits / rehearsal.temperatures["none"], features.y[new])
    chosen = None if head is predictor.head else head
    return Rehearsed(site, rehearsal, confusion, mean_hidden(head, own), chosen)


def rehearse(
    data: RehearsalData,
    config: SiteConfig,
    *,
    seed: int,
    watch: Watch = unwatched,
    retrained: Retrained | None = None,
    store: Path | None = None,
    final: Callable[[str], Tensor] | None = None,
    pixels: Pixels | None = None,
) -> Rehearsal | None:
    """Hold out each domain in turn; None where there are too few domains or images for that.

    The folder `store` has the heads and the trials that are finished. `final` gives the logits
    [n, C] of the finished plain model with the head of a name. With `pixels`, methods that change
    the backbone are tried as well.
    """
    data, folds = make_folds(data, seed)
    if not folds:
        return None
    with one_thread():
        fitted = list(_fit_folds(data, folds, config, seed, watch, retrained, store))
        found, held_out = _conclusion(
            data, fitted, seed=seed, watch=watch, store=store, final=final
        )
        return _with_steps(
            found, data, held_out, seed=seed, watch=watch, store=store, pixels=pixels
        )


def _fit_folds(
    data: RehearsalData,
    folds: Sequence[Fold],
    config: SiteConfig,
    seed: int,
    watch: Watch,
    retrained: Retrained | None,
    store: Path | None,
) -> Iterator["FoldHeads"]:
    """What is fitted without the domains of each fold."""

    one_at_a_time, pieces = Lock(), count(1)

    def fit(fold: Fold) -> FoldHeads:
        names = ", ".join(data.names[domain] for domain in fold.held_out)

        def tell() -> None:
            with one_at_a_time:
                watch("rehearsal", next(pieces), PIECES * len(folds), names[:40])

        part = store and store / f"fold-{fold.number + 1}"
        return _fit_fold(data, fold, config, seed, retrained, part, tell)

    watch("rehearsal", 0, PIECES * len(folds), "")
    with _workers(data) as pool:
        yield from pool.map(fit, folds)


@contextmanager
def _workers(data: RehearsalData) -> Iterator[ThreadPoolExecutor]:
    """Threads for work of which each piece is too small to be split: on a CPU one for each core."""
    pool = ThreadPoolExecutor(cores() if data.features.x.device.type == "cpu" else 1)
    try:
        yield pool
    finally:  # whoever stops a rehearsal need not wait for pieces that have not begun
        pool.shutdown(cancel_futures=True)


def _conclusion(
    data: RehearsalData,
    fitted: Sequence["FoldHeads"],
    *,
    seed: int,
    watch: Watch,
    store: Path | None,
    final: Callable[[str], Tensor] | None,
) -> tuple[Rehearsal, list["HeldOutDomain"]]:
    """The plain head and the chains that did best on the domains that the heads of a fold had not
    seen; and these domains, calibrated."""
    head, heads = choose_head([trial for fold in fitted for trial in fold.trials])
    held_out = [
        HeldOutDomain(data, domain, fold.models[head])
        for fold in fitted
        for domain in fold.fold.held_out
    ]
    losses = {
        start: torch.stack([_losses(domain.logits[start], domain.y) for domain in held_out])
        for start in STARTS
        if all(start in domain.logits for domain in held_out)
    }
    temperatures = {start: _temperature(own.sum(0)) for start, own in losses.items()}
    stood_in = [domain.fold for domain in held_out if len(domain.fold.rows)]
    base = NETWORK if head == PAIR else head
    louder = 1.0 if final is None else _louder(final(base), stood_in)
    if head != PAIR:
        temperatures["none"] *= louder  # of a pair, only the network's part has another scale
    for place, domain in enumerate(held_out):
        # Temperatures come from the other domains: a domain's own labels must not help it.
        others = {
            start: _temperature(own.sum(0) - own[place] if len(held_out) > 1 else own.sum(0))
            for start, own in losses.items()
        }
        domain.calibrate(others)

    def trials_at(place: int) -> list[Trial]:
        file = store and store / f"trials-{place + 1}.json"
        return _once(file, partial(held_out[place].trials, seed, len(data.names)))

    trials = _tried(data, held_out, trials_at, "trials", watch)
    idle = () if _frequencies_differ(held_out) else _assuming_label_shift(trials)
    conclusion = conclude(trials, temperatures, exact=data.exact, idle=idle)
    another = [trial for fold in fitted for trial in fold.without_a_site]
    found = replace(
        conclusion,
        plain_scale=1 / louder,
        head=head,
        heads=heads,
        another_site=promises_beside(another)[-1] if another else None,
    )
    return found, held_out


def _with_steps(
    found: Rehearsal,
    data: RehearsalData,
    held_out: Sequence["HeldOutDomain"],
    *,
    seed: int,
    watch: Watch,
    store: Path | None,
    pixels: Pixels | None,
) -> Rehearsal:
    """With what is tried beside the chosen chains: their controls, labels, and other backbones."""

    def controls_at(place: int) -> list[Trial]:
        domain, file = held_out[place], store and store / f"controls-{place + 1}.json"
        other = data.held_out((domain.number + 1) % len(data.names))
        return _once(file, partial(domain.controls, found, other, seed))

    def labels_at(place: int) -> list[Trial]:
        file = store and store / f"labels-{place + 1}.json"
        return _once(file, partial(held_out[place].label_trials, found, seed))

    controls = _tried(data, held_out, controls_at, "controls", watch)
    labelled = _tried(data, held_out[:MOST_LABELLED], labels_at, "labels", watch)
    again: list[Trial] = []
    for place, domain in enumerate(held_out if pixels is not None else ()):
        file, rows = store and store / f"backbone-{place + 1}.json", data.held_out(domain.number)
        assert pixels is not None
        again += _once(file, partial(domain.backbone_trials, found, pixels, rows, seed))
    promises, strengths = conclude_labels(labelled)
    return replace(
        with_controls(found, controls),
        labels=promises,
        label_strengths=strengths,
        backbone=promises_beside(again) if again else (),
    )


def _tried(
    data: RehearsalData,
    held_out: Sequence["HeldOutDomain"],
    trials_at: Callable[[int], list[Trial]],
    phase: str,
    watch: Watch,
) -> list[Trial]:
    """The trials at each of these domains, in their order."""
    trials: list[Trial] = []
    watch(phase, 0, len(held_out), "")
    with _workers(data) as pool:
        for place, own in enumerate(pool.map(trials_at, range(len(held_out)))):
            watch(phase, place + 1, len(held_out), held_out[place].name)
            trials += own
    return trials


def _frequencies_differ(held_out: Sequence["HeldOutDomain"]) -> bool:
    """Whether the labels of the domains show a label shift at all, beyond chance (χ², 5 %)."""
    classes = held_out[0].logits["none"].shape[1]
    counts = np.stack([np.bincount(d.y.cpu().numpy(), minlength=classes) for d in held_out])
    counts = counts[:, counts.any(0)]
    return min(counts.shape) > 1 and bool(chi2_contingency(counts).pvalue < BY_CHANCE)


def _assuming_label_shift(trials: Sequence[Trial]) -> set[str]:
    """Those of the chains tried that correct for one."""
    chains = {trial.chain: find_chain(trial.chain).methods.values() for trial in trials}
    return {name for name, own in chains.items() if any(m.assumes_label_shift for m in own)}


def _once(file: Path | None, make: Callable[[], Iterable[Trial]]) -> list[Trial]:
    """The trials in `file`; where it is not there, they are made, and kept in it."""
    if file is None:
        return list(make())
    if not file.exists():
        write_document(file, {"trials": [asdict(trial) for trial in make()]})
    stored = read_document(file)["trials"]
    return [Trial(**{**one, "settings": tuple(map(tuple, one["settings"]))}) for one in stored]


class FoldHeads(NamedTuple):
    """What was fitted without the domains of a fold."""

    fold: Fold
    models: Mapping[str, FoldModels]  # by the name of their plain head
    trials: Sequence[Trial]  # of plain heads on the held-out domains
    without_a_site: Sequence[Trial]  # of a regression, "none" without one of the other domains


def _fit_fold(
    data: RehearsalData,
    fold: Fold,
    config: SiteConfig,
    seed: int,
    retrained: Retrained | None,
    store: Path | None,
    tell: Callable[[], None],
) -> FoldHeads:
    """`tell` is called after each of `PIECES`."""
    features = data.features
    if retrained is not None:
        x, network = retrained(fold)
        features = replace(features, x=x)
    part = features.among(fold.others, data.fitted & fold.apart)
    if retrained is None:
        network = _fit_network(data, part, config, seed, store)
    tell()
    site = None
    if data.second and len(fold.others) >= LEAST_DOMAINS:
        names = [data.names[d] for d in fold.others]
        site = fit_site(part, names, config, seed=seed, store=store)
    tell()
    held_out = {data.names[d]: data.held_out(d) for d in fold.held_out}
    alone = retrained is not None or not data.layers
    heads = {NETWORK: network} | ({} if alone else {**fit_regressions(part), **data.given})
    new = replace(data.unfitted(fold.others), x=features.x)
    models = {name: _models(data, fold, new, part, head, site) for name, head in heads.items()}
    if site is not None:
        models[PAIR] = models[NETWORK].at_centre()
        heads[PAIR] = models[PAIR].models["none"].predictor
    trials, fewer = accuracies(heads, features, held_out), list[Trial]()
    if not alone and 2 < len(data.names) <= LEAVE_ONE_OUT:
        dropped = fold.others[fold.number % len(fold.others)]
        others = [d for d in fold.others if d != dropped]
        rest = features.among(others, data.fitted & fold.apart)
        pair = {NETWORK: fit_regressions(rest, [LIGHT])[LIGHT], LIGHT: heads[LIGHT]}
        fewer = accuracies(pair, features, held_out)
    tell()
    return FoldHeads(fold, models, trials, fewer)


def _fit_network(
    data: RehearsalData, part: Features, config: SiteConfig, seed: int, store: Path | None
) -> Predictor:
    """The plain network on features: for folds, and then on all domains for the model itself, so
    that what was rehearsed is what is used."""
    return fit_plain(
        part,
        config,
        layers=data.layers,
        prior_aware=data.prior_aware,
        dropout=data.dropout,
        seed=seed,
        store=store,
    )


@torch.no_grad()
def _models(
    data: RehearsalData, fold: Fold, new: Features, part: Features, head: Head, site: Site | None
) -> FoldModels:
    """A plain head and the second path, fitted on `part`, as models to adapt; `new` are rows of the
    same domains that no head was fitted on."""
    many = len(fold.others) >= LEAST_DOMAINS
    known = part.prior.tolist(), part.ratios.tolist() if many else None
    backbone = identity_backbone(part.x.shape[1]).to(part.x.device)
    centre = mean_hidden(head, new)
    models = {"none": Model(Predictor(backbone, head), None, None, True, *known, centre)}
    if site is not None:
        pair = Predictor(backbone, PairHead(head, site.predictor, (0.5, 0.5))).eval()
        both = torch.cat([centre, mean_hidden(site.at_centre(), new)])
        models["embedding"] = Model(pair, site.embedding, site.table, True, *known, both)
    rows = data.new_rows(fold.others)
    logits = _logits(head, new, rows)
    return FoldModels(new, models, rows, logits, logits)


@torch.no_grad()
def _logits(head: Head, features: Features, rows: np.ndarray | None = None) -> Tensor:
    """Of `rows`, or of all."""
    every = np.arange(len(features.y)) if rows is None else rows
    return torch.cat([head(features.at(some)).logits.float() for some in in_parts(every)])


class HeldOutDomain:
    """One held-out domain, and the models that were fitted without it."""

    @torch.no_grad()
    def __init__(self, data: RehearsalData, domain: int, fold: FoldModels) -> None:
        rows = data.held_out(domain)
        self.number, self.name, self.fold = domain, data.names[domain], fold
        self.units = data.units[rows]
        self.x, self.y = fold.features.at(rows), fold.features.y[rows]
        self.sizes = sizes(len(np.unique(self.units)))
        every = np.arange(len(rows))
        self.logits = {start: self._start(start, every)[1].logits for start in fold.models}

    def calibrate(self, temperatures: Mapping[str, float]) -> None:
        """Divide all logits by a temperature for each start. Others are left out from now on."""
        fold, own = self.fold, temperatures.items()
        models = {start: fold.models[start].scaled(1 / temperature) for start, temperature in own}
        self.fold = fold._replace(models=models, logits=fold.logits / temperatures["none"])
        self.logits = {start: self.logits[start] / temperature for start, temperature in own}

    def _start(self, start: str, seen: np.ndarray) -> tuple[Predictor, Output]:
        """What a chain without methods makes of the images `seen`, and its output for all rows."""
        images = Images(self.x[seen], self.x.device)
        predictor, _ = adapt_model(self.fold.models[start], images, find_chain(start))
        return predictor, predictor(self.x)

    @torch.no_grad()
    def trials(self, seed: int, domains: int) -> Iterator[Trial]:
        """Every chain, with every number of images, as the domain is and with frequencies anew.

        With many domains, the domains themselves show how frequencies vary between sites.
        """
        many = domains >= ENOUGH_DOMAINS
        kinds: tuple[Frequencies, ...] = ("as they are",) if many else ("as they are", "drawn anew")
        fold = self.fold
        confusion = confusion_of(fold.logits, fold.labels)
        for kind in kinds:
            for draw in range(1 if many else 3):
                rng = stream(seed, "rehearsal", self.name, kind, draw)
                seen, scored = self.split(rng, anew=kind == "drawn anew")
                for n in self.sizes:
                    trials = list(self._adapt(seen[:n], scored, kind))
                    if kind == "as they are" and draw == 0 and confusion is not None:
                        share = self._explained(seen[:n], confusion)
                        trials[0] = replace(trials[0], explained=share)
                    yield from trials

    def _explained(self, seen: np.ndarray, confusion: Tensor) -> float | None:
        """Of how predictions differ here from those at the other domains, the share that label
        shift explains."""
        prior = torch.tensor(self.fold.models["none"].label_prior, dtype=torch.float64)
        posteriors = self.logits["none"].double().cpu().softmax(1)
        return explained_by_em(posteriors[seen], prior, confusion)

    def split(
        self, rng: np.random.Generator, *, anew: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Images to adapt on, in random order and one row each, and the rows of all others."""
        units, first = np.unique(self.units, return_index=True)
        order = rng.permutation(len(units))
        seen = first[order[: len(order) // 2]]
        scored = np.flatnonzero(~np.isin(self.units, self.units[seen]))
        if not anew:
            return seen, scored
        labels, classes = self.y.cpu().numpy(), self.logits["none"].shape[1]
        wanted = rng.dirichlet(np.full(classes, CONCENTRATION))
        # Both halves must be able to have the frequencies.
        both = np.intersect1d(labels[seen], labels[scored])
        wanted = np.where(np.isin(np.arange(classes), both), wanted, 0.0)
        seen = _resample(seen, labels, wanted, rng)
        return seen, _resample(scored, labels, wanted, rng)

    def _adapt(self, seen: np.ndarray, scored: np.ndarray, kind: Frequencies) -> Iterator[Trial]:
        """Every chain from the images `seen`, scored on the rows `scored`."""
        prior = self.fold.models["none"].label_prior

        def trial(chain: str, logits: Tensor, settings: Tried = ()) -> Trial:
            rows = logits.double().cpu()
            made = self._trial(chain, len(seen), scored, rows[scored].argmax(1), settings)
            made = replace(made, frequencies=kind)
            if not all(method.probabilities for method in find_chain(chain).methods.values()):
                return made
            scores = scores_of(rows[seen].softmax(1).numpy(), prior)
            return replace(made, scores=scores, answers=self._answers(rows[scored], scored))

        for start in self.fold.models:
            model, hidden = self._on_hidden(start, seen)
            yield trial(start, model.predictor(hidden).logits)
            images = Images(hidden[seen], hidden.device)
            for chain, settings in _candidates(many_domains=model.ratios is not None):
                logits = adapt_model(model, images, chain)[0](hidden).logits
                name = chain.name if start == "none" else f"{start}+{chain.name}"
                yield trial(name, logits, settings)

    @torch.no_grad()
    def label_trials(self, found: Rehearsal, seed: int) -> Iterator[Trial]:
        """The chain that was chosen for images of this domain, with and without labels for some."""
        seen, scored = self.split(stream(seed, "labels", self.name))
        seen = seen[: max(SIZES)]
        chosen = found.chain_for(len(seen))
        starts = []  # of the chain as it was chosen, and as labels can follow it
        for name in (chosen, open_to_labels(chosen)):
            settings = found.settings_for(name, len(seen))
            adapted, hidden = self.adapted(find_chain(name, settings=settings), seen)
            starts.append(Model(adapted))
        images, labels = Images(hidden[seen], hidden.device), self.y.cpu()
        for k in (k for k in LABELLED if 2 * k <= len(seen)):
            known = torch.full((len(seen),), -1)
            some = spread(hidden[seen], k, seed=seed)
            known[some] = labels[seen[some]]
            for strength in (None, *STRENGTHS):
                steps = "none" if strength is None else "labels"
                tried = () if strength is None else (("labels.strength", strength),)
                chain = find_chain(steps, settings=dict(tried))
                start = starts[0 if strength is None else 1]
                predictor, _ = adapt_model(start, images, chain, labels=known)
                logits = predictor(hidden).logits[scored].double().cpu()
                trial = self._trial(steps, k, scored, logits.argmax(1), tried)
                yield replace(trial, answers=self._answers(logits, scored))

    @torch.no_grad()
    def controls(self, found: Rehearsal, other: np.ndarray, seed: int) -> Iterator[Trial]:
        """Chosen chains at the training domains' centre, without an image of this domain, and with
        images of the `other` rows, another domain's; beside the plain model."""
        scored = self.split(stream(seed, "rehearsal", self.name, "as they are", 0))[1]
        for n in self.sizes:
            name = found.chain_for(n)
            chain = find_chain(name, settings=found.settings_for(name, n))
            if chain.name == "none" or not len(other):
                continue
            model = self.fold.models["embedding" if chain.embedding else "none"]
            images = Images(self.fold.features.at(other[:n]), self.x.device)
            predictors = {
                "none": self.fold.models["none"].predictor,
                "neutral": model.at(None),
                "other": adapt_model(model, images, chain)[0],
            }
            for control, predictor in predictors.items():
                yield self._trial(control, n, scored, predictor(self.x[scored]).logits.argmax(1))

    def backbone_trials(
        self, found: Rehearsal, pixels: Pixels, rows: np.ndarray, seed: int
    ) -> Iterator[Trial]:
        """Methods that change the backbone, with the most images that were rehearsed with, beside
        what `adapt` does with as many ("none"). `rows` are those of the domain in the manifest."""
        n = max(found.chosen)
        if n not in self.sizes:
            return
        seen, scored = self.split(stream(seed, "rehearsal", self.name, "as they are", 0))
        chain = find_chain(found.chain_for(n), settings=found.settings_for(found.chain_for(n), n))
        with torch.no_grad():
            adapted, hidden = self.adapted(chain, seen[:n])
            yield self._trial("none", n, scored, adapted(hidden).logits[scored].argmax(1))
        plain = self.fold.models["none"]
        for name, guesses in pixels.predict(plain, rows[seen[:n]], rows[scored]):
            yield self._trial(name, n, scored, guesses)

    def _trial(
        self, chain: str, n: int, scored: np.ndarray, guesses: Tensor, settings: Tried = ()
    ) -> Trial:
        """Of a chain that takes the rows `scored` for these classes."""
        right = guesses.cpu() == self.y.cpu()[scored]
        return Trial(
            domain=self.name,
            chain=chain,
            n=n,
            frequencies="as they are",
            accuracy=float(right.double().mean()),
            scored=len(np.unique(self.units[scored])),
            settings=settings,
        )

    def _answers(self, logits: Tensor, scored: np.ndarray) -> tuple[tuple[int, int], ...]:
        """What sure answers are worth by logits of the rows `scored` [n, C], on the CPU."""
        likeliest, guesses = logits.softmax(1).max(1)
        return count_answers(likeliest.numpy(), (guesses == self.y.cpu()[scored]).numpy())

    @torch.no_grad()
    def adapted(self, chain: Chain, seen: np.ndarray) -> tuple[Predictor, Tensor]:
        """What `chain` makes of the images `seen`: a classifier of the hidden layer, and that layer
        of all rows [rows, h]."""
        model, hidden = self._on_hidden("embedding" if chain.embedding else "none", seen)
        methods = replace(chain, embedding=False)
        return adapt_model(model, Images(hidden[seen], hidden.device), methods)[0], hidden

    def _on_hidden(self, start: str, seen: np.ndarray) -> tuple[Model, Tensor]:
        """The model that chains from `start` begin with, on the hidden layer [rows, h]: methods
        look at that layer, and change nothing below it."""
        predictor, output = self._start(start, seen)
        # On the CPU: many small operations, for each of which a GPU would be waited for.
        last = copy.deepcopy(on_hidden(predictor)).cpu()
        model = self.fold.models[start]._replace(predictor=last, embedding=None, table=None)
        return model, output.hidden.cpu()


def _candidates(*, many_domains: bool) -> Iterator[tuple[Chain, Tried]]:
    """Each method of the table with each of its settings to try. Methods that change the backbone
    would need images."""
    for name, row in METHODS.items():
        kind = row.method
        if kind is None or kind.changes == "backbone":
            continue
        for settings in kind.rehearsed(many_domains=many_domains):
            method = kind(kind.Config(**settings))
            tried = tuple((f"{name}.{key}", value) for key, value in settings.items())
            yield Chain(False, {name: method}), tried


def _resample(
    rows: np.ndarray, labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """As many of `rows`, with repetition, with class frequencies `wanted` as far as there are
    images of each class."""
    own = np.bincount(labels[rows], minlength=len(wanted))
    weight = np.where(own > 0, wanted / np.maximum(own, 1), 0.0)[labels[rows]]
    if weight.sum() == 0:
        return rows
    return rng.choice(rows, len(rows), p=weight / weight.sum())


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy under each temperature of the grid: [n, C], [n] -> [41]"""
    rows, y = logits.double().cpu(), labels.cpu()
    return torch.stack([F.cross_entropy(rows / temperature, y) for temperature in _GRID])


def _temperature(losses: Tensor) -> float:
    """The temperature of the grid under which logits are calibrated best."""
    return float(_GRID[losses.argmin()])


@torch.no_grad()
def _scale(data: RehearsalData, site: Site, logits: Tensor) -> float:
    """How much larger the logits of the conditioned head are than those of the plain model [n, C],
    on new rows of the domains that both know: with it both count alike. Labels play no part."""
    new = data.new_rows(range(len(data.names)))
    conditioned = torch.zeros_like(logits)
    for mu, rows in zip(site.table.means, data.features.domains, strict=True):
        own = rows[np.isin(rows, new)]
        head = site.predictor.fold(mu.to(conditioned.device)).eval()
        conditioned[own] = head(data.features.at(own)).logits
    plain = _spread(logits[new]) if len(new) else 0.0
    return _bounded(_spread(conditioned[new]) / plain) if plain else 1.0


def _louder(logits: Tensor, known: Sequence[FoldModels]) -> float:
    """How much larger the `logits` [n, C] of the plain model itself are than those of the heads
    that stood in for it, on new rows of domains that both know: labels play no part."""
    if not known:
        return 1.0
    own = fmean(_spread(logits[fold.rows]) for fold in known)
    stood_in = fmean(_spread(fold.base) for fold in known)
    return _bounded(own / max(stood_in, 1e-9))


def _bounded(scale: float) -> float:
    """Bound the scale of near-constant heads."""
    return min(max(scale, 0.01), 100.0)


def _spread(logits: Tensor) -> float:
    """Standard deviation of the logits of a row, on average: [n, C]"""
    return float(logits.double().std(1, correction=0).mean())
