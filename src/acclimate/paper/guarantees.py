"""The paper's theorems, worked out for what a run measured of its domain embedding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from acclimate.config import AlgorithmName
from acclimate.core.errors import ConfigError, DamagedFile, RunError, damage_is
from acclimate.core.files import Fields
from acclimate.learn.consistency import mean_radius
from acclimate.paper.consistency import as_adapt_says, unit_of_adapt
from acclimate.paper.theorems import best_split, images_needed, risk_terms
from acclimate.records.folder import CONSISTENCY, RunFolder


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of the theorems; Theorem 2 for (domains, points), or for ways to split `budget`
    images."""

    radius: float | None = None  # how near μ should be; unset: half the distance between domains
    delta: float = 0.05  # the share of cases that may be worse
    domains: int | None = None
    points: int | None = None
    budget: int | None = None
    ratio: float = 1.0  # constant of Theorem 2's first term over that of its second

    def __post_init__(self) -> None:
        radius, delta, ratio = self.radius, self.delta, self.ratio
        if radius is not None and not (radius > 0 and math.isfinite(radius)):
            raise ConfigError(f"--radius {radius:g}: a distance must be above 0")
        if not 0 < delta < 1:
            raise ConfigError(
                f"--delta {delta:g}: a share of cases lies between 0 and 1, e.g. 0.05"
            )
        if (self.domains is None) != (self.points is None):
            raise ConfigError("--domains and --points belong together; give both, or --budget")
        if self.budget is not None and self.domains is not None:
            raise ConfigError("--budget splits the images itself; leave out --domains and --points")
        for name in ("domains", "points", "budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value}: give 1 or more")
        if not (ratio > 0 and math.isfinite(ratio)):
            raise ConfigError(f"--ratio {ratio:g}: a ratio of constants must be above 0")
        if self.budget is not None and delta > math.exp(-1):
            raise ConfigError(f"--delta {delta:g}: with --budget it must be 0.36 or less")


def answer(measured: dict[str, Any], question: Question) -> dict[str, Any]:
    """Theorem 1 for every training domain and for the measured curve; Theorem 2 where it is asked
    for, with the best number of domains where a budget is split."""
    facts = theorem_1(measured, question.radius, question.delta)
    splits: list[tuple[int, float]] = []
    if question.domains is not None and question.points is not None:
        splits = [(question.domains, question.points)]
    elif question.budget is not None:
        variance = _relative_variance(facts)
        best = best_split(
            question.budget, ratio=question.ratio, variance=variance, delta=question.delta
        )
        facts["best_domains"] = best
        numbers = sorted({*round_numbers(question.budget), best})
        splits = [(n, question.budget / n) for n in numbers]
    facts["theorem_2"] = theorem_2(facts, splits, question.ratio, question.delta)
    return facts


def theorem_1(measured: dict[str, Any], radius: float | None, delta: float) -> dict[str, Any]:
    """How well μ is known, and how many images it takes to know it within `radius`."""
    between, within = measured.get("between"), measured.get("within")
    target = radius if radius is not None else between / 2 if between else None
    rows = [
        {
            **row,
            "radius": mean_radius(row["n"], row["variance"], row["bound"], delta=delta),
            "images": None
            if target is None
            else images_needed(target, row["variance"], row["bound"], delta=delta),
        }
        for row in measured["domains"]
    ]
    curve = [
        {**point, "radius": _worst_radius(rows, point["n"], delta)} for point in measured["points"]
    ]
    return {
        "wanted_radius": target,
        "domains": rows,
        "points": curve,
        "valid_from": max(
            images_needed(math.inf, row["variance"], row["bound"], delta=delta) for row in rows
        ),
        "between": between,
        "within": within,
    }


def _worst_radius(rows: list[dict[str, Any]], n: int, delta: float) -> float | None:
    """What Theorem 1 gives for every one of the domains, or nothing."""
    radii = [mean_radius(n, row["variance"], row["bound"], delta=delta) for row in rows]
    known = [radius for radius in radii if radius is not None]
    return max(known) if len(known) == len(radii) else None


def theorem_2(
    facts: dict[str, Any], splits: Sequence[tuple[int, float]], ratio: float, delta: float
) -> list[dict[str, float]]:
    """Both terms for each (domains, images of each), and their sum by the ratio of constants."""
    rows = []
    for domains, points in splits:
        terms = risk_terms(domains, points, variance=_relative_variance(facts), delta=delta)
        rows.append(
            {
                "domains": domains,
                "points": points,
                "of_points": terms.of_points,
                "of_domains": terms.of_domains,
                "sum": terms.weighted(ratio),
            }
        )
    return rows


def _relative_variance(facts: dict[str, Any]) -> float:
    """Mean σ² in squared distances between domains, lest the scale of Φ decide: it is arbitrary."""
    variance = fmean(row["variance"] for row in facts["domains"])
    return variance / facts["between"] ** 2 if facts["between"] else variance


def round_numbers(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to `most`."""
    return [
        n
        for power in range(len(str(most)))
        for n in (k * 10**power for k in (1, 2, 5))
        if n <= most
    ]


def read_consistency(run: Path) -> dict[str, Any]:
    """What a run measured of its domain embedding."""
    folder = RunFolder(run)
    algorithm = folder.algorithm
    name = AlgorithmName.of(algorithm)
    if not name.adaptive:
        raise RunError(
            f"{run}: {algorithm} has no domain embedding to speak of; "
            f"name a run of an adaptive algorithm, such as {name.adaptive_version}"
        )
    path, stored = run / CONSISTENCY, folder.consistency()
    if stored is None:
        raise RunError(f"{run} has no {path.name}; finish the run by repeating its command")
    with damage_is(RunError, "restore it, or train again"):
        _require_measured(Fields(stored, path))
    return as_adapt_says(stored, unit_of_adapt(run)) or {}


def _require_measured(measured: Fields) -> None:
    """That theorems can be worked out for it: numbers that are finite, and none below 0."""
    domains, points = measured.tables("domains"), measured.tables("points")
    numbers = [row.number(name) for row in domains for name in ("variance", "bound")]
    numbers += [point.number(name) for point in points for name in ("error", "error95")]
    numbers += [measured.number(name) for name in ("between", "within") if name in measured]
    for row in (*domains, *points):
        row.whole("n", least=1)
    for row in domains:
        row.text("domain")
    if not domains or min(numbers) < 0:
        raise DamagedFile(measured.path)
