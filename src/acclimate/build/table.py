"""A manifest from any table that names images, labels and domains."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from acclimate.build.base import OUT, Builder, Built, argument, required
from acclimate.build.splits import SplitSettings
from acclimate.config import setting
from acclimate.core.progress import Watch
from acclimate.data.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Table(Builder):
    example = "acclimate build table photos.csv --out photos.parquet"

    file: Path = argument("CSV, Parquet or JSON lines: image, label, domain.")
    out: Path = required(OUT)
    root: Path | None = setting(None, "Folder that image paths start from. [default: FILE's]")
    splits: SplitSettings = field(default_factory=SplitSettings)

    def build(self, watch: Watch) -> Built:
        made = Manifest.from_table(self.file, root=self.root, **asdict(self.splits))
        made.check()
        made.write(self.out)
        return Built(manifest=made, out=self.out)
