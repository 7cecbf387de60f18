"""THE table of metrics: functions from `Predictions` to numbers."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from acclimate.core.errors import require_known
from acclimate.core.text import decimal, percent, signed
from acclimate.records.metrics import classification as of
from acclimate.records.predictions import Predictions

__all__ = ["METRICS", "TOP_1", "Metric", "find_metric", "measured", "metric_values"]
TOP_1 = "top-1"  # what a table shows and a rule goes by unless another metric is asked for


class Metric(NamedTuple):
    of: Callable[[Predictions], Any]  # at least one row -> a number, None where it means nothing
    about: str
    in_scores: bool = True  # whether it is one number, and one domain is enough for it
    better: Literal["higher", "lower"] = "higher"
    percent: bool = True  # how its values are shown: in percent, or as they are

    @property
    def sign(self) -> int:
        """1 or -1: of values times it, the largest is the best."""
        return 1 if self.better == "higher" else -1

    @property
    def scale(self) -> int:
        """What values are multiplied with on an axis."""
        return 100 if self.percent else 1

    @property
    def unit(self) -> str:
        """What follows a value in a sentence."""
        return " %" if self.percent else ""

    def write(self, value: float | None) -> str:
        """`61.5` or `0.615`, without the unit; a dash for a missing value."""
        return percent(value) if self.percent else decimal(value)

    def write_gap(self, value: float) -> str:
        """A difference of two values with its sign: `+5.9` or `−0.059`."""
        return signed(value, self.write)


METRICS: dict[str, Metric] = {
    "top-1": Metric(of.top_1, "share of rows whose label is the prediction"),
    "top-5": Metric(of.top_5, "share of rows whose label is among the five likeliest classes"),
    "macro-f1": Metric(of.macro_f1, "mean over classes of the F1 score"),
    "balanced-accuracy": Metric(of.balanced_accuracy, "mean over classes of the recall"),
    "worst-group": Metric(of.worst_group, "lowest top-1 of a class in a domain"),
    "auroc": Metric(of.auroc, "area under the ROC curve, of two classes"),
    "coverage-0.9": Metric(of.coverage, "share of rows with a confidence of at least 0.9"),
    "selective-accuracy-0.9": Metric(of.selective_accuracy, "top-1 of the rows that sure"),
    "nll": Metric(of.nll, "mean cross-entropy", better="lower", percent=False),
    "brier": Metric(of.brier, "squared error of probabilities", better="lower", percent=False),
    "ece": Metric(of.calibration_error, "calibration error, 15 bins", better="lower"),
    "precision": Metric(of.precision, "share of each class's predictions that are right", False),
    "recall": Metric(of.recall, "share of each class's rows that are predicted", False),
    "f1": Metric(of.f1, "harmonic mean of each class's precision and recall", False),
    "confusion": Metric(of.confusion, "rows by label and prediction", False),
    "worst-domain": Metric(of.worst_domain, "top-1 of the domain where it is lowest", False),
}


def find_metric(name: str) -> Metric:
    """A metric that is in every score, so that rules and tables can go by it."""
    scored = [known for known, metric in METRICS.items() if metric.in_scores]
    require_known(name, scored, f"there is no metric '{name}' to compare by")
    return METRICS[name]


def measured(name: str) -> str:
    """What values of a metric are, for an axis: `accuracy, %`, `nll (lower is better)`."""
    metric, title = METRICS[name], "accuracy" if name == TOP_1 else name
    return title + ", %" * metric.percent + " (lower is better)" * (metric.sign < 0)


def metric_values(rows: Predictions) -> dict[str, float | None]:
    """Every metric that is one number, of the rows of one domain; None where there are no rows."""
    single = {name: metric for name, metric in METRICS.items() if metric.in_scores}
    if not len(rows):
        return dict.fromkeys(single)
    values = {name: metric.of(rows) for name, metric in single.items()}
    return {name: v if v is not None and math.isfinite(v) else None for name, v in values.items()}
