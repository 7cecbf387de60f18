"""Geo-YFCC from the table that its authors released: a pickled pandas frame, read as data only."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acclimate.build.base import (
    MOST_SHARE,
    OUT,
    SEED,
    Builder,
    Built,
    Limited,
    argument,
    in_short,
    required,
)
from acclimate.config import setting
from acclimate.core.errors import ManifestError
from acclimate.core.files import parse_json, read_bytes
from acclimate.core.progress import Watch
from acclimate.data.columns import ROLES, image_codes, seeded_splits
from acclimate.data.manifest import Manifest
from acclimate.data.readers import require_name
from acclimate.paper.geo_yfcc.builder import image_name
from acclimate.paper.geo_yfcc.continents import continent_of
from acclimate.paper.geo_yfcc.labels import read_labels
from acclimate.paper.released.cells import (
    MOST_LABELS,
    MOST_NAME,
    degrees,
    metadata_of,
    text_of,
    value,
    whole_number,
)
from acclimate.paper.released.frames import Column, read_columns
from acclimate.paper.splits import Split, require_split

COLUMNS = (
    *("yfcc_row_id", "label_ids", "country", "country_id"),
    *("in_5k_label_ids", "is_train", "yfcc_metadata"),
)
_LOOKED_AT = tuple(name for name in COLUMNS if name != "label_ids")  # numbers of the authors' own
UNKNOWN_LABELS = "labels outside the list"
NO_PHOTO_ID, NO_URL = "metadata without a photo id", "metadata without a URL"
NOTES = (UNKNOWN_LABELS, NO_PHOTO_ID, NO_URL)  # photos stay that have these
MAX_LABELS = 50_000_000  # a list that all photos share costs a file nothing
MAX_LISTED = 200_000_000  # and takes time each time that it is made


@dataclass(frozen=True, kw_only=True)
class ReleasedSettings(Limited):
    # Country ids 0-39, 40-46 and 47-61.
    split: Split = setting((40, 7, 15), "Countries to train, validate and test on, by their ids.")
    val_share: float = setting(
        0.2, "Share of a domain's training photos kept for validation.", at_least=0,
        at_most=MOST_SHARE,
    )  # fmt: skip
    seed: int = setting(0, SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_split(self.split)


@dataclass(frozen=True, slots=True)
class _Photo:
    image: str
    domain: str
    split: str
    role: str
    photo_id: int | None
    where: Mapping[str, str]
    labels: tuple[tuple[str, str | None], ...]  # (class, synset)


@dataclass(frozen=True, kw_only=True)
class Released(Builder):
    """With `labels` classes are named as `build geo-yfcc` names them; without, they are
    ImageNet-5K's numbers."""

    example = (
        "acclimate build geo-yfcc-released geoyfcc.pkl --labels in5k_map.json --out geo.parquet"
    )

    file: Path = argument("The authors' pickled table, unpacked.")
    out: Path = required(OUT)
    labels: Path | None = setting(
        None, "The authors' in5k_map.json. [default: classes are numbers]"
    )
    images: Path | None = setting(None, "Folder of the photos. [default: images beside OUT]")
    settings: ReleasedSettings = field(default_factory=ReleasedSettings)

    def build(self, watch: Watch) -> Built:
        out = self.out.expanduser()
        require_name(out)
        known = None if self.labels is None else _numbered(self.labels.expanduser())
        columns = read_columns(self.file, COLUMNS)
        photos, counted = _photos(columns, known, self.settings, self.file.name)
        lost = {name: number for name, number in counted.items() if name not in NOTES and number}
        notes = {name: number for name in NOTES if (number := counted[name])}
        if not photos:
            why = ", ".join(f"{reason}: {number}" for reason, number in lost.items())
            raise ManifestError(
                f"no row of {self.file.name} can be used ({why}); give the file as released"
            )
        root = out.parent / "images" if self.images is None else self.images.expanduser()
        manifest = _manifest(photos, self.settings, root, out.name)
        manifest.check(check_files=False)
        manifest.write(out)
        summary = [f"left out: {number} × {reason}" for reason, number in lost.items()]
        summary += [f"note: {number} × {reason}" for reason, number in notes.items()]
        facts = {"photos": len(photos), "lost": lost, "notes": notes}
        summary += [f"{len(photos)} photos", in_short(manifest)]
        return Built(manifest=manifest, out=self.out, facts=facts, summary=summary)


def _numbered(path: Path) -> dict[int, tuple[str, str]]:
    """Number in ImageNet-5K -> (class name, synset)."""
    names = {label.synset: label.name for label in read_labels(path)}
    try:
        entries = parse_json(read_bytes(path).decode("utf-8-sig"))
        synsets = {int(entry["label_id"]): str(entry["label_name"]) for entry in entries}
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(
            f"{path.name} does not number its labels; give the authors' in5k_map.json"
        ) from error
    return {
        number: (names[synset], synset) for number, synset in synsets.items() if synset in names
    }


def _photos(
    columns: Mapping[str, Column],
    known: Mapping[int, tuple[str, str]] | None,
    settings: ReleasedSettings,
    source: str,
) -> tuple[list[_Photo], Counter[str]]:
    """Each photo of a domain once, by domain and photo id; what was lost, and what is odd."""
    counted: Counter[str] = Counter()

    def refusal(what: str) -> ManifestError:
        return ManifestError(f"{source} {what}; give the file as released")

    roles = np.repeat(ROLES, settings.split).tolist()
    ids: dict[str, int] = {}
    photos: dict[tuple[str, str], _Photo] = {}
    texts = columns["yfcc_metadata"]
    labelled = listed = 0
    for place, cells in enumerate(
        zip(*(_plain(columns[name]) for name in _LOOKED_AT), strict=True)
    ):
        if isinstance(texts, list):
            texts[place] = None  # by far the largest column: do not hold it twice
        row, country, number, numbers, is_train, metadata = map(value, cells)
        listed += sum(len(cell) for cell in (numbers, metadata) if isinstance(cell, list))
        if listed > MAX_LISTED:
            raise refusal(f"has more than {MAX_LISTED} values in the lists of its cells")
        if isinstance(country, str | bytes) and len(country) > MOST_NAME:
            counted[f"a country's name of more than {MOST_NAME} characters"] += 1
            continue
        if isinstance(numbers, list | tuple) and len(numbers) > MOST_LABELS:
            most = f"and a photo has at most {MOST_LABELS}"
            raise refusal(f"gives row {place} {len(numbers)} labels, {most}")
        domain, country_id = text_of(country).strip(), whole_number(number)
        if not domain or country_id is None or country_id >= len(roles):
            counted["no country, or an id that is out of range"] += 1
            continue
        if ids.setdefault(domain, country_id) != country_id:
            raise refusal(f"gives '{domain}' the ids {ids[domain]} and {country_id}")
        labels, where = _labels(numbers, known, counted), metadata_of(metadata)
        labelled += len(labels)
        if labelled > MAX_LABELS:
            raise refusal(f"has more than {MAX_LABELS} labels")
        photo_id = whole_number(where.get("photo_id"))
        image = _image(photo_id, whole_number(row))
        if not labels:
            counted["no label that is known"] += 1
        elif image is None:
            counted["neither a photo id nor a row id"] += 1
        elif type(is_train) not in (bool, int) or is_train not in (0, 1):
            counted["is_train is neither true nor false"] += 1
        elif (domain, image) in photos:
            counted["the same photo again"] += 1
        else:
            counted[NO_PHOTO_ID] += photo_id is None
            counted[NO_URL] += "url" not in where
            split, role = "train" if is_train else "test", roles[country_id]
            photos[domain, image] = _Photo(image, domain, split, role, photo_id, where, labels)
    order = sorted(photos, key=lambda key: (key[0], len(key[1]), key[1]))
    return [photos[key] for key in order], counted


def _plain(column: Column) -> list[Any]:
    return column if isinstance(column, list) else column.tolist()


def _image(photo_id: int | None, row: int | None) -> str | None:
    if photo_id is not None:
        return image_name(photo_id)
    return None if row is None else f"rows/{row}.jpg"


def _labels(
    cell: object, known: Mapping[int, tuple[str, str]] | None, counted: Counter[str]
) -> tuple[tuple[str, str | None], ...]:
    """Each once, by synset or number."""
    listed = list(cell) if isinstance(cell, list | tuple) else [cell]
    numbers = sorted(
        {number for number in (whole_number(value(one)) for one in listed) if number is not None}
    )
    if known is None:
        return tuple((f"{number:04d}", None) for number in numbers)
    labels = [known[number] for number in numbers if number in known]
    counted[UNKNOWN_LABELS] += len(numbers) - len(labels)
    return tuple(sorted(labels, key=lambda label: label[1]))


def _manifest(
    photos: Sequence[_Photo], settings: ReleasedSettings, root: Path, source: str
) -> Manifest:
    """One row for each photo and label of it, with the columns of `build geo-yfcc`."""
    rows = [(photo, *label) for photo in photos for label in photo.labels]
    owners = [photo for photo, _, _ in rows]
    texts: dict[str, list[str | None]] = {
        "image": [photo.image for photo in owners],
        "label": [name for _, name, _ in rows],
        "domain": [photo.domain for photo in owners],
        "split": _splits(owners, settings),
        "role": [photo.role for photo in owners],
        "continent": [continent_of(photo.domain) for photo in owners],
        "synset": [synset for _, _, synset in rows],
    }
    table = pa.table({name: pa.array(values, pa.string()) for name, values in texts.items()})
    photo_ids = pa.array([photo.photo_id for photo in owners], pa.int64())
    table = table.append_column("photo_id", photo_ids)
    for name in ("longitude", "latitude"):
        numbers = [degrees(photo.where.get(name)) for photo in owners]
        table = table.append_column(name, pa.array(numbers, pa.float64()))
    for name in ("url", "page"):
        values = pa.array([photo.where.get(name) for photo in owners], pa.string())
        table = table.append_column(name, values)
    classes = tuple(sorted({name for _, name, _ in rows}))
    domains = tuple(sorted({photo.domain for photo in photos}))
    return Manifest(table, classes, root.resolve(), source, domains)


def _splits(photos: Sequence[_Photo], settings: ReleasedSettings) -> list[str | None]:
    """`test` as released; of the others, a share of each domain is drawn for validation."""
    splits = np.array([photo.split for photo in photos], dtype=object)
    training = np.flatnonzero(splits == "train").tolist()
    table = pa.table(
        {
            "image": pa.array([photos[row].image for row in training], pa.string()),
            "domain": pa.array([photos[row].domain for row in training], pa.string()),
        }
    )
    images = image_codes(table, "image")  # which are yet to be fetched
    drawn = seeded_splits(table, images, val_share=settings.val_share, seed=settings.seed)
    splits[training] = drawn.to_pylist()
    return list(splits)
