"""Do label frequencies explain how predictions changed? On mixtures made by hand."""

import pytest
import torch

from acclimate.adapt.choice import explained_by_em, explained_share

CONFUSION = torch.tensor([[8.0, 1.0], [2.0, 4.0]])  # by true class in columns
PRIOR = torch.tensor([0.5, 0.5], dtype=torch.float64)


def rows(first: float, spread: float = 0.0) -> torch.Tensor:
    """Forty posteriors whose mean is (first, 1 - first)."""
    shares = torch.tensor([first - spread, first + spread] * 20, dtype=torch.float64)
    return torch.stack([shares, 1 - shares], 1)


def test_what_a_mixture_explains_to_the_full() -> None:
    # A class gets (0.8, 0.2), the other (0.2, 0.8): three quarters of the first give 0.65.
    target = torch.tensor([0.75, 0.25], dtype=torch.float64)
    assert explained_share(rows(0.65), PRIOR, target, CONFUSION) == pytest.approx(1.0)


def test_what_it_explains_in_part() -> None:
    # Predictions went from 0.5 to 0.7; the target accounts for 0.65: (0.05 / 0.2)² is left.
    target = torch.tensor([0.75, 0.25], dtype=torch.float64)
    found = explained_share(rows(0.7), PRIOR, target, CONFUSION)
    assert found == pytest.approx(1 - 0.0625)


def test_what_goes_the_other_way_explains_nothing() -> None:
    target = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert explained_share(rows(0.65), PRIOR, target, CONFUSION) == 0.0


def test_chance_is_not_held_against_it() -> None:
    # Each share has variance 0.4² · 40/39, so chance is 2 · 0.16 · 40/39 / 40.
    chance = 2 * 0.16 / 39
    target = torch.tensor([0.75, 0.25], dtype=torch.float64)
    found = explained_share(rows(0.7, 0.4), PRIOR, target, CONFUSION)
    assert found == 1.0  # what is left, 2 · 0.05², is less than chance
    wrong = explained_share(rows(0.7, 0.4), PRIOR, PRIOR, CONFUSION)
    assert wrong == pytest.approx(1 - (2 * 0.04 - chance) / (2 * 0.04 - chance))


def test_nothing_to_explain() -> None:
    target = torch.tensor([0.75, 0.25], dtype=torch.float64)
    assert explained_share(rows(0.5, 0.1), PRIOR, target, CONFUSION) is None
    assert explained_share(rows(0.9)[:1], PRIOR, target, CONFUSION) is None


def test_a_class_without_images_counts_as_recognised() -> None:
    confusion = torch.tensor([[8.0, 0.0], [2.0, 0.0]])
    # (0.8, 0.2) and (0, 1): all of the first give 0.8.
    target = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert explained_share(rows(0.8), PRIOR, target, confusion) == pytest.approx(1.0)


def test_by_em_a_label_shift_is_and_classes_that_blur_are_not() -> None:
    """Images of the first class that look half like the second: EM takes them all for the second,
    and predictions do not change as that many images of the second would change them."""
    sure = torch.eye(3, dtype=torch.float64)
    prior = torch.full((3,), 1 / 3, dtype=torch.float64)
    shifted = explained_by_em(sure[[0] * 250 + [1] * 25 + [2] * 25], prior, sure)
    blurred = torch.cat([0.5 * (sure[[0] * 100] + sure[[1] * 100]), sure[[1, 2] * 100]])
    found = explained_by_em(blurred, prior, sure)
    assert shifted is not None and found is not None
    assert shifted > 0.95
    assert found < 0.7
