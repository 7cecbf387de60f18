"""DomainBed's image folders, checked against what each data set should hold.

Nothing is downloaded and nothing is left out silently: what is missing, extra or passed over is in
the check, and extra images stay unless they are asked to go.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from acclimate.build.base import (
    OUT,
    Builder,
    Built,
    Listing,
    argument,
    flag,
    in_short,
    listed,
    required,
)
from acclimate.build.domainbed.check import FolderCheck, compare
from acclimate.build.domainbed.expected import BENCHMARKS, Benchmark, benchmark, folded
from acclimate.build.splits import SplitSettings
from acclimate.config import setting
from acclimate.core.errors import ManifestError
from acclimate.core.progress import Watch
from acclimate.core.text import DASH
from acclimate.data import readers
from acclimate.data.columns import seeded_splits
from acclimate.data.manifest import Manifest
from acclimate.data.readers import same_content

# VLCS is also given out with a folder for each part of a domain; `full` holds all of them.
_PARTS = {"full": None, "train": "train", "crossval": "val", "val": "val", "test": "test"}


class _Row(NamedTuple):
    image: str
    domain: str
    label: str
    split: str | None
    name: str  # <domain>/<what the path says below it>, as in drop lists


@dataclass(frozen=True, kw_only=True)
class DomainBed(Builder):
    """Domains get the names that their authors gave them, whatever the folders are called."""

    example = "acclimate build domainbed --dataset pacs data/PACS --out pacs.parquet"

    root: Path = argument("The folder that holds the domains.")
    dataset: str = required("vlcs, pacs, office-home, domainnet or terra-incognita.")
    out: Path = required(OUT)
    drop_list: Path | None = setting(
        None, "Images to leave out, such as domain_net_duplicates.txt of DomainBed."
    )
    only_expected: bool = flag("Leave out domains that are extra.")
    splits: SplitSettings = field(default_factory=SplitSettings)

    def build(self, watch: Watch) -> Built:
        manifest, check = self.checked()
        manifest.write(self.out)
        facts, told = {"check": check.as_dict()}, [*_told(check), in_short(manifest)]
        return Built(manifest=manifest, out=self.out, facts=facts, told=told)

    def checked(self) -> tuple[Manifest, FolderCheck]:
        """The manifest of the folder, and the folder beside what it should be."""
        expected = benchmark(self.dataset)
        drops = None if self.drop_list is None else _drop_list(self.drop_list, expected)
        folder = _domain_folder(self.root.expanduser(), expected)
        source = f"{folder.resolve().name}/"
        folders, rows, left_out = _read(folder, source, expected)
        unlisted = 0
        if drops is not None:
            unlisted = len(drops - {row.name for row in rows})
            rows = _without(rows, [row.name in drops for row in rows], "drop list", left_out)
        if self.only_expected:
            strange = [row.domain not in expected.domains for row in rows]
            rows = _without(rows, strange, "not a domain of the data set", left_out)
        manifest = _manifest(rows, folder, source, self.splits)
        manifest.check()
        return manifest, compare(
            expected,
            folders,
            [(row.domain, row.label) for row in rows],
            left_out=left_out,
            unlisted=unlisted,
            others=tuple(name for name in _others(folder) if name not in expected.lists),
            empty=tuple(row.image for row in rows if not (folder / row.image).stat().st_size),
        )


def _told(check: FolderCheck) -> list[str | Listing]:
    header = ("domain", "folder", "images", "expected", "classes", "expected")
    rows = [
        [DASH if value is None else str(value) for value in astuple(domain)]
        for domain in check.domains
    ]
    return [
        f"{check.title}, nearest edition: {check.edition} ({check.expected} images)",
        Listing(header, rows),
        *([f"warning: {difference}" for difference in check.differences()] or ["as expected"]),
    ]


def _domain_folder(root: Path, expected: Benchmark) -> Path:
    """`root`, or a folder in it, as archives make one: whichever holds most of the domains."""
    if not root.is_dir():
        raise ManifestError(
            f"there is no folder '{root}' with {expected.title}; "
            f"get it from {' or '.join(expected.sources)}; licence: {expected.licence}"
        )
    inside = sorted(entry for entry in root.iterdir() if entry.is_dir())
    best = max([root, *inside], key=lambda folder: len(_fitting(folder, expected)))
    if _fitting(best, expected):
        _require_half(best, expected)
        return best
    held = listed([folder.name for folder in inside]) if inside else "no folders"
    raise ManifestError(
        f"{root} has no domain of {expected.title} ({', '.join(expected.domains)}); it has {held}: "
        "name the folder that holds the domains, or another --dataset"
    )


def _fitting(folder: Path, expected: Benchmark) -> set[str]:
    """The domains of `expected` that `folder` holds."""
    names = (entry.name for entry in folder.iterdir() if entry.is_dir())
    return {_domain(name, expected) for name in names} & set(expected.domains)


def _require_half(folder: Path, expected: Benchmark) -> None:
    """One folder called sketch makes no DomainNet."""
    present = _fitting(folder, expected)
    if 2 * len(present) >= len(expected.domains):
        return
    remedy = "check --dataset and the folder"
    for name, other in BENCHMARKS.items():
        if 2 * len(_fitting(folder, other)) >= len(other.domains):
            remedy = f"it looks like {other.title}, --dataset {name}"
    raise ManifestError(
        f"{folder} has {len(present)} of the {len(expected.domains)} domains of {expected.title} "
        f"({', '.join(sorted(present))}); {remedy}"
    )


def _domain(folder: str, expected: Benchmark) -> str:
    names = {folded(name): name for name in expected.domains}
    return names.get(folded(folder)) or expected.aliases.get(folded(folder)) or folder


def _read(
    root: Path, source: str, expected: Benchmark
) -> tuple[dict[str, str], list[_Row], dict[str, int]]:
    """(folder of each domain, rows, images left out and why)."""
    table, found = readers.read_folder(root, source)
    paths = [path.split("/") for path in table["image"].to_pylist()]
    folders: dict[str, str] = {}
    for folder in found:
        domain = _domain(folder, expected)
        if domain in folders:
            raise ManifestError(
                f"{source} has '{folders[domain]}' and '{folder}', which are both {domain}; "
                "remove one of them"
            )
        folders[domain] = folder
    parted = _parted(paths)
    owner = {folder: domain for domain, folder in folders.items()}
    # "Alarm_Clock" in one domain and "alarm clock" in another are one class, spelt as first seen.
    spelt: dict[str, str] = dict(expected.class_aliases)
    rows: list[_Row] = []
    left_out: dict[str, int] = {}
    for parts in paths:
        folder, below = parts[0], parts[1:]
        split = None
        if folder in parted:
            if "full" in parted[folder] and below[0] != "full":
                why = f"in '{below[0]}' of a domain that also has 'full'"
                left_out[why] = left_out.get(why, 0) + 1
                continue
            split, below = _PARTS[below[0]], below[1:]
        label = spelt.setdefault(folded(below[0]), below[0])
        name = "/".join([owner[folder], *below])
        rows.append(_Row("/".join(parts), owner[folder], label, split, name))
    return folders, rows, left_out


def _parted(paths: Sequence[Sequence[str]]) -> dict[str, set[str]]:
    """Domain folders with a folder for each part between domain and class, and these parts."""
    second: dict[str, set[str]] = defaultdict(set)
    shallow = set()
    for parts in paths:
        second[parts[0]].add(parts[1])
        if len(parts) < 4:
            shallow.add(parts[0])
    return {
        folder: names
        for folder, names in second.items()
        if names <= set(_PARTS) and folder not in shallow
    }


def _drop_list(path: Path, expected: Benchmark) -> set[str]:
    path = path.expanduser()
    if not path.is_file():
        raise ManifestError(f"there is no drop list '{path}'; check the path")
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    split = (line.removeprefix("./").partition("/") for line in lines if line)
    return {f"{_domain(folder, expected)}/{rest}" for folder, _, rest in split}


def _without(
    rows: list[_Row], dropped: Sequence[bool], why: str, left_out: dict[str, int]
) -> list[_Row]:
    if any(dropped):
        left_out[why] = sum(dropped)
    return [row for row, drop in zip(rows, dropped, strict=True) if not drop]


def _manifest(rows: Sequence[_Row], root: Path, source: str, drawn: SplitSettings) -> Manifest:
    text = pa.string()
    columns = ("image", "label", "domain")
    table = pa.table({c: pa.array([getattr(row, c) for row in rows], text) for c in columns})
    if all(row.split for row in rows):
        splits = pa.array([row.split for row in rows], text)
    else:
        same = same_content(table, root)
        splits = seeded_splits(table, val_share=drawn.val_share, seed=drawn.seed, same=same)
    classes = tuple(sorted({row.label for row in rows}))
    return Manifest(table.append_column("split", splits), classes, root.resolve(), source)


def _others(root: Path) -> tuple[str, ...]:
    """Files that the reader passes over: no images, or images outside any domain."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__MACOSX")
        below = Path(folder).relative_to(root)
        for name in sorted(files):
            image = name.rpartition(".")[2].lower() in readers.IMAGE_EXTENSIONS
            if not name.startswith(".") and not (image and below.parts):
                found.append((below / name).as_posix())
    return tuple(found)
