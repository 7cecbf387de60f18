"""How good the probabilities are."""

import numpy as np

from acclimate.records.predictions import Predictions

BINS = 15  # as Guo et al. (2017)


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
