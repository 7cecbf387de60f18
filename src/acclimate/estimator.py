"""The library's face: fit on labelled domains, adapt to a new one, predict."""

import os
import tempfile
from pathlib import Path
from typing import Any

from acclimate.adapt.classifier import Adapted, adapt, apply_state
from acclimate.config import gather, nested
from acclimate.core.distributed import pick_device
from acclimate.core.errors import ConfigError, RunError
from acclimate.core.watch import Watch, unwatched
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.runs.training import RunResult, train


class AdaptiveClassifier:
    """Learns from many labelled domains a classifier that adapts to a new one without labels.

    `fit` takes a `Manifest`, a folder or table path, or arrays (images or features) with their
    labels and domains. Settings are those of `RunConfig`, by dotted name:
    `AdaptiveClassifier(settings={"train.steps": 500})`. With `out` the run is kept there and
    resumes by itself; otherwise it lives in a temporary folder.
    """

    def __init__(
        self,
        *,
        algorithm: str | None = None,
        backbone: str = "auto",
        steps: int | None = None,
        seed: int = 0,
        preset: str | None = None,
        settings: dict[str, Any] | None = None,
        out: str | Path | None = None,
        device: str = "auto",
        watch: Watch = unwatched,
    ) -> None:
        arguments = {
            "algorithm": algorithm,
            "seed": seed,
            "model.backbone": backbone,
            "train.steps": steps,
        }
        self.config = gather(
            preset, None, arguments, nested(settings or {}), where="AdaptiveClassifier"
        )
        self.out = None if out is None else Path(out)
        self.device, self.watch = device, watch
        self.result: RunResult | None = None
        self._trained: Trained | None = None

    def fit(self, X: Any, y: Any = None, domains: Any = None) -> "AdaptiveClassifier":
        manifest = _as_manifest(X, y, domains)
        if self.out is not None:
            return self._fitted(manifest, self.out)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("several processes need one folder for their run; give out=FOLDER")
        with tempfile.TemporaryDirectory(prefix="acclimate-") as folder:
            return self._fitted(manifest, Path(folder) / "run")

    @classmethod
    def load(cls, run: str | Path, *, device: str = "auto") -> "AdaptiveClassifier":
        """A classifier from a finished run folder."""
        trained = Trained.load(Path(run), pick_device(device))
        loaded = cls(device=device, out=run)
        loaded.config, loaded._trained = trained.config, trained
        return loaded

    def adapt(
        self, images: Any, *, method: str = "auto", settings: dict[str, Any] | None = None
    ) -> Adapted:
        """The classifier for the domain that these unlabelled images come from.

        `method`: "auto" as rehearsed, or a row of `acclimate list methods`, or several, as in
        "embedding+prior";
        `settings`: of the methods, as in {"tent.steps": 3}.
        """
        return adapt(self.trained, images, method=method, settings=settings)

    def for_domain(self, state: DomainState | str | Path | None) -> Adapted:
        """The classifier of a stored domain state (or, for a plain model, None)."""
        if isinstance(state, str | Path):
            state = DomainState.load(Path(state))
        return apply_state(self.trained, state)

    @property
    def trained(self) -> Trained:
        if self._trained is None:
            raise RunError("this AdaptiveClassifier is not fitted yet; call fit first")
        return self._trained

    def _fitted(self, manifest: Manifest, out: Path) -> "AdaptiveClassifier":
        self.result = train(self.config, manifest, out, device=self.device, watch=self.watch)
        self._trained = Trained.load(out, pick_device(self.device))
        return self


def _as_manifest(X: Any, y: Any, domains: Any) -> Manifest:
    """Splits do not depend on the run's seed: every run on the same data has the same ones."""
    if isinstance(X, Manifest):
        return X
    if isinstance(X, str | Path):
        return Manifest.open(X)
    if y is None or domains is None:
        raise ConfigError("fit takes a manifest or a path, or arrays with their labels and domains")
    return Manifest.from_arrays(X, y, domains)
