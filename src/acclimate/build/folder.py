"""A manifest from a domain/class/image tree."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from acclimate.build.base import OUT, Builder, Built, argument, required
from acclimate.build.splits import SplitSettings
from acclimate.core.progress import Watch
from acclimate.data.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Folder(Builder):
    """Paths are stored relative to `root`, and `root` relative to `out`: move them together."""

    example = "acclimate build folder PACS --out pacs.parquet"

    root: Path = argument("A domain/class/image tree.")
    out: Path = required(OUT)
    splits: SplitSettings = field(default_factory=SplitSettings)

    def build(self, watch: Watch) -> Built:
        made = Manifest.from_folder(self.root, **asdict(self.splits))
        made.check()
        made.write(self.out)
        return Built(manifest=made, out=self.out)
