"""THE table of metrics: functions from `Predictions` to numbers."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from acclimate.records.metrics.classification import (
    balanced_accuracy,
    brier,
    calibration_error,
    confusion,
    macro_f1,
    nll,
    precision,
    recall,
    top_1,
    top_5,
    worst_domain,
)
from acclimate.records.predictions import Predictions

__all__ = ["METRICS", "Metric", "metric_values"]


class Metric(NamedTuple):
    of: Callable[[Predictions], Any]  # at least one row -> a number, None where it means nothing
    about: str
    in_scores: bool = True  # whether it is one number, and one domain is enough for it


METRICS: dict[str, Metric] = {
    "top-1": Metric(top_1, "share of rows whose label is the prediction"),
    "top-5": Metric(top_5, "share of rows whose label is among the five likeliest classes"),
    "macro-f1": Metric(macro_f1, "mean over classes of the F1 score"),
    "balanced-accuracy": Metric(balanced_accuracy, "mean over classes of the recall"),
    "nll": Metric(nll, "mean cross-entropy"),
    "brier": Metric(brier, "mean squared distance of the probabilities from the label"),
    "ece": Metric(calibration_error, "expected calibration error, 15 bins of confidence"),
    "precision": Metric(precision, "share of each class's predictions that are right", False),
    "recall": Metric(recall, "share of each class's rows that are predicted", False),
    "confusion": Metric(confusion, "rows by label and prediction", False),
    "worst-domain": Metric(worst_domain, "top-1 of the domain where it is lowest", False),
}


def metric_values(rows: Predictions) -> dict[str, float | None]:
    """Every metric that is one number, of the rows of one domain; None where there are no rows."""
    single = {name: metric for name, metric in METRICS.items() if metric.in_scores}
    if not len(rows):
        return dict.fromkeys(single)
    values = {name: metric.of(rows) for name, metric in single.items()}
    return {name: v if v is not None and math.isfinite(v) else None for name, v in values.items()}
