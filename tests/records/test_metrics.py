"""Every metric by hand, on six rows of two domains and three classes."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from acclimate.config import metric_of
from acclimate.core.errors import UnknownName
from acclimate.records.metrics import METRICS, find_metric, measured, metric_values
from acclimate.records.predictions import Predictions
from fixtures.errors import refused


def table(
    label: list[int], predicted: list[int], *, classes: int = 3, **columns: list[Any]
) -> Predictions:
    """Rows of domain d, of which wrong ones have rank 2; `columns` say otherwise."""
    n = len(label)
    rank = [1 if one == other else 2 for one, other in zip(label, predicted, strict=True)]
    numbers = {"p_predicted": [0.5] * n, "p_label": [0.5] * n, "p_squares": [0.4] * n}
    floats = numbers | {"loss": [0.7] * n} | columns
    names = {key: columns.get(key, ["d"] * n) for key in ("domain", "split", "method")}
    whole = {"label": label, "predicted": predicted, "rank": columns.get("rank", rank)}
    return Predictions(
        tuple("abcdefgh"[:classes]),
        row=np.arange(n),
        **{key: np.array(value, dtype=object) for key, value in names.items()},
        **{key: np.array(value, dtype=np.int32) for key, value in whole.items()},
        **{key: np.array(floats[key], dtype=np.float32) for key in (*numbers, "loss")},
    )


# Class a: 3 rows, 2 of them right; b: 2 rows, 1 right; c: 1 row, wrong, and predicted once.
ROWS = table([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 0], domain=["p", "q", "p", "q", "p", "p"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("top-1", 3 / 6),
        ("balanced-accuracy", (2 / 3 + 1 / 2 + 0) / 3),
        # F1 = 2 right / (rows + predictions): 4/6, 2/4, 0/2.
        ("macro-f1", (4 / 6 + 2 / 4 + 0) / 3),
        ("precision", [2 / 3, 1 / 2, 0]),
        ("recall", [2 / 3, 1 / 2, 0]),
        ("confusion", [[2, 1, 0], [0, 1, 1], [1, 0, 0]]),
        ("worst-domain", 1 / 4),  # p: the first row alone; q: both
        ("worst-group", 0),  # the rows of b in p, and of c in p
        ("f1", [4 / 6, 2 / 4, 0]),
        ("coverage-0.9", 0),
    ],
)
def test_by_hand(name: str, expected: Any) -> None:
    np.testing.assert_allclose(METRICS[name].of(ROWS), expected)


def test_the_worst_group_is_a_class_in_a_domain() -> None:
    """Class a: 1/2 right in p, 2/2 in q; class b: 3/4 in p, and no rows in q."""
    labels, predicted = [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1, 1, 0]
    rows = table(labels, predicted, domain=["p", "p", "q", "q", "p", "p", "p", "p"])
    assert METRICS["worst-group"].of(rows) == 1 / 2
    assert METRICS["worst-group"].of(rows.where(rows.domain == "q")) == 1.0
    assert METRICS["worst-domain"].of(rows) == 4 / 6


def test_coverage_by_hand() -> None:
    """Three of four rows are sure, one of them at the threshold itself; two of those are right."""
    rows = table([0, 0, 0, 1], [0, 1, 0, 1], p_predicted=[0.9, 0.99, 1.0, 0.89])
    assert METRICS["coverage-0.9"].of(rows) == 3 / 4
    assert METRICS["selective-accuracy-0.9"].of(rows) == 2 / 3
    assert METRICS["selective-accuracy-0.9"].of(ROWS) is None


def two_classes(label: list[int], p: list[float]) -> Predictions:
    """Rows with the probability `p` of the second of two classes."""
    predicted = [int(one > 0.5) for one in p]
    sure = [max(one, 1 - one) for one in p]
    return table(label, predicted, classes=2, p_predicted=sure)


def test_auroc_by_hand() -> None:
    """Pairs: 0.8 beats both; 0.3 beats 0.1 and ties with 0.3."""
    rows = two_classes([0, 0, 1, 1], [0.1, 0.3, 0.3, 0.8])
    assert METRICS["auroc"].of(rows) == (2 + 1 + 0.5) / 4
    assert METRICS["auroc"].of(ROWS) is None  # three classes
    assert METRICS["auroc"].of(rows.where(rows.label == 1)) is None


@pytest.mark.parametrize("places", [1, 2, 6])
def test_auroc_is_that_of_scikit_learn(places: int) -> None:
    """With many ties, some and hardly any."""
    rng = np.random.default_rng(places)
    label = rng.integers(0, 2, 300)
    p = np.clip(0.35 + 0.2 * label + 0.25 * rng.normal(size=300), 0, 1).round(places)
    rows = two_classes(label.tolist(), p.tolist())
    assert METRICS["auroc"].of(rows) == pytest.approx(roc_auc_score(label, p), abs=1e-12)


def test_what_is_better() -> None:
    """A loss or an error is better where it is lower, and the gap shows what was measured."""
    lower = {name for name, metric in METRICS.items() if metric.better == "lower"}
    assert lower == {"nll", "brier", "ece"}
    assert all(METRICS[name].sign == (-1 if name in lower else 1) for name in METRICS)
    assert METRICS["nll"].write(1.23456) == "1.235" and METRICS["nll"].write_gap(-0.05) == "−0.050"
    assert METRICS["ece"].write(0.0312) == "3.1" and METRICS["ece"].write_gap(0.0312) == "+3.1"
    assert METRICS["nll"].write_gap(-1e-9) == "0.000" and METRICS["brier"].write(None) == "–"
    assert [measured(name) for name in ("top-1", "macro-f1", "ece", "nll")] == [
        "accuracy, %",
        "macro-f1, %",
        "ece, % (lower is better)",
        "nll (lower is better)",
    ]


def test_what_rules_and_tables_can_go_by() -> None:
    assert find_metric("macro-f1") is METRICS["macro-f1"]
    with refused(UnknownName, "macro-f2", "macro-f1"):
        find_metric("macro-f2")
    with refused(UnknownName, "confusion"):
        find_metric("confusion")  # a table, no number
    assert metric_of({"train": {"metric": "nll"}}) == "nll"
    assert metric_of({"train": {}}) == metric_of({}) == "top-1"


def test_top_5_says_something_from_six_classes_on() -> None:
    ranks = [1, 1, 2, 5, 6, 7]
    six = table([0] * 6, [0, 0, 1, 1, 1, 1], classes=7, rank=ranks)
    assert METRICS["top-5"].of(six) == 4 / 6
    assert METRICS["top-5"].of(ROWS) is None


def test_nll_and_brier_by_hand() -> None:
    """Two rows of three classes: (0.7, 0.2, 0.1) of class a, and (0.5, 0.3, 0.2) of class b."""
    rows = table(
        [0, 1],
        [0, 0],
        p_label=[0.7, 0.3],
        p_squares=[0.49 + 0.04 + 0.01, 0.25 + 0.09 + 0.04],
        loss=[-np.log(0.7), -np.log(0.3)],
    )
    assert METRICS["nll"].of(rows) == pytest.approx(-(np.log(0.7) + np.log(0.3)) / 2, rel=1e-6)
    first = (1 - 0.7) ** 2 + 0.2**2 + 0.1**2
    second = 0.5**2 + (1 - 0.3) ** 2 + 0.2**2
    assert METRICS["brier"].of(rows) == pytest.approx((first + second) / 2, rel=1e-6)


def test_calibration_error_by_hand() -> None:
    """Of four rows near 0.75 (one bin) two are right, and the one at 1 (the last bin) is."""
    rows = table([0] * 5, [0, 0, 1, 1, 0], p_predicted=[0.74, 0.76, 0.76, 0.74, 1.0])
    assert METRICS["ece"].of(rows) == pytest.approx(4 / 5 * 0.25 + 1 / 5 * 0, rel=1e-6)
    # Errors of two bins do not cancel each other.
    apart = table([0, 0], [0, 1], p_predicted=[0.6, 0.4])
    assert METRICS["ece"].of(apart) == pytest.approx((0.4 + 0.4) / 2, rel=1e-6)


def test_classes_that_do_not_occur() -> None:
    """Class c has no rows and is not predicted: it counts in no mean."""
    rows = table([0, 0, 1], [0, 1, 1])
    assert np.isnan(METRICS["recall"].of(rows)[2]) and np.isnan(METRICS["precision"].of(rows)[2])
    assert METRICS["balanced-accuracy"].of(rows) == (1 / 2 + 1) / 2
    assert METRICS["macro-f1"].of(rows) == pytest.approx(2 / 3)


def test_what_a_score_says() -> None:
    """One number each; None without rows, and where it is not finite."""
    values = metric_values(ROWS)
    assert list(values) == [name for name, metric in METRICS.items() if metric.in_scores]
    nothing = {"top-5", "auroc", "selective-accuracy-0.9"}  # of three classes, and none is sure
    assert {name for name, value in values.items() if value is None} == nothing
    assert values["top-1"] == 0.5
    assert all(type(value) is float for name, value in values.items() if name not in nothing)
    none = np.zeros(6, dtype=bool)
    assert metric_values(ROWS.where(none)) == dict.fromkeys(values)
    broken = table(
        [0, 1], [0, 0], **dict.fromkeys(("p_predicted", "p_squares", "loss"), [np.nan] * 2)
    )
    assert {name for name, value in metric_values(broken).items() if value is not None} == {
        "top-1",
        "macro-f1",
        "balanced-accuracy",
        "worst-group",
    }
    assert METRICS["auroc"].of(two_classes([0, 1], [0.5, np.nan])) is None


@pytest.mark.parametrize("name", METRICS)
def test_every_metric(name: str) -> None:
    """It says what it is, and does not depend on the order of rows."""
    metric, order = METRICS[name], np.array([4, 2, 0, 5, 1, 3])
    assert metric.about and not metric.about.endswith(".")
    if metric.of(ROWS) is None:
        assert metric.of(ROWS.where(order)) is None
    else:
        np.testing.assert_allclose(metric.of(ROWS.where(order)), metric.of(ROWS))
