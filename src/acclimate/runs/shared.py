"""What was learned once, for many: a Φ for runs that share it, and the run `erm` for a Φ that is
made of it. Is it the right one, and how it is taken over."""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acclimate.config import AlgorithmName, RunConfig, from_dict
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, RunError
from acclimate.core.files import write_atomically
from acclimate.data.source import Quarantine
from acclimate.learn.embeddings import Embedding, FromERM
from acclimate.learn.embeddings.state import load_embedding
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder, difference
from acclimate.runs.identity import baseline_identity
from acclimate.runs.plan import Plan


@dataclass(frozen=True)
class SharedEmbedding:
    """`folder` is one of `train_embedding`; `wanted` is the Φ that a run would learn itself."""

    folder: RunFolder
    wanted: dict[str, Any]

    def check(self) -> None:
        """Refuse a Φ that is not finished, or is not the one that is wanted."""
        path = self.folder.path
        if not self.folder.exists or not self.folder.complete():
            raise RunError(
                f"{path}: there is no finished embedding; make one with `train_embedding`"
            )
        found = difference(self.folder.comparable(), self.wanted)
        if found is not None:
            raise RunError(
                f"{path} holds another embedding than this run would learn ({found}); "
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
            here = set(run.records().losses)
            for loss in self.folder.records().losses:
                if loss not in here:
                    run.append(loss)
            _list_again(self.folder, quarantine)
            if self.folder.consistency_file.exists():
                _copy(self.folder.consistency_file, run.consistency_file)
            _link(self.folder.phi, run.phi)
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
        found = difference(
            stored | {"config": baseline_identity(config, "")["config"]},
            baseline_identity(plan.config, plan.manifest.digest())
            | {"train_domains": list(plan.train_domains)},
        )
        if config.algorithm != "erm":
            found = f"its algorithm is {config.algorithm!r}, not 'erm'"
        if found is not None:
            raise RunError(
                f"{path} holds another run than Step A would repeat ({found}); leave it out"
            )

    def adopt(
        self, phi: RunFolder, embedding: FromERM, quarantine: Quarantine, world: World
    ) -> None:
        """Make its weights Φ's, and its learning curve and quarantined images those of Step A."""
        learned = Trained.load(self.folder.path, world.device).predictor.state_dict()
        network = embedding.predictor
        network.load_state_dict({name: learned[name] for name in network.state_dict()})
        if world.main:
            here = {(loss.phase, loss.step) for loss in phi.records().losses}
            for loss in self.folder.records().losses:
                # As Step A calls them: "embedding" for "main", with what is before and after it.
                phase = loss.phase.replace("main", "embedding", 1)
                if (phase, loss.step) not in here:
                    phi.append(replace(loss, phase=phase))
            _list_again(self.folder, quarantine)
        world.wait()


def _list_again(folder: RunFolder, quarantine: Quarantine) -> None:
    listed = Quarantine(folder.quarantine, total=1, max_share=float("inf"))
    for image, reason in listed.entries:
        quarantine.add(image, reason)


def refuse_plain(plan: Plan) -> None:
    """Plain algorithms have no use for a Φ."""
    if not plan.algorithm.adaptive:
        raise ConfigError(
            f"{plan.algorithm.name} has no use for a domain embedding; use --algorithm "
            f"{AlgorithmName.of(plan.algorithm.name).adaptive_version}, or leave the embedding out"
        )


def _link(source: Path, path: Path) -> None:
    """One file under two names, which are written anew and never changed; a copy elsewhere."""
    try:
        os.link(source, path)
    except OSError:
        _copy(source, path)


def _copy(source: Path, path: Path) -> None:
    write_atomically(path, lambda temporary: shutil.copyfile(source, temporary))
