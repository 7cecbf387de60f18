"""How far μ from few images lies from μ of all of them, and how far domains lie from each other.

Theorem 1 of the paper calls the first consistency; the second is expressivity. Both are measured
on the points that make the training domains' μ, which a run embeds anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.randomness import stream
from acclimate.learn.theory import mean_radius

MOST_DOMAINS, MOST_POINTS = 8, 1000  # of 1024 float32 numbers each: 32 MB
DRAWS, SPLITS = 200, 20
DELTA = 0.05


@dataclass(frozen=True, kw_only=True)
class DomainSpread:
    """The points of a domain: how many, σ² = mean ‖Φ − μ‖² and B = largest ‖Φ − μ‖."""

    domain: str
    n: int
    variance: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class MeanError:
    """‖mean of n points − mean of all‖: on average over domains, the 95 % quantile of the worst
    domain, and a radius that Theorem 1 gives for every domain (None where it says nothing)."""

    n: int
    error: float
    error95: float
    radius: float | None


@dataclass(frozen=True, kw_only=True)
class Consistency:
    points: tuple[MeanError, ...]
    domains: tuple[DomainSpread, ...]
    between: float | None  # mean distance of two domains' μ
    within: float | None  # mean distance of the μ of two halves of a domain

    @property
    def ratio(self) -> float | None:
        """Above 1: domains differ by more than the chance of which images make their μ."""
        if self.between is None or not self.within:
            return None
        return self.between / self.within

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def measure(phi_by_domain: Mapping[str, np.ndarray], seed: int) -> Consistency:
    """From the Φ [n, d] of each domain's points.

    Points are drawn with replacement: the domain's points are then the true distribution, and
    Theorem 1 holds for it as it stands. A domain smaller than n is drawn from all the same.
    """
    phi = {name: np.asarray(rows, np.float64) for name, rows in phi_by_domain.items() if len(rows)}
    means = {name: rows.mean(0) for name, rows in phi.items()}
    around = {name: rows - means[name] for name, rows in phi.items()}
    domains = tuple(_spread(name, rows) for name, rows in around.items())
    sizes = _sizes(max((spread.n for spread in domains), default=0))
    pairs = [float(np.linalg.norm(a - b)) for a, b in combinations(means.values(), 2)]
    halves = [_halves_apart(rows, seed, name) for name, rows in around.items() if len(rows) > 1]
    return Consistency(
        points=tuple(_mean_error(n, around, domains, seed) for n in sizes),
        domains=domains,
        between=float(np.mean(pairs)) if pairs else None,
        within=float(np.mean(halves)) if halves else None,
    )


def _sizes(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to `most`."""
    decades = len(str(most))
    return [n for d in range(decades) for n in (10**d, 2 * 10**d, 5 * 10**d) if n <= most]


def _spread(name: str, around: np.ndarray) -> DomainSpread:
    squares = np.square(around).sum(1)
    return DomainSpread(
        domain=name,
        n=len(around),
        variance=float(squares.mean()),
        bound=float(np.sqrt(squares.max())),
    )


def _mean_error(
    n: int, around: Mapping[str, np.ndarray], domains: Sequence[DomainSpread], seed: int
) -> MeanError:
    errors = np.stack([_errors(rows, n, seed, name) for name, rows in around.items()])
    radii = [mean_radius(n, d.variance, d.bound, delta=DELTA) for d in domains]
    valid = [radius for radius in radii if radius is not None]
    return MeanError(
        n=n,
        error=float(errors.mean()),
        error95=float(np.quantile(errors, 0.95, axis=1).max()),
        radius=max(valid) if len(valid) == len(radii) else None,
    )


def _errors(around: np.ndarray, n: int, seed: int, name: str) -> np.ndarray:
    """‖mean of n drawn points‖ of points whose mean is 0: [DRAWS]"""
    drawn = stream(seed, "consistency", name, n).integers(len(around), size=(DRAWS, n))
    # How often each point was drawn, instead of the points themselves: n·d numbers a draw less.
    places = drawn + len(around) * np.arange(DRAWS)[:, None]
    times = np.bincount(places.ravel(), minlength=DRAWS * len(around)).reshape(DRAWS, -1)
    return np.asarray(np.linalg.norm(times @ around / n, axis=1))


def _halves_apart(around: np.ndarray, seed: int, name: str) -> float:
    """Mean distance between the μ of two disjoint random halves."""
    rng, half = stream(seed, "halves", name), len(around) // 2
    distances = []
    for _ in range(SPLITS):
        order = rng.permutation(len(around))
        one, two = around[order[:half]], around[order[half : 2 * half]]
        distances.append(np.linalg.norm(one.mean(0) - two.mean(0)))
    return float(np.mean(distances))


def measured_domains(names: Sequence[str], seed: int) -> frozenset[str]:
    """A random few of many domains."""
    order = stream(seed, "consistency", "domains").permutation(len(names))
    return frozenset(names[place] for place in order[:MOST_DOMAINS])


class Sample:
    """Φ of at most `MOST_POINTS` random rows of a domain, noted as they go by."""

    def __init__(self, rows: np.ndarray, seed: int, domain: str) -> None:
        self.rows = stream(seed, "consistency", "rows", domain).permutation(rows)[:MOST_POINTS]
        self.noted: list[Tensor] = []

    def __call__(self, rows: np.ndarray, phi: Tensor) -> None:
        wanted = torch.from_numpy(np.isin(rows, self.rows)).to(phi.device)
        self.noted.append(phi[wanted].float().cpu())

    def whole(self, dim: int, world: World) -> Tensor:
        """What all processes noted: [n, dim] float64, in the order of the rows."""
        own = torch.cat([torch.empty(0, dim), *self.noted])
        most = int(world.largest(torch.tensor([len(own)], device=world.device))[0])
        padded = torch.zeros(most, dim + 1)  # the last number tells rows from padding
        padded[: len(own), :-1], padded[: len(own), -1] = own, 1
        everyone = world.gather(padded.to(world.device)).cpu()
        return everyone[everyone[:, -1] == 1, :-1].double()
