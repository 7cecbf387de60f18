"""Step A on its own: a Φ that is learned once and used by many runs."""

import os
import shutil
from pathlib import Path

from acclimate.config import RunConfig
from acclimate.core.distributed import joined, keep_freed_memory
from acclimate.core.errors import ConfigError, RunError
from acclimate.core.files import write_atomically
from acclimate.core.watch import Watch, unwatched
from acclimate.data.manifest import Manifest
from acclimate.data.quarantine import Quarantine
from acclimate.learn.embeddings import Embedding
from acclimate.learn.embeddings.domains import load_embedding
from acclimate.learn.model import build_embedding
from acclimate.runs.embedding_step import step_a
from acclimate.runs.folder import SHARED, RunFolder
from acclimate.runs.identity import difference, learned_identity
from acclimate.runs.loop import check_shares
from acclimate.runs.memory import check_memory
from acclimate.runs.plan import Plan, make_plan
from acclimate.runs.session import Sitting, in_features, locked, prepare, seed_weights, take


def train_embedding(
    config: RunConfig,
    manifest: Manifest,
    out: Path,
    *,
    device: str = "auto",
    watch: Watch = unwatched,
) -> Path:
    """Step A of the run that `config` describes, in a folder of its own, for `train(embedding=…)`.

    It resumes by itself, and a finished one is left alone.
    """
    plan = make_plan(config, manifest)
    if not plan.algorithm.adaptive:
        raise _no_use(plan)
    with joined(device) as world:
        if world.device.type == "cpu":
            keep_freed_memory()
        check_shares(plan.config.embedding.per_domain, world, plan.config.embedding.optimiser)
        wanted, folder = learned_identity(plan, manifest.digest()), RunFolder(out, SHARED)
        folder.refuse_others(wanted)
        if not folder.phi.exists():
            sitting = Sitting(plan, folder, world, watch)
            seed_weights(plan)
            counts = len(plan.classes), len(plan.train_domains)
            embedding = build_embedding(
                plan.config, *counts, in_features(plan), pretrained=True, world=world
            )
            size = prepare(plan, world, embedding)
            with locked(folder, world):
                folder.refuse_others(wanted)  # another process may have been here
                if not folder.phi.exists():
                    check_memory(plan, world, size, embedding, bf16=sitting.bf16)
                take(folder, wanted, world)
                if not folder.phi.exists():
                    sitting.begin(wanted, size)
                    step_a(sitting, embedding)
        if world.main:
            folder.tidy()
    return folder.phi


def check_shared(shared: Path, plan: Plan, data_digest: str) -> None:
    """Refuse a Φ that is not finished, or is not the one that this run would learn."""
    if not plan.algorithm.adaptive:
        raise _no_use(plan)
    folder = RunFolder(shared, SHARED)
    if not folder.exists or not folder.phi.exists():
        raise RunError(f"{shared}: there is no finished embedding; make one with `train_embedding`")
    found = difference(folder.identity(), learned_identity(plan, data_digest))
    if found is not None:
        raise RunError(
            f"{shared} holds another embedding than this run would learn ({found}); "
            f"leave it out, or make one for these settings"
        )


def adopt(shared: Path, sitting: Sitting, embedding: Embedding) -> None:
    """Make `shared` the Φ of a run: its learning curve, quarantined images and measurements too.

    Φ itself comes last: where it is, the rest is.
    """
    theirs, ours = RunFolder(shared, SHARED), sitting.folder
    load_embedding(theirs.phi, embedding)  # a damaged file is named where it lies
    if sitting.world.main:
        here = set(ours.records().losses)
        for loss in theirs.records().losses:
            if loss not in here:
                ours.append(loss)
        listed = Quarantine(theirs.quarantine, total=1, max_share=float("inf"))
        for image, reason in listed.entries:
            sitting.quarantine.add(image, reason)
        if theirs.consistency_file.exists():
            _copy(theirs.consistency_file, ours.consistency_file)
        _link(theirs.phi, ours.phi)
    sitting.world.wait()


def _link(source: Path, path: Path) -> None:
    """One file under two names, which are written anew and never changed; a copy elsewhere."""
    try:
        os.link(source, path)
    except OSError:
        _copy(source, path)


def _copy(source: Path, path: Path) -> None:
    write_atomically(path, lambda temporary: shutil.copyfile(source, temporary))


def _no_use(plan: Plan) -> ConfigError:
    return ConfigError(
        f"{plan.algorithm.name} has no use for a domain embedding; use --algorithm "
        f"da-{plan.algorithm.name}, or leave the embedding out"
    )
