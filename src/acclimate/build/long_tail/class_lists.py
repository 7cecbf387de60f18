"""Which classes of the data may be sampled: lists of names, and ILSVRC12 by its synsets."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from acclimate.build.geo_yfcc.labels import ilsvrc12_synsets, is_synset, short
from acclimate.core.errors import ManifestError
from acclimate.data import readers
from acclimate.data.manifest import Manifest

_DOMAIN = "all"  # of images that come without one
_RECORDED = 1000  # names; of longer lists a digest is enough to tell them apart


@dataclass(frozen=True, kw_only=True)
class ClassList:
    """Names that may be sampled, all unless `only` is given, less the excluded ones."""

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_ilsvrc12: bool = False  # classes are synsets, such as n01440764

    def allowed(self, classes: Sequence[str], source: str) -> list[str]:
        """Those of `classes` that may be sampled, in their order."""
        excluded = set(self.exclude)
        if self.exclude_ilsvrc12:
            if not any(map(is_synset, classes)):
                raise ManifestError(
                    f"no class of {source} is a synset such as n01440764; leave "
                    "--exclude-ilsvrc12 away, or name the classes by their synsets"
                )
            excluded |= ilsvrc12_synsets()
        listed = set(self.only or classes)
        if listed.isdisjoint(classes):
            raise ManifestError(
                f"{source} has none of the {len(listed)} classes that --only lists; it has "
                f"{', '.join(map(short, classes[:3])) or 'none'}: check the names"
            )
        return [name for name in classes if name in listed and name not in excluded]


def recorded(names: Sequence[str]) -> list[str] | str:
    """What a manifest says of a list: the names, or of a long one their number and a digest."""
    if len(names) <= _RECORDED:
        return list(names)
    digest = hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()
    return f"{len(names)} names, SHA-256 {digest}"


def not_in_data(names: Sequence[str], path: str | Path, base: Manifest) -> list[str]:
    """Those of `names` that are no classes of the data at `path`, opened as `base`.

    Of a folder class/image all folders count, also those that were not looked into.
    """
    root = Path(path).expanduser()
    folders = readers.class_folders(root) if root.is_dir() else None
    known = set(base.classes if folders is None else folders)
    return [name for name in names if name not in known]


def open_pool(path: str | Path, classes: ClassList) -> Manifest:
    """Images to sample from: whatever a manifest can be made of, or a folder class/image.

    Of such a folder, which may hold all of ImageNet, only allowed classes are looked into.
    """
    root = Path(path).expanduser()
    folders = readers.class_folders(root) if root.is_dir() else None
    if folders is None:
        return Manifest.open(root)
    source = f"{root.resolve().name}/"
    return _of_class_folders(root, source, classes.allowed(folders, source))


def _of_class_folders(root: Path, source: str, folders: Iterable[str]) -> Manifest:
    table = readers.read_class_folders(root, source, folders)
    for name, value in (("domain", _DOMAIN), ("split", "train")):
        table = table.append_column(name, pa.repeat(value, table.num_rows))
    found = tuple(sorted(table["label"].unique().to_pylist()))
    return Manifest(table, found, root.resolve(), source)
