"""What makes a run, or a Φ, the same one: its settings and data, wherever data and weights lie. And
what follows: a run may take over a Φ that was learned once for many, and a Φ that is made of an ERM
model the weights of the run `erm`."""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from acclimate import __version__
from acclimate.config import AlgorithmName, RunConfig, as_dict, from_dict
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, RunError, WeightsError
from acclimate.core.files import file_digest, write_atomically
from acclimate.data.source import Quarantine
from acclimate.learn.embeddings import Embedding, FromERM, find_embedding
from acclimate.learn.embeddings.state import load_embedding
from acclimate.learn.model import Trained
from acclimate.learn.models import Head, Predictor
from acclimate.records.folder import RunFolder, difference
from acclimate.runs.plan import Plan

_INPUTS = ("image_size", "augment", "max_pixels")  # what decides how an image enters


def json_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def weights_digest(path: str) -> str:
    """SHA-256 (hex) of a weights file, "" for no file: two paths to the same bytes agree."""
    if not path:
        return ""
    try:
        # A sweep asks for each of its jobs; the file is read again only when it has changed.
        facts = Path(path).stat()
        return _digest_of(path, facts.st_size, facts.st_mtime_ns, facts.st_ino)
    except OSError as error:
        raise WeightsError(
            f"weights file {path} cannot be read ({error.strerror}); check the path"
        ) from None


@lru_cache(maxsize=16)
def _digest_of(path: str, size: int, changed: int, inode: int) -> str:
    return file_digest(Path(path))


def run_identity(plan: Plan) -> dict[str, Any]:
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


def learned_identity(plan: Plan, data_digest: str) -> dict[str, Any]:
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
    """What makes Φ the same one, from settings that are not resolved yet.

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
    whole = as_dict(config)
    model = whole["model"]
    embedding = find_embedding(config.embedding.name).build
    if issubclass(embedding, FromERM):
        return _baseline(config) | {"embedding": embedding.identity(config.embedding)}
    return {
        "seed": config.seed,
        "data": {key: whole["data"][key] for key in _INPUTS},
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


def _baseline(config: RunConfig) -> dict[str, Any]:
    """What the run `erm` depends on: its head, its budget, and what chooses its weights."""
    whole = as_dict(config)
    model = dict(whole["model"])
    weights = model.pop("weights")
    model["pretrained"] = model["pretrained"] and not weights
    del model["condition"]  # how μ enters is the adaptive predictor's
    return {
        "seed": config.seed,
        "data": {key: whole["data"][key] for key in _INPUTS},
        "model": model,
        "train": {key: value for key, value in whole["train"].items() if key != "checkpoint_every"},
        "adapt": {key: whole["adapt"][key] for key in ("points", "source")},
        "val_domains": whole["val_domains"],
        "test_domains": whole["test_domains"],
    }


@dataclass(frozen=True)
class SharedEmbedding:
    """The Φ in `folder`, made by `train_embedding`, for a run that would learn that of `plan` on
    data with the digest `data`."""

    folder: RunFolder
    plan: Plan
    data: str

    def check(self) -> None:
        """Refuse a Φ that is not finished, or is not the one that the run would learn."""
        path = self.folder.path
        refuse_plain(self.plan)
        if not self.folder.exists or not self.folder.complete():
            raise RunError(
                f"{path}: there is no finished embedding; make one with `train_embedding`"
            )
        differs = difference(self.folder.comparable(), learned_identity(self.plan, self.data))
        if differs is not None:
            raise RunError(
                f"{path} holds another embedding than this run would learn ({differs}); "
                f"leave it out, or make one for these settings"
            )

    def adopt(
        self, run: RunFolder, embedding: Embedding, quarantine: Quarantine, world: World
    ) -> None:
        """Make it the Φ of a run: its learning curve, quarantined images and measurements too.

        Φ itself comes last: where it is, the rest is.
        """
        load_embedding(self.folder.phi, embedding)  # a damaged file is named where it lies
        if world.main:
            _take_over(self.folder, run, quarantine)
            if self.folder.consistency_file.exists():
                _copy(self.folder.consistency_file, run.consistency_file)
            try:  # one file under two names, which are written anew and never changed
                os.link(self.folder.phi, run.phi)
            except OSError:
                _copy(self.folder.phi, run.phi)
        world.wait()


@dataclass(frozen=True)
class Baseline:
    """`folder` is a finished run `erm`, of whose weights the Φ of `plan` is made."""

    folder: RunFolder
    plan: Plan

    def check(self) -> None:
        """Refuse a run that is not finished, or that Step A would not have repeated."""
        path, plan = self.folder.path, self.plan
        if not self.folder.exists or self.folder.finished is None:
            raise RunError(f"{path}: there is no finished run; train it, or leave it out")
        stored = self.folder.identity()
        config = from_dict(RunConfig, stored["config"], where=str(path))
        differs = difference(
            stored | {"config": baseline_identity(config, "")["config"]},
            baseline_identity(plan.config, plan.manifest.digest())
            | {"train_domains": list(plan.train_domains)},
        )
        if config.algorithm != "erm":
            differs = f"its algorithm is {config.algorithm!r}, not 'erm'"
        if differs is not None:
            raise RunError(
                f"{path} holds another run than Step A would repeat ({differs}); leave it out"
            )

    def adopt(
        self, phi: RunFolder, embedding: FromERM, quarantine: Quarantine, world: World
    ) -> None:
        """Make its weights Φ's, and its learning curve and quarantined images those of Step A."""
        learned: Head = Trained.load(self.folder.path, world.device).predictor
        if self.plan.on_features:
            assert isinstance(learned, Predictor)
            learned = learned.head
        embedding.predictor.load_state_dict(learned.state_dict())
        if world.main:
            _take_over(self.folder, phi, quarantine)
        world.wait()


def refuse_plain(plan: Plan) -> None:
    """Plain algorithms have no use for a Φ."""
    if not plan.algorithm.adaptive:
        raise ConfigError(
            f"{plan.algorithm.name} has no use for a domain embedding; use --algorithm "
            f"{AlgorithmName.of(plan.algorithm.name).adaptive_version}, or leave the embedding out"
        )


def _take_over(source: RunFolder, target: RunFolder, quarantine: Quarantine) -> None:
    """The losses of another folder, as those of Step A, and the images it could not read."""
    known = {(loss.phase, loss.step) for loss in target.records().losses}
    for loss in source.records().losses:
        phase = loss.phase.replace("main", "embedding", 1)
        if (phase, loss.step) not in known:
            target.append(replace(loss, phase=phase))
    for image, reason in source.quarantined():
        quarantine.add(image, reason)


def _copy(source: Path, path: Path) -> None:
    write_atomically(path, lambda temporary: shutil.copyfile(source, temporary))
