"""What was learned once, for many: a Φ for runs that share it, and the run `erm` for a Φ that is
made of it. Is it the right one, and how it is taken over."""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from acclimate.config import AlgorithmName, RunConfig, from_dict
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, RunError
from acclimate.core.files import write_atomically
from acclimate.data.source import Quarantine
from acclimate.learn.embeddings import Embedding, FromERM
from acclimate.learn.embeddings.state import load_embedding
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder, difference
from acclimate.runs.identity import baseline_identity, learned_identity
from acclimate.runs.plan import Plan


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
        learned = Trained.load(self.folder.path, world.device).predictor.state_dict()
        network = embedding.predictor
        network.load_state_dict({name: learned[name] for name in network.state_dict()})
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
