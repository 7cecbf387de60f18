"""A model as MLflow serves it: images in, labels out, for the site that a parameter names.

    model = mlflow.pyfunc.load_model(...)
    model.predict(DataFrame({"image": [png]}), params={"site": "north"})

The model is files of ours and no pickle.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate import __version__
from acclimate.adapt.classifier import Adapted, apply_state
from acclimate.adapt.saved import save_model
from acclimate.core.errors import ConfigError, unknown
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features

if TYPE_CHECKING:
    from pandas import DataFrame

MODEL, SITES, ENDING = "model", "sites", ".safetensors"
PLAIN = ""  # the name of no site


class Served:
    """The plain model and those of the sites."""

    def __init__(self, folder: Path) -> None:
        trained = Trained.load(folder / MODEL)
        states = {path.stem: path for path in sorted((folder / SITES).glob(f"*{ENDING}"))}
        self.sites = {name: apply_state(trained, DomainState.load(states[name])) for name in states}
        if trained.table is None:
            self.sites[PLAIN] = apply_state(trained, None)

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> "DataFrame":
        """The label of each row and its confidence; rows are images as files hold them, in a column
        `image`, or features [n, f]."""
        from pandas import DataFrame

        site = self._site(str((params or {}).get("site", PLAIN)))
        images = list(rows["image"]) if "image" in rows else np.asarray(rows)
        probabilities = site.predict_proba(images)
        labels = [site.classes[place] for place in probabilities.argmax(1)]
        return DataFrame({"label": labels, "confidence": probabilities.max(1)})

    def _site(self, name: str) -> Adapted:
        if name in self.sites:
            return self.sites[name]
        names = [known for known in self.sites if known != PLAIN]
        if name == PLAIN:
            raise ConfigError(f"this model predicts for a site; name one in params: {names}")
        raise unknown(f"the model has no site '{name}'", name, names)


def _load_pyfunc(path: str) -> Served:
    """What MLflow calls, by this name."""
    return Served(Path(path))


def log_pyfunc(run: Path, states: Sequence[Path]) -> None:
    """Log the model of a run, with sites that are called as the files of their `states`, in the run
    of MLflow that is active."""
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    trained = Trained.load(run)
    inputs = Schema([ColSpec(DataType.binary, "image")])
    if takes_features(trained.predictor):
        inputs = Schema([TensorSpec(np.dtype(np.float32), (-1, trained.size))])
    site = ParamSchema([ParamSpec("site", DataType.string, PLAIN)])
    with tempfile.TemporaryDirectory(prefix="acclimate-") as folder:
        save_model(trained, Path(folder) / MODEL, None)
        (Path(folder) / SITES).mkdir()
        for path in states:
            state = DomainState.load(path)
            state.require(trained.digest())
            state.save(Path(folder) / SITES / f"{path.stem}{ENDING}")
        mlflow.pyfunc.log_model(
            name="model",
            loader_module=__name__,
            data_path=folder,
            signature=ModelSignature(inputs=inputs, params=site),
            pip_requirements=[f"acclimate[mlflow]=={__version__}"],
        )
