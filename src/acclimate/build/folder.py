"""A manifest from a domain/class/image tree."""

from dataclasses import dataclass
from pathlib import Path

from acclimate.build.base import OUT, Builder, Built, argument, required
from acclimate.build.splits import SEED, VAL_SHARE, require_share
from acclimate.config import setting
from acclimate.core.watch import Watch
from acclimate.data.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Folder(Builder):
    """Paths are stored relative to `root`, and `root` relative to `out`: move them together."""

    example = "acclimate build folder PACS --out pacs.parquet"

    root: Path = argument("A domain/class/image tree.")
    out: Path = required(OUT)
    val_share: float = setting(0.2, VAL_SHARE)
    seed: int = setting(0, SEED)

    def build(self, watch: Watch) -> Built:
        require_share(self.val_share)
        made = Manifest.from_folder(self.root, val_share=self.val_share, seed=self.seed)
        made.check()
        made.write(self.out)
        return Built(manifest=made, out=self.out)
