"""What makes a run, or a Φ, the same one: its settings and data, wherever data and weights lie."""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate import __version__
from acclimate.config import RunConfig, as_dict
from acclimate.core.errors import WeightsError

if TYPE_CHECKING:  # plans come with torch, and identities are read where there is none
    from acclimate.runs.plan import Plan


def json_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def weights_digest(path: str) -> str:
    """SHA-256 (hex) of a weights file, "" for no file: two paths to the same bytes agree."""
    if not path:
        return ""
    try:
        facts = Path(path).stat()
        if not Path(path).is_file():
            raise FileNotFoundError
        # A sweep asks for each of its jobs; the file is read again only when it has changed.
        return _content_digest(path, facts.st_size, facts.st_mtime_ns, facts.st_ino)
    except FileNotFoundError:
        raise WeightsError(f"there is no weights file {path}; check the path") from None
    except OSError as error:
        raise WeightsError(
            f"weights file {path} cannot be read ({error.strerror}); check its permissions"
        ) from None


@lru_cache(maxsize=16)
def _content_digest(path: str, size: int, changed: int, inode: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_identity(plan: "Plan") -> dict[str, Any]:
    """What makes a run the same run; the rest of it is for people."""
    return {
        "version": __version__,
        "config": as_dict(plan.config),
        "data": plan.manifest.digest(),
        "source": plan.manifest.source,
        "classes": list(plan.classes),
        "train_domains": list(plan.train_domains),
        "val_domains": list(plan.val_domains),
        "test_domains": list(plan.test_domains),
        **_weights(plan.config),
    }


def learned_identity(plan: "Plan", data_digest: str) -> dict[str, Any]:
    """What makes the Φ that a plan learns the same Φ; `data_digest` is of the data as given."""
    return {
        "version": __version__,
        "config": _step_a(plan.config),
        "data": data_digest,
        "source": plan.manifest.source,
        "train_domains": list(plan.train_domains),
        **_weights(plan.config),
    }


def embedding_identity(
    config: RunConfig, data_digest: str, held_out: Sequence[str]
) -> dict[str, Any]:
    """The same from settings that are not resolved yet: where it agrees, so does Φ.

    `held_out` are the domains that are not trained on. What the algorithm does later plays no
    part, nor whether it has use for a Φ at all.
    """
    return {
        "config": _step_a(config),
        "data": data_digest,
        "held_out": sorted(held_out),
        "weights": weights_digest(config.model.weights),
    }


def baseline_identity(config: RunConfig, data_digest: str) -> dict[str, Any]:
    """What makes the run `erm` the same training, whatever else is done with it: where it agrees
    with that of an adaptive run, Φ from an ERM model is in the weights of the one for the other."""
    return {
        "config": _baseline(config),
        "data": data_digest,
        "weights": weights_digest(config.model.weights),
    }


def settings_digest(identity: dict[str, Any]) -> str:
    """Of the settings, with the weights by content."""
    config = identity["config"]
    model = {**config["model"], "weights": identity.get("weights", "")}
    return json_digest({**config, "model": model})


def _weights(config: RunConfig) -> dict[str, str]:
    """Left out where the file is gone: a finished run may outlive it."""
    path = config.model.weights
    return {"weights": weights_digest(path)} if not path or Path(path).is_file() else {}


def _step_a(config: RunConfig) -> dict[str, Any]:
    """The settings that Φ and the training domains' μ depend on, and no others.

    Φ is built before the predictor, so the predictor's settings do not shift its random numbers.
    """
    # With torch, which readers do without.
    from acclimate.learn.embeddings import FromERM, find_embedding

    whole = as_dict(config)
    model = whole["model"]
    embedding = find_embedding(config.embedding.name).build
    if issubclass(embedding, FromERM):
        return _baseline(config) | {"embedding": embedding.identity(config.embedding)}
    return {
        "seed": config.seed,
        "data": _inputs(whole),
        "model": {
            "backbone": model["backbone"],
            # A weights file goes before pretrained weights.
            "pretrained": model["pretrained"] and not model["weights"],
            "freeze_batch_norm": model["freeze_batch_norm"],
            "freeze": model["freeze"],
        },
        "embedding": embedding.identity(config.embedding),
        "train": {"precision": whole["train"]["precision"]},
    }


def _inputs(whole: dict[str, Any]) -> dict[str, Any]:
    """What decides how an image enters."""
    return {key: whole["data"][key] for key in ("image_size", "augment", "max_pixels")}


def _baseline(config: RunConfig) -> dict[str, Any]:
    """What the run `erm` depends on: its head, its budget, and what chooses its weights."""
    whole = as_dict(config)
    model = dict(whole["model"])
    weights = model.pop("weights")
    model["pretrained"] = model["pretrained"] and not weights
    del model["condition"]  # how μ enters is the adaptive predictor's
    return {
        "seed": config.seed,
        "data": _inputs(whole),
        "model": model,
        "train": {key: value for key, value in whole["train"].items() if key != "checkpoint_every"},
        "adapt": {key: whole["adapt"][key] for key in ("points", "source")},
        "val_domains": whole["val_domains"],
        "test_domains": whole["test_domains"],
    }
