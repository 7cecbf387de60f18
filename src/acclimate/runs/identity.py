"""What makes a run, or a Φ, the same one: its settings and data, wherever data and weights lie. A
run may then take over a Φ that was learned once for many."""

import os
import shutil
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from acclimate import __version__
from acclimate.config import AlgorithmName, RunConfig, as_dict
from acclimate.core.errors import ConfigError, NotAFile, RunError, WeightsError
from acclimate.core.files import file_digest, json_digest, write_atomically
from acclimate.data.source import Quarantine
from acclimate.learn.embeddings import Embedding, FromERM, find_embedding
from acclimate.learn.embeddings.state import load_embedding
from acclimate.records.folder import CONSISTENCY, PHI, RunFolder, difference
from acclimate.runs.plan import Plan


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
    except NotAFile as error:
        raise WeightsError(str(error)) from None


@lru_cache(maxsize=16)
def _digest_of(path: str, size: int, changed: int, inode: int) -> str:
    return file_digest(Path(path))


def run_identity(plan: Plan) -> dict[str, Any]:
    """What makes a run the same run; the rest of it is for people."""
    return {
        **_identity(plan, as_dict(plan.config), plan.manifest.digest()),
        "classes": list(plan.classes),
        "val_domains": list(plan.val_domains),
        "test_domains": list(plan.test_domains),
    }


def learned_identity(plan: Plan) -> dict[str, Any]:
    """What makes the Φ that a plan learns first the same Φ."""
    if not plan.algorithm.over_mu:
        other = AlgorithmName.of(plan.algorithm.name).adaptive_version
        raise ConfigError(
            f"{plan.algorithm.name} has no use for a domain embedding; use --algorithm "
            f"{other or AlgorithmName('erm', over_mu=True)}, or leave the embedding out"
        )
    return _identity(plan, _step_a(plan.config), plan.data_digest)


def _identity(plan: Plan, settings: dict[str, Any], data: str) -> dict[str, Any]:
    """The digest of weights is left out where the file is gone: a finished run may outlive it."""
    path = plan.config.model.weights
    return {
        "version": __version__,
        "config": settings,
        "data": data,
        "source": plan.manifest.source,
        "train_domains": list(plan.train_domains),
        **({"weights": weights_digest(path)} if not path or Path(path).is_file() else {}),
    }


def phi_digest(plan: Plan) -> str:
    """Equal for plans that learn the same Φ, wherever their data and weights lie."""
    identity = learned_identity(plan)
    return json_digest([identity[key] for key in ("config", "data", "train_domains")])


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


def _step_a(config: RunConfig) -> dict[str, Any]:
    """The settings that Φ and the training domains' μ depend on, and no others.

    Φ is built before the predictor, so the predictor's settings do not shift its random numbers.
    """
    whole, embedding = as_dict(config), find_embedding(config.embedding.name).build
    data, model, train, adapt = (whole[part] for part in ("data", "model", "train", "adapt"))
    # A weights file goes before pretrained weights.
    model["pretrained"] = model["pretrained"] and not model.pop("weights")
    identity = {
        "seed": config.seed,
        "data": {key: data[key] for key in ("image_size", "augment", "max_pixels")},
        "embedding": embedding.identity(config.embedding),
    }
    if not issubclass(embedding, FromERM):
        of_backbone = ("backbone", "pretrained", "freeze_batch_norm", "freeze")
        return identity | {
            "model": {key: model[key] for key in of_backbone},
            "train": {"precision": train["precision"]},
        }
    # Step A is the run `erm`: its head, its budget, and what chooses its weights.
    del model["condition"], train["checkpoint_every"]
    return identity | {
        "model": model,
        "train": train,
        "adapt": {key: adapt[key] for key in ("points", "source", "score")},
        "keep_shared": data["keep_shared"],
        "val_domains": whole["val_domains"],
        "test_domains": whole["test_domains"],
    }


def check_shared_embedding(shared: RunFolder, plan: Plan) -> None:
    """Refuse a Φ that is not finished, or is not the one that a run of `plan` would learn."""
    wanted = learned_identity(plan)
    if not shared.exists or not shared.complete():
        raise RunError(
            f"{shared.path}: there is no finished embedding; make one with `train_embedding`"
        )
    differs = difference(shared.identity(), wanted)
    if differs is not None:
        raise RunError(
            f"{shared.path} holds another embedding than this run would learn ({differs}); "
            f"leave it out, or make one for these settings"
        )


def adopt_shared_embedding(
    shared: RunFolder, run: RunFolder, embedding: Embedding, quarantine: Quarantine, of: str
) -> None:
    """Give a run the Φ of another folder: its learning curve, quarantined images, measurements.

    Φ itself comes last: where it is, the rest is.
    """
    load_embedding(shared.phi, embedding, of)  # a damaged file is named where it lies
    known = {(loss.phase, loss.step) for loss in run.records().losses}
    for loss in shared.records().losses:
        if (loss.phase, loss.step) not in known:
            run.append(loss)
    for image, reason in shared.quarantined():
        quarantine.add(image, reason)
    for name in (CONSISTENCY, PHI):
        source, target = shared.path / name, run.path / name
        try:  # one file under two names, which are written anew and never changed
            os.link(source, target)
        except OSError:
            write_atomically(target, partial(shutil.copyfile, source))
