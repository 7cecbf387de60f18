"""Class by class, and means in which rare classes count as much as frequent ones."""

import numpy as np

from acclimate.records.predictions import Predictions


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
    """Of each class: rows predicted rightly, rows, and predictions: [C], [C], [C]"""
    right = rows.label[rows.rank == 1]
    columns = (right, rows.label, rows.predicted)
    first, second, third = (np.bincount(c, minlength=len(rows.classes)) for c in columns)
    return first, second, third


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
