"""The library's face: fit on labelled domains, adapt to a new one, predict, save."""

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.adapt.classifier import Adapted, adapt, apply_state, unadapted
from acclimate.adapt.estimation import NO_LABELS, DomainClassifier, Probabilities
from acclimate.adapt.saved import read_labels, save_model, write_labels
from acclimate.config import RECIPE, RunConfig, gather, nested
from acclimate.core.distributed import pick_device
from acclimate.core.environment import launched
from acclimate.core.errors import ConfigError
from acclimate.core.progress import Watch, shown_by_itself
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.learn.embeddings.pictures import KEPT
from acclimate.learn.model import Trained
from acclimate.records.folder import write_checksums
from acclimate.rehearse.training import train

ALONE = "all"  # the name of the one domain of rows that come without


class AdaptiveClassifier(DomainClassifier):
    """Learns from many labelled domains a classifier that adapts to a new one without labels.

    `fit` takes a `Manifest`, a folder or table path, or arrays (images or features) with their
    labels and domains. Without an algorithm or a preset it is `rehearsed`: ordinary training, and
    how to adapt is chosen on the training domains. Settings are those of `RunConfig`, by dotted
    name: `AdaptiveClassifier(settings={"train.steps": 500})`. With `out` the run is kept there and
    resumes by itself; otherwise `save` keeps the model. `fit` shows a bar in terminals and
    notebooks; a `watch` is told instead (`acclimate.core.progress.unwatched`: nobody is). Several
    threads may `fit`: each gets what it would alone, and torch's random state stays the caller's
    (with a backbone of timm's that is none of ours, it is put back after each step).

    An estimator of scikit-learn. Without `domains` all rows are of one.
    """

    def __init__(
        self,
        *,
        algorithm: str | None = None,
        backbone: str = "auto",
        steps: int | None = None,
        seed: int = 0,
        method: str = "auto",
        preset: str | None = None,
        settings: dict[str, Any] | None = None,
        out: str | Path | None = None,
        device: str = "auto",
        watch: Watch | None = None,
    ) -> None:
        self.algorithm, self.backbone, self.steps, self.seed = algorithm, backbone, steps, seed
        self.method, self.preset, self.settings = method, preset, settings
        self.out, self.device, self.watch = out, device, watch

    def fit(self, X: Any, y: Any = None, domains: Any = None) -> "AdaptiveClassifier":
        if y is not None and _are_features(X):
            X, y = self._check_labels(X, y)
        arguments = {
            "algorithm": self.algorithm,
            "seed": self.seed,
            "model.backbone": self.backbone,
            "train.steps": self.steps,
        }
        settings = nested(self.settings or {})
        where = "AdaptiveClassifier"
        config = gather(self.preset, None, arguments, settings, recipe=RECIPE, where=where)
        manifest = _as_manifest(X, y, domains)
        labels = manifest.classes if y is None else y
        if self.out is not None:
            return self._fitted(config, manifest, Path(self.out), labels)
        if launched("WORLD_SIZE", 1) > 1:
            raise ConfigError("several processes need one folder for their run; give out=FOLDER")
        with tempfile.TemporaryDirectory(prefix="acclimate-") as folder:
            return self._fitted(config, manifest, Path(folder) / "run", labels)

    def save(self, folder: str | Path) -> Path:
        """Everything that `load` needs, a model card and lines that run it, in one folder."""
        return save_model(self.trained, Path(folder), self._labels)

    @classmethod
    def load(cls, run: str | Path, *, device: str = "auto") -> "AdaptiveClassifier":
        """A classifier from a folder of `save`, or from a finished run's."""
        trained = Trained.load(Path(run), pick_device(device))
        loaded = cls(device=device, out=run)
        labels = read_labels(Path(run), trained.classes)
        return loaded._knowing(trained, trained.classes if labels is None else labels)

    def adapt(
        self,
        images: Any,
        *,
        labels: Sequence[Any] | None = None,
        method: str | None = None,
        settings: dict[str, Any] | None = None,
        into: DomainState | None = None,
        keep: int = KEPT,
    ) -> Adapted:
        """The classifier for the domain that these unlabelled images come from.

        `labels`: what is known of their classes, one entry for each image, None where nothing is.
        `method`: "auto" as rehearsed, or a row of `acclimate list methods`, or several, as in
        "embedding+prior"; left out, the constructor's.
        `settings`: of the methods, as in {"tent.steps": 3}.
        `into`: the state of images of this domain that came earlier, to which these are added.
        `keep`: of how many images the new state keeps the features, for `into`.
        """
        site = adapt(
            self.trained,
            images,
            method=method or self.method,
            labels=labels,
            settings=settings,
            into=into,
            keep=keep,
        )
        return replace(site, labels=self._labels)

    def for_domain(self, state: DomainState | str | Path | None) -> Adapted:
        """The classifier of a stored domain state (or, for a plain model, None)."""
        if isinstance(state, str | Path):
            state = DomainState.load(Path(state))
        return replace(apply_state(self.trained, state), labels=self._labels)

    @property
    def trained(self) -> Trained:
        self._require_fitted()
        trained: Trained = self._trained
        return trained

    def _fitted(
        self, config: RunConfig, manifest: Manifest, out: Path, labels: Any
    ) -> "AdaptiveClassifier":
        bar = shown_by_itself() if self.watch is None else nullcontext(self.watch)
        with bar as watch:
            train(config, manifest, out, device=self.device, watch=watch)
        self._knowing(Trained.load(out, pick_device(self.device)), labels)
        write_labels(out, self._labels)
        write_checksums(out, finished=True)  # with the labels
        return self

    def _knowing(self, trained: Trained, labels: Any) -> "AdaptiveClassifier":
        self._trained = trained
        self._know_labels(labels, trained.classes)
        return self

    def _rows(self, X: Any) -> Any:
        if hasattr(self, "n_features_in_") and _are_features(X):
            return self._features(X)
        return X

    def _unadapted(self) -> Probabilities:
        return self._in_order(unadapted(self.trained))

    def _adapted_to(self, rows: Any) -> Probabilities:
        return self._in_order(adapt(self.trained, rows, method=self.method))


def _are_features(X: Any) -> bool:
    """Numbers, which scikit-learn knows how to check, and not images or where they lie."""
    if isinstance(X, str | Path | Manifest):
        return False
    shape = getattr(X, "shape", None)
    if shape is None and hasattr(X, "__array__"):
        shape = np.asarray(X).shape
    if shape is not None:
        return len(shape) <= 2 and getattr(X, "dtype", None) != np.uint8
    first = X[0] if isinstance(X, Sequence) and len(X) else None
    return isinstance(first, Sequence | float | int) and not isinstance(first, str | bytes)


def _as_manifest(X: Any, y: Any, domains: Any) -> Manifest:
    """Splits do not depend on the run's seed: every run on the same data has the same ones."""
    if isinstance(X, Manifest):
        return X
    if isinstance(X, str | Path):
        return Manifest.open(X)
    if y is None:
        raise ConfigError(
            f"{NO_LABELS}a manifest or a path, or arrays with their labels and domains"
        )
    return Manifest.from_arrays(X, y, [ALONE] * len(y) if domains is None else domains)
