"""Leave-one-domain-out: which domains a rehearsal holds out together, and which rows it may use.

Heads are fitted on training rows of the other domains. A held-out domain is adapted to and scored
on rows that no head has seen, not even as the same picture in another domain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from acclimate.core.progress import unwatched
from acclimate.core.randomness import stream
from acclimate.data.source import numbered, readable, to_float
from acclimate.learn.models import Head, Predictor
from acclimate.learn.models.class_vectors import class_vector_head
from acclimate.learn.site import Features
from acclimate.records.rehearsal import CLASS_VECTORS
from acclimate.runs.plan import Plan
from acclimate.runs.session import Session

MOST_FOLDS = 5  # of a rehearsal,
LEAVE_ONE_OUT = 8  # but up to so many domains, each is a fold of its own
SIZES = (5, 20, 100, 300)  # unlabelled images that a new site might offer
LEAST_LEFT = 0.5  # of the rows to fit on, once the pictures of held-out domains are left out
ENOUGH_UNSEEN = 40  # pictures of a domain, for half of them to be adapted on


@dataclass(frozen=True)
class RehearsalData:
    """Features of the training domains, and what each row may be used for."""

    features: Features
    names: Sequence[str]  # of the domains
    units: np.ndarray  # [n]: equal where rows show one picture, or pictures of one group
    fitted: np.ndarray  # [n] bool: rows that heads may be fitted on
    scored: np.ndarray  # [n] bool: rows that may be held out
    layers: bool  # whether the plain model learned layers of its own on the features
    exact: bool  # whether the backbone has not seen the held-out domains
    second: bool = True  # whether there is a path by embedding to rehearse
    prior_aware: bool = False
    dropout: float = 0.0
    given: Mapping[str, Head] = field(default_factory=dict)  # heads that nothing is fitted for

    def held_out(self, domain: int) -> np.ndarray:
        """Rows of a domain that adapt to it and score it when it is held out."""
        rows = self.features.domains[domain]
        return np.asarray(rows[self.scored[rows]])

    def new_rows(self, domains: Iterable[int]) -> np.ndarray:
        """Rows of these domains that may be held out, and that no head is fitted on."""
        rows = np.concatenate([self.held_out(domain) for domain in domains])
        return np.asarray(rows[~self.fitted[rows]])

    def unfitted(self, domains: Iterable[int]) -> Features:
        """Those rows of each domain; of one that has none, all."""
        every = self.features.domains
        own = [new if len(new := self.new_rows([d])) else every[d] for d in domains]
        return replace(self.features, domains=own)

    def pictures(self, domain: int) -> np.ndarray:
        """The different pictures or groups that a domain shows when it is held out."""
        return np.unique(self.units[self.held_out(domain)])


class Fold(NamedTuple):
    """Domains that are held out together, and what may be learned from meanwhile."""

    number: int  # the same whichever of its domains have images enough
    held_out: list[int]
    others: list[int]  # with enough rows to learn from
    apart: np.ndarray  # [n] bool: rows that show nothing of the held-out domains


def sizes(images: int) -> list[int]:
    """Numbers of images to adapt on, of so many; as many at least are left to score."""
    return [n for n in SIZES if 2 * n <= images]


def make_folds(data: RehearsalData, seed: int) -> tuple[RehearsalData, list[Fold]]:
    """Hold out each domain that has images enough once; the data are arranged for that. No folds
    where domains share too many pictures for a model to be ignorant of some."""
    domains = len(data.names)
    count = domains if domains <= LEAVE_ONE_OUT else MOST_FOLDS
    order = stream(seed, "rehearsal folds").permutation(domains)
    parts = [sorted(int(d) for d in order[number::count]) for number in range(count)]
    apart = _keep_apart(data, parts)
    if apart is None:
        return data, []
    data = apart
    folds = (_fold(data, number, part) for number, part in enumerate(parts))
    return data, [fold for fold in folds if fold is not None]


def _fold(data: RehearsalData, number: int, part: Sequence[int]) -> Fold | None:
    """None where nothing is left to hold out or to learn from."""
    held_out = [d for d in part if sizes(len(data.pictures(d)))]
    if not held_out:
        return None
    apart = _apart(data, held_out)
    rows = [(data.fitted & apart)[own].sum() for own in data.features.domains]
    others = [d for d, count in enumerate(rows) if d not in held_out and count >= 2]
    return Fold(number, held_out, others, apart) if others else None


def _apart(data: RehearsalData, held_out: Sequence[int]) -> np.ndarray:
    """Rows [n] that show no image of the held-out domains."""
    theirs = np.concatenate([data.pictures(d) for d in held_out])
    return ~np.isin(data.units, theirs)


def _keep_apart(data: RehearsalData, parts: Sequence[Sequence[int]]) -> RehearsalData | None:
    """Data in which heads know no picture of a held-out domain.

    Heads are not fitted on what a held-out domain shows. Where domains share so many pictures that
    this would leave little to fit on, pictures that no head is fitted on are held out instead.
    None where those are too few as well.
    """
    if len(parts) < 2 or all(_share_left(data, part) >= LEAST_LEFT for part in parts):
        return data
    fitted_on = np.isin(data.units, data.units[data.fitted])
    unseen = replace(data, scored=data.scored & ~fitted_on)
    able = sum(len(unseen.pictures(d)) >= ENOUGH_UNSEEN for d in range(len(data.names)))
    return unseen if 2 * able >= len(data.names) else None


def _share_left(data: RehearsalData, part: Sequence[int]) -> float:
    """Of the rows that heads could be fitted on without these domains, the share that shows nothing
    of theirs."""
    others = np.concatenate([r for d, r in enumerate(data.features.domains) if d not in part])
    fitted = others[data.fitted[others]]
    return float(_apart(data, part)[fitted].mean()) if len(fitted) else 0.0


def rehearsal_data(
    plan: Plan, features: Features | None = None, read: np.ndarray | None = None
) -> RehearsalData:
    """What a run is rehearsed on. Before training there are no features, and `read` (the rows that
    could be read) is not known: the folds need neither."""
    manifest, config = plan.manifest, plan.config
    units, learned_on = manifest.unit_ids, manifest.splits == "train"
    given: dict[str, Head] = {}
    if (vectors := config.model.class_vectors) and features is not None:
        head = class_vector_head(vectors, plan.classes, features.x.shape[1])
        given[CLASS_VECTORS] = head.to(features.x.device)
    if features is None:
        domains = [manifest.rows(domain=name) for name in plan.train_domains]
        labels = torch.from_numpy(manifest.label_index)
        features = Features(torch.empty(len(manifest), 0), labels, domains, len(plan.classes))
    if read is None:
        read = np.ones(len(manifest), dtype=bool)
    fitted = read & learned_on
    usable = read & (manifest.splits != "test")  # which are for the final scores alone
    # Features that were there before training tell of a new domain what they tell of these.
    exact = plan.on_features or config.adapt.depth == "whole"
    # A backbone that was trained knows the images it was trained on better than any new ones.
    seen = np.isin(units, units[learned_on])
    return RehearsalData(
        features=features,
        names=plan.train_domains,
        units=units,
        fitted=fitted,
        scored=usable if exact else usable & ~seen,
        layers=plan.on_features,
        exact=exact,
        second=all(fitted[own].sum() >= 2 for own in features.domains),
        prior_aware=config.train.prior_aware,
        dropout=config.model.dropout,
        given=given,
    )


@torch.no_grad()
def extract_features(now: Session, predictor: Predictor) -> tuple[Features, np.ndarray]:
    """Features of all rows of the training domains, and which rows could be read: bool [n].

    Features are those of the trained backbone, unless the run learned on features anyway.
    """
    plan, device = now.plan, now.world.device
    domains = [plan.manifest.rows(domain=name) for name in plan.train_domains]
    rows = np.concatenate(domains)
    # Rows of features are each their own, whatever image they are said to be of.
    own = plan.manifest.has_features
    first, places = numbered(np.arange(len(rows)) if own else plan.manifest.image_ids[rows])
    x = torch.zeros(len(first), predictor.backbone.features, device=device)
    there = np.zeros(len(first), dtype=bool)

    def watch(phase: str, done: int, total: int, note: str) -> None:
        now.watch("features", done, total, note)

    watching = unwatched if plan.on_features else watch
    for some, stored in readable(now.source, rows[first], watching):
        x[some], there[some] = predictor.backbone(to_float(stored, device)).float(), True
    count = len(plan.manifest)
    image, read = torch.zeros(count, dtype=torch.int64, device=device), np.zeros(count, dtype=bool)
    image[rows], read[rows] = torch.from_numpy(places).to(device), there[places]
    y = torch.from_numpy(plan.manifest.label_index).to(device)
    return Features(x, y, domains, len(plan.classes), image), read
