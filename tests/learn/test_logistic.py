"""Logistic regression against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from acclimate.learn.logistic import fit_logistic

STRENGTHS = (100.0, 1.0)


def rows(classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Features of very different scales that lie far from 0."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 300)
    x = rng.normal(size=(300, 12)) + 1.5 * np.eye(classes, 12)[y]
    return (x * np.geomspace(0.1, 10, 12) + 5).astype("f4"), y


@pytest.mark.parametrize("place", range(2))
def test_a_path_ends_where_scikit_learn_does(place: int) -> None:
    x, y = rows()
    head = fit_logistic(torch.from_numpy(x), torch.from_numpy(y), 4, STRENGTHS)[place]
    settings = {"C": 1 / STRENGTHS[place], "solver": "newton-cholesky", "tol": 1e-10}
    theirs = LogisticRegression(**settings).fit(x.astype("f8"), y)
    ours = head(torch.from_numpy(x)).logits.softmax(1).numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(x), atol=0.01)


def test_strengths_come_out_in_descending_order() -> None:
    x, y = rows()
    weights = [
        float(head.last.weight.square().sum())
        for head in fit_logistic(torch.from_numpy(x), torch.from_numpy(y), 4, (1.0, 1e4, 10.0))
    ]
    assert weights == sorted(weights)


def test_a_class_without_rows_is_never_predicted() -> None:
    x, y = rows()
    (head,) = fit_logistic(torch.from_numpy(x), torch.from_numpy(y), 6, [1.0])
    logits = head(torch.from_numpy(x)).logits
    assert logits.isfinite().all()
    assert int(logits.argmax(1).max()) == 3
