"""Does rehearsal leave a model alone where there is nothing to adapt to, and act where there is?

    python benchmarks/no_shift.py --jobs 2
    python benchmarks/no_shift.py --alpha 0.3 --sites 3 5 10 20 40 --runs 60

Each run draws sites from one distribution of features, made classes or scikit-learn's digits with
noise, rehearses on them, and adapts to unseen sites as rehearsal chose. With `--alpha`, each site
has label frequencies of its own, from a Dirichlet distribution. Prints how many runs chose a chain,
and what that gained over the plain model at the unseen sites.
"""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from acclimate.adapt.methods import find_chain
from acclimate.adapt.methods.chain import adapt_model
from acclimate.config import SiteConfig
from acclimate.learn.images import Images
from acclimate.learn.model import Model
from acclimate.learn.models import Head, Predictor
from acclimate.learn.models.predictors import PairHead, identity_backbone
from acclimate.learn.site import LEAST_DOMAINS, Features, fit_plain, fit_site
from acclimate.records.rehearsal import NETWORK, PAIR
from acclimate.rehearse.folds import RehearsalData
from acclimate.rehearse.plain import fit_regressions
from acclimate.rehearse.rehearsal import rehearse

HEADS = SiteConfig(steps=60, batch=128, width=32, dim=16)  # small: hundreds of runs
UNSEEN, SCORED = 6, 400  # sites, and images of each, beside those that adapt
Draw = Callable[[np.ndarray], np.ndarray]  # labels -> features


class Found(NamedTuple):
    sites: int
    images: int  # of each site
    gains: dict[str, float]  # by chain that was chosen: mean over unseen sites and sizes


def pool(rng: np.random.Generator, kind: str) -> tuple[int, Draw]:
    """The number of classes, and images of them that are never twice the same."""
    if kind == "digits":
        from sklearn.datasets import load_digits

        data, noise = load_digits(), rng.uniform(0.5, 1.0)
        of = [np.flatnonzero(data.target == label) for label in range(10)]

        def digits(y: np.ndarray) -> np.ndarray:
            rows = [rng.choice(of[label]) for label in y]
            x: np.ndarray = data.data[rows] / 16 + noise * rng.normal(size=(len(y), 64))
            return x

        return 10, digits
    classes = int(rng.integers(3, 13))
    centres = rng.normal(size=(classes, 16)) * rng.uniform(0.5, 1.0)
    return classes, lambda y: centres[y] + rng.normal(size=(len(y), 16))


def run(seed: int, sites: tuple[int, ...], alpha: float | None) -> Found:
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    count, images = int(rng.choice(sites)), int(rng.choice([40, 80, 200]))
    classes, draw = pool(rng, ("gauss", "digits")[seed % 2])

    def site(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        even = np.full(classes, 1 / classes)
        y = rng.choice(classes, size, p=even if alpha is None else rng.dirichlet(alpha + 0 * even))
        return torch.from_numpy(draw(y)).float(), torch.from_numpy(y)

    known = [site(images) for _ in range(count)]
    x, y = (torch.cat(part) for part in zip(*known, strict=True))
    rows = Features(x, y, list(np.arange(len(y)).reshape(count, -1)), classes)
    fitted, every = rng.random(len(y)) < 0.8, np.ones(len(y), dtype=bool)
    part, names = rows.among(range(count), fitted), [f"site-{i}" for i in range(count)]
    head: Head = fit_plain(part, HEADS, layers=True, dropout=0.5, seed=seed)
    data = RehearsalData(rows, names, np.arange(len(y)), fitted, every, True, True, dropout=0.5)
    found = rehearse(data, HEADS, seed=seed)
    assert found is not None
    backbone, many = identity_backbone(x.shape[1]), count >= LEAST_DOMAINS
    ratios = part.ratios.tolist() if many else None
    facts: Any = (True, part.prior.tolist(), ratios)
    if found.head not in (NETWORK, PAIR):
        head = fit_regressions(part, [found.head])[found.head]
    plain = conditioned = Model(Predictor(backbone, head), None, None, *facts)
    if found.head == PAIR or any("embedding" in chain for chain in found.chosen.values()):
        second = fit_site(part, names, HEADS, seed=seed)
        weights = found.plain_scale / 2, 0.5
        pair = Predictor(backbone, PairHead(head, second.predictor, weights)).eval()
        conditioned = Model(pair, second.embedding, second.table, *facts)
        plain = conditioned.at_centre() if found.head == PAIR else plain
        conditioned = conditioned.scaled(1 / found.temperatures["embedding"])
    plain = plain.scaled(1 / found.temperatures["none"])
    gains: dict[str, list[float]] = {}
    for _ in range(UNSEEN):
        x, y = site(300 + SCORED)
        right = _accuracy(plain.predictor, x[300:], y[300:])
        for n, name in found.chosen.items():
            if name != "none":
                chain = find_chain(name, settings=found.settings_for(name, n))
                start = conditioned if chain.embedding else plain
                adapted, _ = adapt_model(start, Images(x[:n], x.device), chain)
                gains.setdefault(name, []).append(_accuracy(adapted, x[300:], y[300:]) - right)
    return Found(count, images, {name: fmean(own) for name, own in gains.items()})


@torch.no_grad()
def _accuracy(predictor: Predictor, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((predictor(x).logits.argmax(1) == y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--sites", type=int, nargs="+", default=list(range(3, 10)))
    parser.add_argument("--alpha", type=float, help="of label frequencies; none: no shift")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.runs)
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as workers:
        given = ([tuple(asked.sites)] * len(seeds), [asked.alpha] * len(seeds))
        found = []
        for seed, one in zip(seeds, workers.map(run, seeds, *given), strict=True):
            found.append(one)
            print(seed, *one, file=sys.stderr, flush=True)
    for sites in sorted({one.sites for one in found}):
        own = [one for one in found if one.sites == sites]
        print(f"{sites:3} sites: {sum(bool(one.gains) for one in own)} of {len(own)} chose a chain")
    gains = [(name, gain) for one in found for name, gain in one.gains.items()]
    for name in sorted({name for name, _ in gains}):
        own_gains = [100 * gain for chain, gain in gains if chain == name]
        worst = min(own_gains)
        print(f"{name}: {len(own_gains)} runs, {fmean(own_gains):+.2f} points, worst {worst:+.2f}")
    chose = [one for one in found if one.gains]
    mean = fmean(fmean(one.gains.values()) for one in chose) if chose else 0.0
    print(f"{len(chose)} of {len(found)} runs chose a chain; it gained {100 * mean:+.2f} points")


if __name__ == "__main__":
    main()
