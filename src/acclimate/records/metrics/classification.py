"""Metrics of a classifier: how often it is right, class by class, and how good its probabilities
are."""

import numpy as np

from acclimate.records.predictions import Predictions

BINS = 15  # as Guo et al. (2017)
SURE = 0.9  # confidence from which an answer counts as sure


def top_1(rows: Predictions) -> float:
    return float((rows.rank == 1).mean())


def top_5(rows: Predictions) -> float | None:
    """None where there are no more than five classes: it would be 1 whatever was predicted."""
    return float((rows.rank <= 5).mean()) if len(rows.classes) > 5 else None


def worst_domain(rows: Predictions) -> float:
    """The lowest top-1 accuracy of a domain."""
    return min(top_1(rows.where(rows.domain == name)) for name in set(rows.domain))


def worst_group(rows: Predictions) -> float:
    """The lowest top-1 accuracy of the rows of one class in one domain."""
    parts = (rows.where(rows.domain == name) for name in set(rows.domain))
    return min(float(np.nanmin(recall(part))) for part in parts)


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


def f1(rows: Predictions) -> np.ndarray:
    """[C]: 2 right / (rows + predicted); NaN for a class that has no rows and is not predicted."""
    right, labelled, predicted = _counts(rows)
    return _shares(2 * right, labelled + predicted)


def macro_f1(rows: Predictions) -> float:
    """Mean F1 of the classes that have rows or are predicted."""
    return float(np.nanmean(f1(rows)))


def _counts(rows: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correct predictions, rows and predictions of each class: [C], [C], [C]"""
    right = rows.label[rows.rank == 1]
    columns = (right, rows.label, rows.predicted)
    first, second, third = (np.bincount(c, minlength=len(rows.classes)) for c in columns)
    return first, second, third


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def auroc(rows: Predictions) -> float | None:
    """The chance that a row of the second class has a higher probability of it than a row of the
    first class has; ties count half. None unless there are two classes, with rows of both, and all
    probabilities are numbers."""
    positives = int(rows.label.sum())
    defined = len(rows.classes) == 2 and not np.isnan(rows.p_predicted).any()
    if not defined or not 0 < positives < len(rows):
        return None
    # Not by `p_label`: of two rows alike but for the label, rounding would break the tie.
    sure = rows.p_predicted.astype(np.float64)
    _, place = np.unique(np.where(rows.predicted == 1, sure, 1 - sure), return_inverse=True)
    first, second = (np.bincount(place[rows.label == one], minlength=len(rows)) for one in (0, 1))
    below = np.cumsum(first) - first / 2
    return float(second @ below / (positives * (len(rows) - positives)))


def coverage(rows: Predictions) -> float:
    """Share of the rows whose prediction has a probability of `SURE` or more; NaN where one has
    none."""
    p = rows.p_predicted
    return float(np.where(np.isnan(p), np.nan, p >= np.float32(SURE)).mean())


def selective_accuracy(rows: Predictions) -> float | None:
    """Accuracy of those rows; None where there are none."""
    sure = rows.where(rows.p_predicted >= np.float32(SURE))
    return top_1(sure) if len(sure) else None


def nll(rows: Predictions) -> float:
    """Mean negative log-likelihood of the labels, the cross-entropy."""
    return float(rows.loss.mean(dtype=np.float64))


def brier(rows: Predictions) -> float:
    """Mean of Σ over classes (p − one-hot label)² = Σ p² − 2 p_label + 1; from 0 to 2."""
    return float((rows.p_squares - 2 * rows.p_label.astype(np.float64) + 1).mean())


def calibration_error(rows: Predictions) -> float:
    """Σ over bins of confidence, equally wide, (share of rows) · |accuracy − mean confidence|."""
    _, right, sure = calibration(rows)
    return float(np.abs(right - sure).sum() / len(rows))


def calibration(rows: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each bin of confidence the rows, how many are right, and the sum of their confidences:
    [BINS], [BINS], [BINS]"""
    sure = rows.p_predicted.astype(np.float64)
    bins = np.digitize(sure, np.linspace(0, 1, BINS + 1)[1:-1], right=True)
    weights = np.ones(len(rows)), rows.rank == 1, sure
    first, second, third = (np.bincount(bins, weights=w, minlength=BINS) for w in weights)
    return first, second, third
