"""The table that all statistics start from: one row for each method and domain of a role."""

from dataclasses import replace
from pathlib import Path

import pytest

from acclimate.results.observations import observations
from acclimate.results.runs import find_runs
from fixtures.run_folders import make_run, score


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("test", [("a", "none", 0.5), ("a", "prior", 0.6)]),
        ("val", [("v", "none", 0.7)]),
        ("train", [("t1", "none", 0.9)]),
    ],
)
def test_scores_of_a_role(
    tmp_path: Path, role: str, expected: list[tuple[str, str, float]]
) -> None:
    """A training domain by its test split where it has one; what was not scored is no row."""
    seen = score("t1", 0.8, role="train")
    make_run(
        tmp_path / "run",
        "erm",
        3,
        [
            replace(seen, split="val"),
            replace(seen, split="test", top1=0.9),
            score("v", 0.7, role="val"),
            score("a", 0.5),
            replace(score("a", 0.6), method="prior", top5=0.8),
            score("b", None),
        ],
    )
    found = observations(find_runs(tmp_path), role)
    assert [(one.domain, one.key.method, one.top1) for one in found] == expected
    assert {(one.dataset, one.key.algorithm, one.trial, one.images) for one in found} == {
        ("toy", "erm", 3, 100)
    }
    assert {one.data for one in found} == {"d1"}
    assert [one.top5 for one in found if one.key.method == "prior"] == [0.8] * (role == "test")
