"""What a fit in the space of κ found, and as a file: arrays as safetensors, the rest as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.adapt.labels import Labels
from acclimate.core.errors import ConfigError, DamagedFile, RunError, damage_is
from acclimate.core.files import parse_json
from acclimate.data.columns import require_finite
from acclimate.paper.kernel.maps import COMBINATIONS, Exact, NystroemMap, Widths, mapped

REMEDY = "restore it, or fit again"
# What numpy, scikit-learn and Python say of values that do not go together.
_NO_FIT = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Fitted:
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    means: np.ndarray  # [N, d]
    phi: Any
    widths: Widths
    map: Exact | NystroemMap
    regression: Any

    def features_of(self, rows: Any) -> np.ndarray:
        """Checked float64 [n, f]."""
        rows, width = np.asarray(rows), self.phi.n_features_in_
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ConfigError(f"this model takes features [n, {width}], not shape {rows.shape}")
        return numbers(rows)


def numbers(rows: np.ndarray) -> np.ndarray:
    if rows.dtype.kind not in "fiub":
        raise ConfigError(f"the features are {rows.dtype}; give numbers")
    rows = rows.astype(np.float64)
    require_finite(rows)
    return rows


def save_fitted(fitted: Fitted, parameters: Mapping[str, Any], labels: Labels, path: Path) -> Path:
    import torch  # a fit in memory does without

    from acclimate.core.tensors import save_tensors

    arrays = {
        "means": fitted.means,
        "phi/weights": fitted.phi.random_weights_,
        "phi/offset": fitted.phi.random_offset_,
        "coef": fitted.regression.coef_,
    }
    psi = fitted.map
    if isinstance(psi, Exact):
        arrays |= {"exact/means": psi.means, "exact/rows": psi.rows, "exact/root": psi.root}
    else:
        for of, nystroem in psi.maps:
            arrays[f"{of}/landmarks"] = nystroem.components_
            arrays[f"{of}/normalization"] = nystroem.normalization_
    facts = {
        "parameters": dict(parameters),
        "classes": fitted.classes,
        "domains": fitted.domains,
        "widths": asdict(fitted.widths),
        "labels": labels.values.tolist(),
        "dtype": str(labels.values.dtype),
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    save_tensors(path, tensors, {"kernel": json.dumps(facts)})
    return path


def load_fitted(path: Path) -> tuple[dict[str, Any], Fitted, Labels]:
    """(parameters, fit, labels) of a file of `save_fitted`."""
    from acclimate.core.tensors import read_tensors

    with damage_is(RunError, REMEDY):
        try:
            tensors, metadata = read_tensors(path)
        except FileNotFoundError:
            raise RunError(f"{path}: no such file; make it with KernelClassifier.save") from None
        try:
            facts = parse_json(metadata["kernel"])
            arrays = {name: value.numpy() for name, value in tensors.items()}
            fitted = _opened(facts, arrays)
            _require_sound(fitted, arrays)
            labels = Labels.parsed(facts["labels"], facts["dtype"], fitted.classes)
            return facts["parameters"], fitted, labels
        except _NO_FIT:
            raise DamagedFile(path) from None


def _require_sound(fitted: Fitted, arrays: Mapping[str, np.ndarray]) -> None:
    """By an answer for a row of zeros: what does not fit together gives none."""
    widths = asdict(fitted.widths).values()
    _require(all(np.isfinite(value).all() for value in (*arrays.values(), *widths)))
    _require(all(value > 0 for value in widths))
    _require(all(isinstance(name, str) for name in (*fitted.classes, *fitted.domains)))
    width, components = fitted.phi.random_weights_.shape
    owner, row = np.zeros(1, dtype=int), np.zeros((1, width))
    embedded = fitted.phi.transform(row)
    answer = fitted.regression.predict_proba(mapped(fitted.map, fitted.means[:1], owner, row))
    domains, classes = len(fitted.domains), len(fitted.classes)
    sizes = (fitted.means.shape, embedded.shape, answer.shape)
    _require(sizes == ((domains, components), (1, components), (1, classes)))
    _require(bool(np.isfinite(answer).all()))


def _require(sound: bool) -> None:
    if not sound:
        raise ValueError("values that do not go together")


def _opened(facts: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Fitted:
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import LogisticRegression

    widths = Widths(**facts["widths"])
    weights = arrays["phi/weights"]
    phi = RBFSampler(gamma=1 / (2 * widths.mean**2), n_components=weights.shape[1])
    phi.random_weights_, phi.random_offset_ = weights, arrays["phi/offset"]
    phi.n_features_in_, phi._n_features_out = weights.shape
    regression = LogisticRegression(fit_intercept=False)
    regression.coef_, regression.classes_ = arrays["coef"], np.arange(len(facts["classes"]))
    regression.intercept_ = np.zeros(len(regression.coef_))
    regression.n_features_in_ = regression.coef_.shape[1]
    names = tuple(facts["classes"]), tuple(facts["domains"])
    psi = _map(facts["parameters"]["combine"], widths, arrays)
    return Fitted(*names, arrays["means"], phi, widths, psi, regression)


def _map(combine: str, widths: Widths, arrays: dict[str, np.ndarray]) -> Exact | NystroemMap:
    from sklearn.kernel_approximation import Nystroem

    exact = {name: arrays[f"exact/{name}"] for name in ("means", "rows", "root")
             if f"exact/{name}" in arrays}  # fmt: skip
    if exact:
        return Exact(exact["means"], exact["rows"], widths, combine, exact["root"])
    maps = []
    for of in COMBINATIONS[combine].gaussians:
        landmarks = arrays[f"{of}/landmarks"]
        nystroem = Nystroem(gamma=0.5, n_components=len(landmarks))
        nystroem.components_, nystroem.n_features_in_ = landmarks, landmarks.shape[1]
        nystroem.normalization_ = arrays[f"{of}/normalization"]
        nystroem._n_features_out = len(landmarks)
        maps.append((of, nystroem))
    return NystroemMap(widths, tuple(maps))
