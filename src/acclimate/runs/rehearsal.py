"""Rehearsal: training domains play "new site" in turn, on features of the finished backbone.

For each fold of domains, the heads are fitted on the others alone; each domain of the fold is then
adapted to from some of its images, unlabelled, and scored on the rest. Where the backbone was
frozen this is what training without those domains would have given; where it was trained, it has
seen them, and the rehearsal says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.adapt.methods.prior import em_prior, log_ratio
from acclimate.adapt.rehearsal import ENOUGH_DOMAINS, Frequencies, Rehearsal, Trial, conclude
from acclimate.config import SiteConfig
from acclimate.core.randomness import stream
from acclimate.core.watch import Watch, unwatched
from acclimate.data.source import readable, to_float
from acclimate.learn.models import Plain, Predictor
from acclimate.learn.site import FeatureRows, Site, fit_plain, fit_site
from acclimate.runs.session import Session

SIZES = (5, 20, 100, 300)  # unlabelled images that a new site might offer
STRENGTHS = (10.0, 30.0, 100.0, 300.0, 1000.0)
LEAST_DOMAINS = 4  # to learn from, for Φ and a conditioned head to make sense
MOST_FOLDS = 5
LEAVE_ONE_OUT = 8  # up to so many domains, each is a fold of its own
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


def rehearse_run(now: Session, predictor: Predictor) -> tuple[Site | None, Rehearsal | None]:
    """The second path of a finished plain predictor, and what rehearsal says of both.

    Every process does the same work: heads are small.
    """
    plan, config = now.plan, now.plan.config
    # Features that were there before training tell of a new domain what they tell of these.
    manifest, exact = plan.manifest, plan.frozen or plan.manifest.has_features
    rows, read = _feature_rows(now, predictor)
    learned_on = manifest.splits == "train"
    stage = Stage(
        rows=rows,
        names=plan.train_domains,
        images=manifest.image_ids,
        fitted=read & learned_on,
        # A backbone that was trained knows the rows it was trained on better than any new ones.
        scored=read if exact else read & ~learned_on,
        layers=exact,
        exact=exact,
    )
    rehearsal = rehearse(stage, config.adapt.site, seed=config.seed, watch=now.watch)
    site = None
    if rehearsal is not None and "embedding" in rehearsal.chains:
        part = rows.among(range(len(plan.train_domains)), stage.fitted)
        site = fit_site(part, plan.train_domains, config.adapt.site, seed=config.seed)
    return site, rehearsal


@torch.no_grad()
def _feature_rows(now: Session, predictor: Predictor) -> tuple[FeatureRows, np.ndarray]:
    """Features of all rows of the training domains, and which rows could be read: bool [n].

    Those of the trained backbone, unless the run learned on features anyway.
    """
    plan, device = now.plan, now.world.device
    domains = [plan.manifest.rows(domain=name) for name in plan.train_domains]
    rows, count = np.concatenate(domains), len(plan.manifest)
    x, read = torch.zeros(count, 0, device=device), np.zeros(count, dtype=bool)
    for places, stored in readable(now.source, rows, _named(now.watch, "features")):
        found = to_float(stored, device)
        if found.ndim > 2:
            found = predictor.backbone(found)
        if not read.any():
            x = torch.zeros(count, found.shape[1], device=device)
        x[rows[places]] = found.float()
        read[rows[places]] = True
    y = torch.from_numpy(plan.manifest.label_index).to(device)
    return FeatureRows(x, y, domains, len(plan.classes)), read


def _named(watch: Watch, phase: str) -> Watch:
    return lambda _, done, total, note: watch(phase, done, total, note)


def rehearse(
    stage: Stage, config: SiteConfig, *, seed: int, watch: Watch = unwatched
) -> Rehearsal | None:
    """None where too few domains or images are there to play with."""
    folds = list(_folds(len(stage.names), seed))
    scenes: list[_Scene] = []
    for done, held in enumerate(folds):
        watch("rehearsal", done, len(folds), ", ".join(stage.names[d] for d in held)[:40])
        scenes += _play(stage, held, config, seed)
    watch("rehearsal", len(folds), len(folds), "")
    if not scenes:
        return None
    temperatures = {
        chain: _temperature([scene.whole[path] for scene in scenes], [s.y for s in scenes])
        for chain, path in (("prior", "plain"), ("embedding+prior", "site"))
        if all(path in scene.whole for scene in scenes)
    }
    trials = [t for scene in scenes for t in scene.trials(temperatures, seed, len(stage.names))]
    return conclude(trials, temperatures, exact=stage.exact)


def _folds(domains: int, seed: int) -> Iterator[list[int]]:
    """Each domain in one fold; where there are few, each is its own."""
    folds = domains if domains <= LEAVE_ONE_OUT else MOST_FOLDS
    order = stream(seed, "rehearsal folds").permutation(domains)
    for number in range(folds):
        yield sorted(int(d) for d in order[number::folds])


def _playing(stage: Stage, domain: int) -> np.ndarray:
    rows = stage.rows.domains[domain]
    playing: np.ndarray = rows[stage.scored[rows]]
    return playing


def _sizes(rows: np.ndarray) -> list[int]:
    """Numbers of images to adapt on; as many at least are left to score."""
    return [n for n in SIZES if 2 * n <= len(rows)]


def _play(stage: Stage, held: Sequence[int], config: SiteConfig, seed: int) -> "list[_Scene]":
    """Fit the heads without the domains `held`, or any image of theirs, and look at these."""
    held = [d for d in held if _sizes(_playing(stage, d))]
    others = [d for d in range(len(stage.names)) if d not in held]
    if not held or not others:
        return []
    theirs = np.concatenate([stage.rows.domains[d] for d in held])
    allowed = stage.fitted & ~np.isin(stage.images, stage.images[theirs])
    part = stage.rows.among(others, allowed)
    kept = [d for d, rows in zip(others, part.domains, strict=True) if len(rows) >= 2]
    if not kept:
        return []
    part = stage.rows.among(kept, allowed)
    plain = fit_plain(part, config, layers=stage.layers, seed=seed)
    names = [stage.names[d] for d in kept]
    site = fit_site(part, names, config, seed=seed) if len(kept) >= LEAST_DOMAINS else None
    return [
        _Scene(stage.names[d], stage.rows.x[rows], stage.rows.y[rows], part.prior, plain, site)
        for d in held
        for rows in [_playing(stage, d)]
    ]


class _Scene:
    """One held-out domain before the heads that were fitted without it."""

    @torch.no_grad()
    def __init__(
        self, name: str, x: Tensor, y: Tensor, prior: Tensor, plain: Plain, site: Site | None
    ) -> None:
        self.name, self.x, self.y, self.prior, self.site = name, x, y, prior.cpu(), site
        self.plain: Tensor = plain(x).logits
        self.whole = {"plain": self.plain}
        if site is not None:
            self.phi = site.embedding.phi(x)
            self.whole["site"] = self._conditioned(self.phi.double().mean(0))

    def _conditioned(self, mu: Tensor) -> Tensor:
        assert self.site is not None
        logits: Tensor = self.site.predictor.fold(mu.to(self.x.device)).eval()(self.x).logits
        return logits

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
                for n in _sizes(np.arange(len(self.y))):
                    yield from self._adapted(seen[:n], scored, n, kind, temperatures)

    def _split(self, rng: np.random.Generator, *, anew: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images to adapt on, and others to score."""
        order = rng.permutation(len(self.y))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        if not anew:
            return halves
        labels, classes = self.y.cpu().numpy(), len(self.prior)
        wanted = rng.dirichlet(np.full(classes, CONCENTRATION))
        return _resampled(halves[0], labels, wanted, rng), _resampled(
            halves[1], labels, wanted, rng
        )

    def _adapted(
        self,
        seen: np.ndarray,
        scored: np.ndarray,
        n: int,
        kind: Frequencies,
        temperatures: dict[str, float],
    ) -> Iterator[Trial]:
        paths = {"none": self.plain}
        if "embedding+prior" in temperatures:
            paths["embedding"] = self._conditioned(self.phi[seen].double().mean(0))
        for chain, logits in paths.items():
            yield self._trial(chain, n, kind, logits[scored], scored)
            further = "prior" if chain == "none" else f"{chain}+prior"
            cool = logits.double().cpu() / temperatures[further]
            posteriors = cool[seen].softmax(1)
            for strength in STRENGTHS:
                found, _ = em_prior(posteriors, self.prior, strength=strength, tolerance=1e-5)
                shifted = cool[scored] + log_ratio(found, self.prior)
                yield self._trial(further, n, kind, shifted, scored, strength)

    def _trial(
        self,
        chain: str,
        n: int,
        kind: Frequencies,
        logits: Tensor,
        scored: np.ndarray,
        strength: float | None = None,
    ) -> Trial:
        right = logits.argmax(1).cpu() == self.y.cpu()[scored]
        return Trial(
            domain=self.name,
            chain=chain,
            n=n,
            frequencies=kind,
            accuracy=float(right.double().mean()),
            strength=strength,
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


def _temperature(logits: Sequence[Tensor], labels: Sequence[Tensor]) -> float:
    """What logits must be divided by to be as sure as they are right: least cross-entropy, each
    domain counting equally."""
    grid = torch.logspace(-1, 1, 41, dtype=torch.float64)
    losses = [
        torch.stack([F.cross_entropy(own.double().cpu() / t, y.cpu()) for t in grid])
        for own, y in zip(logits, labels, strict=True)
    ]
    return float(grid[torch.stack(losses).mean(0).argmin()])
