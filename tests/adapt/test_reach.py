"""Extrapolation: beyond which distance a domain is warned of, and how many are."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.adapt.trust import Reach, Trust, judge
from acclimate.learn.embeddings import DomainState, DomainTable


@pytest.mark.parametrize(
    ("domains", "rank", "beyond"),
    # Below 19 domains the largest is all that there is; 0.95 · 41 = 38.95, 0.95 · 100 = 95.
    [(2, 2, 1 / 3), (12, 12, 1 / 13), (19, 19, 1 / 20), (40, 39, 2 / 41), (99, 95, 5 / 100)],
)
def test_ranks_by_hand(domains: int, rank: int, beyond: float) -> None:
    distances = np.random.default_rng(0).permutation(np.arange(1.0, domains + 1))
    assert Reach.of(distances) == Reach(float(rank), pytest.approx(beyond))


def test_one_far_training_domain_does_not_silence_the_warning() -> None:
    """39 domains at 0, 1, …, 38 and one at 1000: a domain at 60 is far all the same."""
    table = DomainTable({f"d{x}": of(float(x)) for x in (*range(39), 1000)})
    near, far = judge(of(38.5), table), judge(of(60.0), table)
    assert (near.typical_distance, near.warned_share) == (1.0, pytest.approx(2 / 41))
    assert (near.nearest_domain, near.nearest_distance, near.warnings) == ("d38", 0.5, ())
    assert ["95 %" in warning for warning in far.warnings] == [True]


def of(place: float) -> DomainState:
    """A domain of 30 images, all at `place` on a line."""
    return DomainState.empty("model", 1).updated(torch.full((30, 1), place))


def test_the_scatter_of_few_images_is_no_distance() -> None:
    """μ of n images lies σ/√n from the domain's on average: that much is taken off, squared."""
    one = Trust(n=4, warnings=(), nearest_domain="a", nearest_distance=0.5, expected_error=0.3)
    assert one.beyond_chance == pytest.approx(0.4)
    assert replace(one, expected_error=0.6).beyond_chance == 0.0
    assert replace(one, expected_error=None).beyond_chance == 0.5
    assert Trust(n=4, warnings=()).beyond_chance is None


def test_few_images_of_a_usual_domain_are_not_warned_of() -> None:
    """Six domains one apart; five images of the first, whose scatter is 2 in each of 4 dimensions,
    have a mean that lies 0.9 off on average, and more than a domain may."""
    generator = torch.Generator().manual_seed(0)
    empty = DomainState.empty("", 4)
    means = 0.5 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    table = DomainTable(
        {
            f"site-{number}": empty.updated(mean + 2 * torch.randn(4000, 4, generator=generator))
            for number, mean in enumerate(means)
        }
    )
    warned = 0
    for _ in range(40):
        few = empty.updated(means[0] + 2 * torch.randn(5, 4, generator=generator))
        warned += any("extrapolates" in warning for warning in judge(few, table).warnings)
    assert warned <= 8
    far = empty.updated(means[0] + 9 + 2 * torch.randn(5, 4, generator=generator))
    assert any("extrapolates" in warning for warning in judge(far, table).warnings)
