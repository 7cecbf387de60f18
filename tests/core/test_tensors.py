"""What is found out about tensors of weights."""

import pytest
import torch

from acclimate.core.tensors import all_finite

LARGE = torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], True),
        ([0.0, -1.5], True),
        ([LARGE, LARGE], True),  # though their sum is not
        ([LARGE, LARGE, -LARGE], True),
        ([1.0, float("nan")], False),
        ([float("inf"), 0.0], False),
        ([float("inf"), float("-inf")], False),
    ],
)
def test_all_finite(values: list[float], expected: bool) -> None:
    numbers = torch.tensor([0] + [1] * 9)
    assert all_finite([torch.zeros(2), torch.tensor(values), numbers]) is expected


def test_sums_of_half_numbers_overflow() -> None:
    assert all_finite([torch.full((9000,), 60000.0, dtype=torch.float16)])
    assert not all_finite([torch.full((9,), float("inf"), dtype=torch.float16)])
