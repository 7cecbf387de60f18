"""The first pass: from rows of metadata to photos with a place and a label, each loss counted."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acclimate.paper.geo_yfcc.countries import Countries
from acclimate.paper.geo_yfcc.grid import NOWHERE
from acclimate.paper.geo_yfcc.rows import PHOTO_ID, Rows, gathered
from acclimate.paper.geo_yfcc.tags import Vocabulary

_DEGREES = r"^[-+]?[0-9]{1,3}(\.[0-9]*)?([eE][-+]?[0-9]{1,2})?$"
_PHOTO, _VIDEO = b"01"
_PLACEHOLDERS = {"at 0/0": 0.0, "at -1/-1": -1.0}

# What a row can be lost to in this pass, in the order of the checks.
LOSSES = (
    "too few columns",
    "too many columns",
    "neither photo nor video",
    "videos",
    "no coordinates",
    "coordinates are no numbers",
    "coordinates out of range",
    *_PLACEHOLDERS,
    "in no country",
    "no tags",
    "no tag is a label",
    "photo id is no number",
)
# Not lost: the tag in question matches nothing, the others of the photo may.
ODDITIES = ("photos with a broken percent-escape in a tag", "photos with a tag that is not UTF-8")

SCHEMA = pa.schema(
    [
        ("photo_id", pa.int64()),
        ("country", pa.int16()),
        ("labels", pa.large_list(pa.int32())),
        ("longitude", pa.float64()),
        ("latitude", pa.float64()),
        ("url", pa.large_binary()),
        ("page", pa.large_binary()),
    ]
)


@dataclass(frozen=True, eq=False)
class Reader:
    """What turns a block of metadata into candidates."""

    vocabulary: Vocabulary
    countries: Countries

    def read(self, block: bytes, columns: int) -> tuple[pa.Table, Counter[str]]:
        """The candidates in SCHEMA, and counts: `rows`, `candidates`, what was lost and odd."""
        rows = Rows.of(block, columns)
        losses = Counter({"too few columns": rows.too_few, "too many columns": rows.too_many})
        losses["rows"] = len(rows) + rows.too_few + rows.too_many
        keep = _photos(rows, losses)
        keep, longitude, latitude = _coordinates(rows, keep, losses)
        country = self.countries.locate(longitude, latitude)
        inside = country != NOWHERE
        losses["in no country"] += int(np.sum(~inside))
        keep, country = keep[inside], country[inside]
        longitude, latitude = longitude[inside], latitude[inside]
        chosen, labels = self._labels(rows, keep, losses)
        table = pa.table(
            {
                "photo_id": rows.values("photo_id", keep[chosen]),
                "country": country[chosen],
                "labels": labels,
                "longitude": longitude[chosen],
                "latitude": latitude[chosen],
                "url": rows.values("url", keep[chosen]),
                "page": rows.values("page", keep[chosen]),
            }
        )
        table = _numbered(table, losses)
        losses["candidates"] = table.num_rows
        return table, losses

    def _labels(
        self, rows: Rows, keep: np.ndarray, losses: Counter[str]
    ) -> tuple[np.ndarray, pa.Array]:
        """The positions in `keep` of rows with a label, and their labels."""
        start, end = rows.span("tags", keep)
        tagged = np.flatnonzero(end > start)
        losses["no tags"] += len(keep) - len(tagged)
        # With the tab after each field, which ends the last tag of the list.
        text, ends = gathered(rows.text, start[tagged], end[tagged] + 1)
        matches = self.vocabulary.match(text, ends)
        row, count = np.unique(matches.row, return_counts=True)
        losses["no tag is a label"] += len(tagged) - len(row)
        for name, number in zip(ODDITIES, (matches.broken_escapes, matches.not_utf8), strict=True):
            losses[name] += number
        offsets = np.concatenate([[0], np.cumsum(count)])
        labels = pa.LargeListArray.from_arrays(
            pa.array(offsets, pa.int64()), pa.array(matches.label)
        )
        return tagged[row], labels


def _photos(rows: Rows, losses: Counter[str]) -> np.ndarray:
    every = np.arange(len(rows))
    start, end = rows.span("marker", every)
    marker = np.where(end - start == 1, rows.text[start], 0)
    losses["videos"] += int(np.sum(marker == _VIDEO))
    losses["neither photo nor video"] += int(np.sum((marker != _PHOTO) & (marker != _VIDEO)))
    return np.flatnonzero(marker == _PHOTO)


class _Placed(NamedTuple):
    rows: np.ndarray
    longitude: np.ndarray
    latitude: np.ndarray


def _coordinates(rows: Rows, keep: np.ndarray, losses: Counter[str]) -> _Placed:
    """Rows with a place on Earth. 0/0 and -1/-1, both at sea, stand for "unknown" in real rows."""
    filled = np.ones(len(keep), dtype=bool)
    for field in ("longitude", "latitude"):
        start, end = rows.span(field, keep)
        filled &= end > start
    losses["no coordinates"] += int(np.sum(~filled))
    keep = keep[filled]
    texts = [
        rows.values(field, keep).cast(pa.large_binary()) for field in ("longitude", "latitude")
    ]
    numeric = np.ones(len(keep), dtype=bool)
    for text in texts:
        numeric &= np.asarray(pc.match_substring_regex(text, _DEGREES))
    losses["coordinates are no numbers"] += int(np.sum(~numeric))
    mask = pa.array(numeric)
    longitude, latitude = (_numbers(text.filter(mask)) for text in texts)
    placed = _Placed(keep[numeric], longitude, latitude)
    outside = (np.abs(longitude) > 180) | (np.abs(latitude) > 90)
    placed = _without(placed, outside, "coordinates out of range", losses)
    for name, value in _PLACEHOLDERS.items():
        placeholder = (placed.longitude == value) & (placed.latitude == value)
        placed = _without(placed, placeholder, name, losses)
    return placed


def _numbers(text: pa.Array) -> np.ndarray:
    # The regular expression has let only ASCII through.
    plain = pc.utf8_ltrim(text.cast(pa.large_string()), "+")
    numbers: np.ndarray = pc.cast(plain, pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def _without(placed: _Placed, lost: np.ndarray, name: str, losses: Counter[str]) -> _Placed:
    losses[name] += int(np.sum(lost))
    return _Placed(*(part[~lost] for part in placed)) if lost.any() else placed


def _numbered(table: pa.Table, losses: Counter[str]) -> pa.Table:
    """`table` with its photo ids as numbers, without the rows that have none."""
    numeric = pc.match_substring_regex(table["photo_id"], PHOTO_ID)
    losses["photo id is no number"] += table.num_rows - (pc.sum(numeric).as_py() or 0)
    table = table.filter(numeric)
    number = table["photo_id"].cast(pa.large_string()).cast(pa.int64())
    return table.set_column(0, "photo_id", number).cast(SCHEMA)
