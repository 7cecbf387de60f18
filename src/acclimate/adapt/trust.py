"""How far to trust an adaptation, from its unlabelled images alone."""

from dataclasses import dataclass

import torch

from acclimate.adapt.reach import Reach
from acclimate.core.wording import count
from acclimate.learn.embeddings import DomainState, DomainTable

FEW_IMAGES = 20


@dataclass(frozen=True)
class Trust:
    """What is known of an adaptation without a single label."""

    n: int
    radius95: float | None  # Theorem 1, in units of the spread between training domains
    expected_error: float | None  # σ/√n, in the same units; one image tells nothing
    nearest_domain: str
    nearest_distance: float  # root mean square per dimension, in the same units
    typical_distance: float  # how far a domain like those in training may lie: see `Reach`
    warned_share: float  # of domains like those in training, how many lie farther and are warned of
    warnings: tuple[str, ...]


def judge(state: DomainState, table: DomainTable) -> Trust:
    """Distances are divided by √d: with a standardised Φ, 1 is the training domains' typical
    distance from their centre."""
    unit = len(state.total) ** 0.5
    means = table.means
    distances = (means - state.mean).norm(dim=1) / unit
    nearest = int(distances.argmin())
    between = torch.cdist(means, means) / unit
    reach = Reach.of(between.fill_diagonal_(float("inf")).min(dim=1).values.numpy())
    radius = state.radius()
    distance = float(distances[nearest])
    warnings = []
    if state.count < FEW_IMAGES:
        few = count(state.count, "image")
        warnings.append(f"only {few}: with {FEW_IMAGES} or more the adaptation is steadier")
    variance = state.sampling_variance
    if distance > reach.distance:
        warnings.append(reach.warning())
    return Trust(
        n=state.count,
        radius95=None if radius is None else radius / unit,
        expected_error=None if variance is None else (variance / state.count) ** 0.5 / unit,
        nearest_domain=table.names[nearest],
        nearest_distance=distance,
        typical_distance=reach.distance,
        warned_share=reach.beyond,
        warnings=tuple(warnings),
    )
