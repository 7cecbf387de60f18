"""The table that all statistics start from: one row for each method and domain of a role."""

from dataclasses import replace
from pathlib import Path

import pytest

from acclimate.results.comparison import (
    Expected,
    Observation,
    by_method,
    compare,
    complete_trials,
    mean_over,
    observations,
    pooled,
)
from acclimate.results.runs import Key, find_runs
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
    assert [(one.domain, one.key.method, one.value) for one in found] == expected
    assert {(one.dataset, one.key.algorithm, one.trial, one.images) for one in found} == {
        ("toy", "erm", 3, 100)
    }
    assert {one.data for one in found} == {"d1"}
    assert [one.others["top-5"] for one in found if one.key.method == "prior"] == [0.8] * (
        role == "test"
    )


ERM, CORAL = Key("erm", "none"), Key("coral", "none")


def test_runs_that_are_the_same_are_averaged() -> None:
    """Each of their numbers over those that have it; the rest is as in the first."""
    one = Observation("toy", ERM, "d", 2, "a", 0.5, {"top-5": 0.7, "nll": 1.0}, images=40)
    alike = [one, replace(one, value=0.6, others={"top-5": 0.9, "auroc": 0.4})]
    alike.append(replace(one, value=0.1, others={"top-5": None}))
    other, trial = replace(one, key=CORAL, others={"top-5": None}), ("d", 2)
    others = {"top-5": pytest.approx(0.8), "nll": 1.0, "auroc": 0.4}
    found = by_method([*alike, other, replace(other, domain="b")])
    assert found == {
        ERM: {(trial, "a"): replace(one, value=pytest.approx(0.4), others=others)},
        CORAL: {(trial, "a"): other, (trial, "b"): replace(other, domain="b")},
    }


def test_several_data_sets_as_one() -> None:
    """A trial covers all of them, whatever data they drew, and their domains are told apart."""
    rows = [Observation(data, ERM, f"digest {data}", 3, "a", 0.5) for data in ("x", "y")]
    assert pooled(rows) == [
        replace(rows[0], data="", domain="x: a"),
        replace(rows[1], data="", domain="y: a"),
    ]


def test_a_trial_over_all_data_sets_has_the_domains_of_each() -> None:
    """Also of a domain, as c of x, that only another method is planned for."""
    planned = [("x", ERM, "a"), ("x", CORAL, "c"), ("y", ERM, "a"), ("y", Key("erm", "prior"), "a")]
    expected = [Expected(name, key, "", 0, domain) for name, key, domain in planned]
    one = Observation("x", ERM, "", 0, "a", 0.5)
    whole = [one, replace(one, domain="c", value=0.7), replace(one, dataset="y", value=0.8)]
    for found, mean in ((whole, 0.7), ([whole[0], whole[2]], None)):
        every = compare(found, expected)[-1]
        assert every.columns == ("x", "y")
        assert [row.key for row in every.rows] == [ERM, CORAL, Key("erm", "prior")]
        average = every.rows[0].average
        assert (average and average.mean) == (mean and pytest.approx(mean))


def test_data_sets_count_equally_however_many_domains_they_have() -> None:
    one = Observation("x", ERM, "", 0, "a", 0.2)
    cells = [one, replace(one, domain="b", value=0.4), replace(one, dataset="y", value=0.9)]
    assert mean_over(cells) == pytest.approx((0.3 + 0.9) / 2)
    expected = [Expected("x", ERM, "", 0, name) for name in "ab"]
    scores = by_method([*cells[:2], replace(one, trial=1)])[ERM]
    assert list(complete_trials(scores, expected)) == [("", 0)]  # trial 1 lacks a domain
