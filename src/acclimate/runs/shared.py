"""A Φ that was learned once, for many runs: is it the right one, and how a run takes it over."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.config import AlgorithmName
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, RunError
from acclimate.core.files import write_atomically
from acclimate.data.quarantine import Quarantine
from acclimate.learn.embeddings import Embedding
from acclimate.learn.embeddings.domains import load_embedding
from acclimate.runs.folder import RunFolder
from acclimate.runs.identity import difference
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
            listed = Quarantine(self.folder.quarantine, total=1, max_share=float("inf"))
            for image, reason in listed.entries:
                quarantine.add(image, reason)
            if self.folder.consistency_file.exists():
                _copy(self.folder.consistency_file, run.consistency_file)
            _link(self.folder.phi, run.phi)
        world.wait()


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
