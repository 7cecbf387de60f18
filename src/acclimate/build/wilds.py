"""Image data sets of WILDS 2 as its own download leaves them: its domains, its official splits.

Nothing is downloaded. WILDS' `id_val` and `id_test` are the validation and test splits of training
domains; its `val` and `test` are domains that no model trains on.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from acclimate.build.base import (
    OUT,
    Builder,
    Built,
    Listing,
    argument,
    differences,
    required,
    written,
)
from acclimate.core.errors import ManifestError, require_known
from acclimate.core.progress import Watch
from acclimate.core.text import count, listed
from acclimate.data import readers
from acclimate.data.manifest import Manifest

# (role of the domain, split) of the rows of each official split
SIDES = {
    "train": ("train", "train"), "id_val": ("train", "val"), "id_test": ("train", "test"),
    "val": ("val", "val"), "test": ("test", "test"),
}  # fmt: skip


class Picture(NamedTuple):
    """What a row of the metadata says. Without an official split it is in no part of WILDS."""

    image: str
    label: str
    domain: str
    official: str | None
    free: Mapping[str, str] = {}  # other columns


def _rows(path: Path, *columns: str) -> list[dict[str, str]]:
    """The named columns of a table, as text; what is missing is the empty text."""
    remedy = "name the folder that WILDS' download made, or another --data"
    if not path.is_file():
        raise ManifestError(f"there is no '{path.name}' in {path.parent}; {remedy}")
    table = readers.read_rows(path, columns)
    for column in columns:
        if column not in table.column_names:
            names = listed([other for other in table.column_names if other], 12)
            raise ManifestError(f"{path} has no column '{column}', but {names}; {remedy}")
    rows = table.select(columns).to_pylist()
    return [{column: value or "" for column, value in row.items()} for row in rows]


def _camelyon17(root: Path) -> Iterator[Picture]:
    columns = ("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
    for row in _rows(root / "metadata.csv", *columns):
        node, center = f"patient_{row['patient']}_node_{row['node']}", row["center"]
        image = f"patches/{node}/patch_{node}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        label = {"0": "normal", "1": "tumor"}.get(row["tumor"], "")
        # The split of a row counts in the training hospitals alone: of the others all is unseen.
        own = {"0": "train", "1": "id_val"}.get(row["split"])
        official = {"1": "val", "2": "test"}.get(center, own)
        yield Picture(image, label, f"hospital-{center}", official, {"slide": row["slide"]})


def _iwildcam(root: Path) -> Iterator[Picture]:
    names = {row["y"]: row["name"] for row in _rows(root / "categories.csv", "y", "name")}
    columns = ("split", "location_remapped", "seq_id", "y", "filename")
    for row in _rows(root / "metadata.csv", *columns):
        image, label = f"train/{row['filename']}", names.get(row["y"], "")  # of all splits
        domain = f"location-{row['location_remapped']}"
        yield Picture(image, label, domain, row["split"], {"group": row["seq_id"]})


def _fmow(root: Path) -> Iterator[Picture]:
    codes = _rows(root / "country_code_mapping.csv", "alpha-3", "region")
    regions = {row["alpha-3"]: row["region"] for row in codes}
    columns = ("split", "category", "country_code", "timestamp")
    for number, row in enumerate(_rows(root / "rgb_metadata.csv", *columns)):
        region, year = regions.get(row["country_code"]) or "Other", row["timestamp"][:4]
        # Places are split first: one to test on is in no other split, in whatever year.
        official = {"train": "train", "val": "id_val", "test": "id_test"}.get(row["split"])
        if year >= "2013":
            official = "test" if year >= "2016" else "val"
            official = official if official == row["split"] else None
        image, free = f"images/rgb_img_{number}.png", {"region": region, "year": year}
        yield Picture(image, row["category"], f"{region}-{year}", official, free)


def _rxrx1(root: Path) -> Iterator[Picture]:
    columns = ("experiment", "plate", "well", "site", "sirna_id", "dataset", "cell_type")
    for row in _rows(root / "metadata.csv", *columns):
        domain, well, site = row["experiment"], row["well"], row["site"]
        image = f"images/{domain}/Plate{row['plate']}/{well}_s{site}.png"
        # Each well was photographed twice: once to train on, once to test on in the same domain.
        second = row["dataset"] == "train" and site == "2"
        official, free = "id_test" if second else row["dataset"], {"cell_type": row["cell_type"]}
        yield Picture(image, row["sirna_id"], domain, official, {**free, "well": well})


@dataclass(frozen=True, kw_only=True)
class Release:
    """A data set as it is given out now, and how its tables are read."""

    pictures: Callable[[Path], Iterator[Picture]]
    splits: Mapping[str, int]  # images of each official split
    classes: int
    licence: str
    source: str


RELEASES = {
    "camelyon17": Release(
        pictures=_camelyon17, classes=2, source="https://camelyon17.grand-challenge.org/",
        splits={"train": 302436, "id_val": 33560, "val": 34904, "test": 85054},
        licence="https://creativecommons.org/publicdomain/zero/1.0/",
    ),
    "iwildcam": Release(
        pictures=_iwildcam, classes=182, source="https://www.kaggle.com/c/iwildcam-2020-fgvc7",
        splits={"train": 129809, "id_val": 7314, "id_test": 8154, "val": 14961, "test": 42791},
        licence="https://cdla.io/permissive-1-0/",
    ),
    "fmow": Release(
        pictures=_fmow, classes=62, source="https://github.com/fMoW/dataset",
        splits={"train": 76863, "id_val": 11483, "id_test": 11327, "val": 19915, "test": 22108},
        licence="https://github.com/fMoW/dataset/blob/master/LICENSE",
    ),
    "rxrx1": Release(
        pictures=_rxrx1, classes=1139, source="https://www.rxrx.ai/rxrx1",
        splits={"train": 40612, "id_test": 40612, "val": 9854, "test": 34432},
        licence="https://creativecommons.org/licenses/by-nc-sa/4.0/",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Wilds(Builder):
    """Domains are hospitals, camera traps, regions by year, or experiments."""

    example = "acclimate build wilds data --data camelyon17 --out camelyon17.parquet"

    root: Path = argument("The folder that WILDS downloaded to, or the data set's own in it.")
    data: str = required(f"{', '.join(RELEASES)}.")
    out: Path = required(OUT)

    def build(self, watch: Watch) -> Built:
        require_known(self.data, RELEASES, f"there is no '{self.data}' of WILDS here")
        release, root = RELEASES[self.data], self.root.expanduser()
        root = max(root.glob(f"{self.data}_v*"), default=root)  # the newest version
        pictures = list(release.pictures(root))
        used = [picture for picture in pictures if picture.official is not None]
        source = f"{root.resolve().name}/"
        manifest = Manifest.from_rows(_table(used, source), root, source, val_share=0, seed=0)
        manifest.check()
        sizes, classes = Counter(manifest.table["official_split"].to_pylist()), manifest.classes
        rows = [[name, str(sizes[name]), str(number)] for name, number in release.splits.items()]
        found = [
            difference
            for split, expected in release.splits.items()
            for difference in differences(f"split '{split}'", sizes[split], expected)
        ]
        if len(classes) != release.classes:
            found.append(f"{count(len(classes), 'class', 'classes')} instead of {release.classes}")
        left_out = len(pictures) - len(used)
        notes = [f"{count(left_out, 'image')} in no official split left out"] if left_out else []
        summary: list[str | Listing] = [Listing(("split", "images", "expected"), rows), *notes]
        facts = {"splits": dict(sizes), "left_out": left_out}
        built = Built(manifest=manifest, out=self.out, facts=facts, summary=summary)
        return written(built, release.licence, release.source, found)


def _table(pictures: Sequence[Picture], source: str) -> pa.Table:
    """The rows of a manifest; a split that WILDS does not have is refused."""
    if not pictures:
        raise ManifestError(f"no row of {source} is in an official split; download it again")
    rows = []
    for image, label, domain, official, free in pictures:
        require_known(str(official), SIDES, f"{image} has the split '{official}'")
        role, split = SIDES[str(official)]
        facts = {"domain": domain, "role": role, "split": split, "official_split": official}
        rows.append({"image": image, "label": label, **facts, **free})
    return pa.Table.from_pylist(rows)
