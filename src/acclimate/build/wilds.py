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
    in_short,
    required,
    verdict,
    with_origin,
)
from acclimate.core.errors import ManifestError, require_known
from acclimate.core.progress import Watch
from acclimate.core.text import count, listed
from acclimate.data import readers
from acclimate.data.manifest import Manifest

# (role of the domain, split) of the rows of each official split
SIDES = {
    "train": ("train", "train"),
    "id_val": ("train", "val"),
    "id_test": ("train", "test"),
    "val": ("val", "val"),
    "test": ("test", "test"),
}


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
        node = f"patient_{row['patient']}_node_{row['node']}"
        # The split of a row counts in the training hospitals alone: of the others all is unseen.
        official = {"1": "val", "2": "test"}.get(row["center"])
        yield Picture(
            f"patches/{node}/patch_{node}_x_{row['x_coord']}_y_{row['y_coord']}.png",
            {"0": "normal", "1": "tumor"}.get(row["tumor"], ""),
            f"hospital-{row['center']}",
            official or {"0": "train", "1": "id_val"}.get(row["split"]),
            {"slide": row["slide"]},
        )


def _iwildcam(root: Path) -> Iterator[Picture]:
    names = {row["y"]: row["name"] for row in _rows(root / "categories.csv", "y", "name")}
    columns = ("split", "location_remapped", "seq_id", "y", "filename")
    for row in _rows(root / "metadata.csv", *columns):
        yield Picture(
            f"train/{row['filename']}",  # where images of all splits are
            names.get(row["y"], ""),
            f"location-{row['location_remapped']}",
            row["split"],
            {"group": row["seq_id"]},
        )


def _fmow(root: Path) -> Iterator[Picture]:
    codes = _rows(root / "country_code_mapping.csv", "alpha-3", "region")
    regions = {row["alpha-3"]: row["region"] for row in codes}
    columns = ("split", "category", "country_code", "timestamp")
    for number, row in enumerate(_rows(root / "rgb_metadata.csv", *columns)):
        region, year = regions.get(row["country_code"]) or "Other", row["timestamp"][:4]
        # Split by place first: places to test on are in no other part, in whatever year.
        official = {
            ("train", "seen"): "train",
            ("val", "seen"): "id_val",
            ("test", "seen"): "id_test",
            ("val", "later"): "val",
            ("test", "latest"): "test",
        }.get((row["split"], "latest" if year >= "2016" else "later" if year >= "2013" else "seen"))
        yield Picture(
            f"images/rgb_img_{number}.png",
            row["category"],
            f"{region}-{year}",
            official,
            {"region": region, "year": year},
        )


def _rxrx1(root: Path) -> Iterator[Picture]:
    columns = ("experiment", "plate", "well", "site", "sirna_id", "dataset", "cell_type")
    for row in _rows(root / "metadata.csv", *columns):
        # Each well was photographed twice: once to train on, once to test on in the same domain.
        second = row["dataset"] == "train" and row["site"] == "2"
        yield Picture(
            f"images/{row['experiment']}/Plate{row['plate']}/{row['well']}_s{row['site']}.png",
            row["sirna_id"],
            row["experiment"],
            "id_test" if second else row["dataset"],
            {"cell_type": row["cell_type"], "well": row["well"]},
        )


@dataclass(frozen=True, kw_only=True)
class Release:
    """A data set as it is given out now, and how its tables are read."""

    title: str
    folder: str  # that the download makes
    pictures: Callable[[Path], Iterator[Picture]]
    splits: Mapping[str, int]  # images of each official split
    classes: int
    licence: str
    source: str


RELEASES = {
    "camelyon17": Release(
        title="Camelyon17-WILDS 1.0",
        folder="camelyon17_v1.0",
        pictures=_camelyon17,
        splits={"train": 302436, "id_val": 33560, "val": 34904, "test": 85054},
        classes=2,
        licence="https://creativecommons.org/publicdomain/zero/1.0/",
        source="https://camelyon17.grand-challenge.org/",
    ),
    "iwildcam": Release(
        title="iWildCam2020-WILDS 2.0",
        folder="iwildcam_v2.0",
        pictures=_iwildcam,
        splits={"train": 129809, "id_val": 7314, "id_test": 8154, "val": 14961, "test": 42791},
        classes=182,
        licence="https://cdla.io/permissive-1-0/",
        source="https://www.kaggle.com/c/iwildcam-2020-fgvc7",
    ),
    "fmow": Release(
        title="FMoW-WILDS 1.1",
        folder="fmow_v1.1",
        pictures=_fmow,
        splits={"train": 76863, "id_val": 11483, "id_test": 11327, "val": 19915, "test": 22108},
        classes=62,
        licence="https://github.com/fMoW/dataset/blob/master/LICENSE",
        source="https://github.com/fMoW/dataset",
    ),
    "rxrx1": Release(
        title="RxRx1-WILDS 1.0",
        folder="rxrx1_v1.0",
        pictures=_rxrx1,
        splits={"train": 40612, "id_test": 40612, "val": 9854, "test": 34432},
        classes=1139,
        licence="https://creativecommons.org/licenses/by-nc-sa/4.0/",
        source="https://www.rxrx.ai/rxrx1",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Wilds(Builder):
    """Domains are hospitals, camera traps, regions by year, or experiments."""

    example = "acclimate build wilds data --data camelyon17 --out camelyon17.parquet"

    root: Path = argument("The folder that WILDS downloaded to, or the data set's own in it.")
    data: str = required(f"{', '.join(RELEASES)}.")
    out: Path = required(OUT)

    def build(self, watch: Watch) -> Built:
        require_known(self.data, RELEASES, f"there is no '{self.data}' of WILDS here")
        release = RELEASES[self.data]
        root = self.root.expanduser()
        if not root.is_dir():
            raise ManifestError(f"there is no folder '{root}' with {release.title}; check the path")
        if (root / release.folder).is_dir():
            root = root / release.folder
        pictures = list(release.pictures(root))
        used = [picture for picture in pictures if picture.official is not None]
        source = f"{root.resolve().name}/"
        manifest = Manifest.from_rows(_table(used, source), root, source, val_share=0, seed=0)
        manifest.check()
        manifest = with_origin(manifest, release.licence, release.source)
        manifest.write(self.out)
        return _told(release, manifest, self.out, left_out=len(pictures) - len(used))


def _told(release: Release, manifest: Manifest, out: Path, left_out: int) -> Built:
    """What was built, and its splits beside the published ones."""
    sizes = Counter(manifest.table["official_split"].to_pylist())
    found = [
        line
        for split, expected in release.splits.items()
        for line in differences(f"split '{split}'", sizes[split], expected)
    ]
    if len(manifest.classes) != release.classes:
        classes = count(len(manifest.classes), "class", "classes")
        found.append(f"{release.title} has {classes}, not {release.classes}")
    notes = [f"{count(left_out, 'image')} in no official split left out"] if left_out else []
    rows = [[name, str(sizes[name]), str(number)] for name, number in release.splits.items()]
    return Built(
        manifest=manifest,
        out=out,
        facts={"splits": dict(sizes), "left_out": left_out, "differences": found},
        summary=[
            release.title,
            Listing(("split", "images", "expected"), rows),
            *notes,
            *verdict(found),
            in_short(manifest),
        ],
    )


def _table(pictures: Sequence[Picture], source: str) -> pa.Table:
    """The rows of a manifest; a split that WILDS does not have is refused."""
    if not pictures:
        raise ManifestError(f"no row of {source} is in an official split; download it again")
    for picture in pictures:
        split = str(picture.official)
        require_known(split, SIDES, f"{picture.image} is in split '{split}', which is not WILDS'")
    sides = [SIDES[str(picture.official)] for picture in pictures]
    columns = {
        "image": [picture.image for picture in pictures],
        "label": [picture.label for picture in pictures],
        "domain": [picture.domain for picture in pictures],
        "role": [role for role, _ in sides],
        "split": [split for _, split in sides],
        "official_split": [picture.official for picture in pictures],
        **{name: [picture.free[name] for picture in pictures] for name in pictures[0].free},
    }
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
