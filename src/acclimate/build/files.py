"""Manifests of data that are there: a domain/class/image tree, or a table that names its images."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from acclimate.build.base import OUT, Builder, Built, SplitSettings, argument, flag, required
from acclimate.config import setting
from acclimate.core.progress import Watch
from acclimate.data.manifest import Manifest
from acclimate.data.readers import data_name

ALIKE = "Keep pictures that look the same in one split; reads every image."


def _written(manifest: Manifest, out: Path) -> Built:
    manifest.check()
    manifest.write(out)
    return Built(manifest=manifest, out=out)


@dataclass(frozen=True, kw_only=True)
class Folder(Builder):
    """Paths are stored relative to `root`, and `root` relative to `out`: move them together."""

    example = "acclimate build folder PACS --out pacs.parquet"

    root: Path = argument("A domain/class/image tree, or class/image: one domain of that name.")
    out: Path = required(OUT)
    splits: SplitSettings = field(default_factory=SplitSettings)
    alike: bool = flag(ALIKE)
    group: str | None = setting(
        None, "Pattern of what belongs together in a path, a patient or a burst: 'patient-[0-9]+'."
    )

    def build(self, watch: Watch) -> Built:
        options = {**asdict(self.splits), "alike": self.alike, "group": self.group}
        tree = Manifest.from_folder(self.root, only_domain=data_name(self.root), **options)
        return _written(tree, self.out)


@dataclass(frozen=True, kw_only=True)
class Table(Builder):
    example = "acclimate build table photos.csv --out photos.parquet"

    file: Path = argument("CSV, Parquet or JSON lines: image, label, domain.")
    out: Path = required(OUT)
    root: Path | None = setting(None, "Folder that image paths start from. [default: FILE's]")
    splits: SplitSettings = field(default_factory=SplitSettings)
    alike: bool = flag(ALIKE)

    def build(self, watch: Watch) -> Built:
        splits = asdict(self.splits)
        table = Manifest.from_table(self.file, root=self.root, alike=self.alike, **splits)
        return _written(table, self.out)
