"""What both classifiers for scikit-learn share: labels as they came, and domains as metadata.

`predict`, `predict_proba` and `score` take rows without their domain, for which the model is not
adapted, or with `domains` [n]: each domain is then adapted to from its own rows, unlabelled.
`domains` is metadata in scikit-learn's sense: `set_fit_request(domains=True)` and the like route it
through pipelines, searches and cross-validation.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from acclimate.core.errors import ConfigError, RunError

Probabilities = Callable[[Any], np.ndarray]
NO_LABELS = "fit requires y to be passed, but the target y is None; give "


class NotFitted(RunError, NotFittedError):  # type: ignore[misc]
    """A classifier that has learned nothing yet."""


class DomainClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Subclasses call `_know_labels` in `fit`, and say what a domain's rows make of them."""

    classes_: np.ndarray
    _labels: np.ndarray  # the same, in the order of the model's classes

    @abstractmethod
    def _unadapted(self) -> Probabilities:
        """The model for rows of no domain in particular: rows -> [n, C], as `classes_`."""

    @abstractmethod
    def _adapted_to(self, rows: Any) -> Probabilities:
        """The model adapted to the domain of these rows."""

    @abstractmethod
    def _rows(self, X: Any) -> Any:
        """What was handed over to predict, checked."""

    def predict_proba(self, X: Any, domains: Any = None) -> np.ndarray:
        """Class probabilities [n, C], in the order of `classes_`."""
        self._require_fitted()
        rows = self._rows(X)
        if domains is None:
            return self._unadapted()(rows)
        names = _one_each(domains, len(rows))
        probabilities = np.zeros((len(rows), len(self.classes_)))
        for name in np.unique(names):
            places = np.flatnonzero(names == name)
            mine = rows[places] if hasattr(rows, "shape") else [rows[int(p)] for p in places]
            probabilities[places] = self._adapted_to(mine)(mine)
        return probabilities

    def predict(self, X: Any, domains: Any = None) -> np.ndarray:
        """Labels [n], of the kind that `fit` was given."""
        self._require_fitted()
        best = self.predict_proba(X, domains).argmax(1)
        return np.asarray(self.classes_[best])

    def score(self, X: Any, y: Any, sample_weight: Any = None, domains: Any = None) -> float:
        """Accuracy."""
        return float(accuracy_score(y, self.predict(X, domains), sample_weight=sample_weight))

    def _know_labels(self, labels: Any, classes: Sequence[str]) -> None:
        """Keep the different ones among `labels`. The model's `classes` are called as they are
        written: whole numbers stay whole numbers here, and are text there."""
        self.classes_ = np.unique(np.asarray(labels))
        names = [str(value) for value in self.classes_.tolist()]
        self._labels = self.classes_[[names.index(name) for name in classes]]

    def _in_order(self, site: Any) -> Probabilities:
        """Probabilities of `site` in the order of `classes_`."""
        order = np.argsort(self._labels)
        return lambda rows: site.predict_proba(rows)[:, order]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def _require_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFitted(f"this {type(self).__name__} is not fitted yet; call fit first")

    def _check_labels(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels as scikit-learn checks them, of two classes or more."""
        X, y = validate_data(self, X, y, dtype="numeric")
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            raise ConfigError(f"y holds one class only, '{classes[0]}'; give at least two classes")
        return X, y

    def _features(self, X: Any) -> np.ndarray:
        return np.asarray(validate_data(self, X, dtype="numeric", reset=False))


def _one_each(domains: Any, count: int) -> np.ndarray:
    names = np.asarray(domains)
    if names.shape != (count,):
        raise ConfigError(
            f"domains is {list(names.shape)} beside {count} rows; give one name for each row"
        )
    return names.astype(str)
