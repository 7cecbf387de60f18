"""Metrics of a classifier: how often it is right, class by class, and how good its probabilities
are."""

import numpy as np

from acclimate.records.predictions import Predictions

BINS = 15  # as Guo et al. (2017)


def top_1(rows: Predictions) -> float:
    return float((rows.rank == 1).mean())


def top_5(rows: Predictions) -> float | None:
    """None where there are no more than five classes: it would be 1 whatever was predicted."""
    return float((rows.rank <= 5).mean()) if len(rows.classes) > 5 else None


def worst_domain(rows: Predictions) -> float:
    """The lowest top-1 accuracy of a domain."""
    return min(top_1(rows.where(rows.domain == name)) for name in set(rows.domain))


def confusion(rows: Predictions) -> np.ndarray:
    """Number of rows [C labels, C predictions], as in scikit-learn."""
    count = len(rows.classes)
    pairs = np.bincount(rows.label * np.int64(count) + rows.predicted, minlength=count**2)
    return pairs.reshape(count, count)


def recall(rows: Predictions) -> np.ndarray:
    """[C]; NaN for a class without rows."""
    right, labelled, _ = _counts(rows)
    return _shares(right, labelled)


def precision(rows: Predictions) -> np.ndarray:
    """[C]; NaN for a class that is never predicted."""
    right, _, predicted = _counts(rows)
    return _shares(right, predicted)


def balanced_accuracy(rows: Predictions) -> float:
    """Mean recall of the classes that have rows."""
    return float(np.nanmean(recall(rows)))


def macro_f1(rows: Predictions) -> float:
    """Mean F1 of the classes that have rows or are predicted; F1 = 2 right / (rows + predicted)."""
    right, labelled, predicted = _counts(rows)
    occurs = labelled + predicted > 0
    return float((2 * right[occurs] / (labelled + predicted)[occurs]).mean())


def _counts(rows: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correct predictions, rows and predictions of each class: [C], [C], [C]"""
    right = rows.label[rows.rank == 1]
    columns = (right, rows.label, rows.predicted)
    first, second, third = (np.bincount(c, minlength=len(rows.classes)) for c in columns)
    return first, second, third


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def nll(rows: Predictions) -> float:
    """Mean negative log-likelihood of the labels, the cross-entropy."""
    return float(rows.loss.mean(dtype=np.float64))


def brier(rows: Predictions) -> float:
    """Mean of Σ over classes (p − one-hot label)² = Σ p² − 2 p_label + 1; from 0 to 2."""
    return float((rows.p_squares - 2 * rows.p_label.astype(np.float64) + 1).mean())


def calibration_error(rows: Predictions) -> float:
    """Σ over bins of confidence, equally wide, (share of rows) · |accuracy − mean confidence|."""
    sure = rows.p_predicted.astype(np.float64)
    bins = np.digitize(sure, np.linspace(0, 1, BINS + 1)[1:-1], right=True)
    beyond = np.bincount(bins, weights=(rows.rank == 1) - sure, minlength=BINS)
    return float(np.abs(beyond).sum() / len(rows))
