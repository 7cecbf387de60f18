"""Theorem 1, and what a run measures beside it: how far μ from few images lies from μ of all.

The paper calls that consistency. Expressivity is how far domains lie from each other. Both are
measured on the points that make the training domains' μ, which a run embeds anyway.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from acclimate.core.randomness import stream

MOST_DOMAINS = 8
DRAWS, SPLITS = 200, 20
DELTA = 0.05


def mean_radius(n: int, variance: float, bound: float, *, delta: float = DELTA) -> float | None:
    """Theorem 1: with probability 1 − delta, ‖mean of n samples − μ‖₂ is at most this.

    `variance` is E‖Φ(x) − μ‖², `bound` the largest ‖Φ(x) − μ‖. The vector Bernstein inequality
    behind it, P(‖mean − μ‖ ≥ ε) ≤ exp(−nε²/(8σ²) + ¼), holds for 0 < ε < σ²/B only; `None` where
    the radius would lie outside, that is, where n is too small for the theorem to say anything.
    """
    if n < 1 or not 0 < delta < 1:
        raise ValueError(f"need n ≥ 1 and 0 < delta < 1, got n={n}, delta={delta}")
    if variance == 0:
        return 0.0
    radius = math.sqrt(8 * variance * (math.log(1 / delta) + 0.25) / n)
    return radius if radius * bound < variance else None


def choose_domains(names: Sequence[str], seed: int) -> frozenset[str]:
    """A random few of many domains, which are measured."""
    order = stream(seed, "consistency", "domains").permutation(len(names))
    return frozenset(names[place] for place in order[:MOST_DOMAINS])


def measure(phi_by_domain: Mapping[str, np.ndarray], seed: int) -> dict[str, Any]:
    """From the Φ [n, d] of each domain's points, as consistency.json holds it:

    - `domains`: name, number of points n, variance = mean ‖Φ − μ‖² and bound = largest ‖Φ − μ‖;
    - `points`: for n images, ‖mean of n − mean of all‖ on average over domains (`error`), its 95 %
      quantile in the worst domain (`error95`), and a radius that Theorem 1 gives for every domain,
      None where it says nothing;
    - `between`, the mean distance of two domains' μ; `within`, that of the μ of two halves of a
      domain; and their `ratio`: above 1, domains differ by more than the choice of images.

    Points are drawn with replacement: the domain's points are then the true distribution, and
    Theorem 1 holds for it as it stands. A domain smaller than n is drawn from all the same.
    """
    phi = {name: np.asarray(rows, np.float64) for name, rows in phi_by_domain.items() if len(rows)}
    means = {name: rows.mean(0) for name, rows in phi.items()}
    centred = {name: rows - means[name] for name, rows in phi.items()}
    domains = [_spread(name, rows) for name, rows in centred.items()]
    most = max(map(len, phi.values()), default=0)
    sizes = [n for d in range(len(str(most))) for n in (10**d, 2 * 10**d, 5 * 10**d) if n <= most]
    pairs = [float(np.linalg.norm(a - b)) for a, b in combinations(means.values(), 2)]
    halves = [_halves_apart(rows, seed, name) for name, rows in centred.items() if len(rows) > 1]
    between = float(np.mean(pairs)) if pairs else None
    within = float(np.mean(halves)) if halves else None
    return {
        "points": [_mean_error(n, centred, domains, seed) for n in sizes],
        "domains": domains,
        "between": between,
        "within": within,
        "ratio": between / within if between is not None and within else None,
    }


def _spread(name: str, centred: np.ndarray) -> dict[str, Any]:
    squares = np.square(centred).sum(1)
    bound = float(np.sqrt(squares.max()))
    return {"domain": name, "n": len(centred), "variance": float(squares.mean()), "bound": bound}


def _mean_error(
    n: int, centred: Mapping[str, np.ndarray], domains: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    errors = np.stack([_errors(rows, n, seed, name) for name, rows in centred.items()])
    radii = [mean_radius(n, domain["variance"], domain["bound"]) for domain in domains]
    valid = [radius for radius in radii if radius is not None]
    return {
        "n": n,
        "error": float(errors.mean()),
        "error95": float(np.quantile(errors, 0.95, axis=1).max()),
        "radius": max(valid) if len(valid) == len(radii) else None,
    }


def _errors(centred: np.ndarray, n: int, seed: int, name: str) -> np.ndarray:
    """‖mean of n drawn points‖ of points whose mean is 0: [DRAWS]"""
    points = stream(seed, "consistency", name, n).integers(len(centred), size=(DRAWS, n))
    # How often each point was drawn, instead of the points themselves: n·d numbers a draw less.
    places = points + len(centred) * np.arange(DRAWS)[:, None]
    times = np.bincount(places.ravel(), minlength=DRAWS * len(centred)).reshape(DRAWS, -1)
    return np.asarray(np.linalg.norm(times @ centred / n, axis=1))


def _halves_apart(centred: np.ndarray, seed: int, name: str) -> float:
    """Mean distance between the μ of two disjoint random halves."""
    rng, half = stream(seed, "halves", name), len(centred) // 2
    orders = (rng.permutation(len(centred)) for _ in range(SPLITS))
    gaps = [centred[o[:half]].mean(0) - centred[o[half : 2 * half]].mean(0) for o in orders]
    return float(np.mean([np.linalg.norm(gap) for gap in gaps]))
