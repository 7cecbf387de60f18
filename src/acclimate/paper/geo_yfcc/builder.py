"""Geo-YFCC from the raw metadata of YFCC100M: domains are countries, labels are tags.

Two passes. The first reads every row, in blocks, and keeps photos whose place lies in a country and
of whose tags one names a label (`reading.py`). The second chooses categories, countries, photos
and splits among them in the order of the paper's text (`stages.py`). Memory holds a few blocks
in the first pass, and ids, countries and labels of the kept photos in the second.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acclimate.build.base import OUT, Builder, Built, Listing, argument, flag, in_short, required
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.files import write_json
from acclimate.core.progress import Watch
from acclimate.core.text import DASH
from acclimate.data.manifest import Manifest
from acclimate.data.readers import require_name
from acclimate.paper.geo_yfcc.continents import continent_of
from acclimate.paper.geo_yfcc.countries import packaged_countries, read_polygons
from acclimate.paper.geo_yfcc.funnel import Funnel, funnel
from acclimate.paper.geo_yfcc.labels import Label, read_labels
from acclimate.paper.geo_yfcc.reading import Reader
from acclimate.paper.geo_yfcc.rows import compressed
from acclimate.paper.geo_yfcc.stages import GeoSettings, Photos, Selection, once, select
from acclimate.paper.geo_yfcc.tags import Vocabulary
from acclimate.paper.geo_yfcc.work import PIECE, StoredPiece, layouts, read_all


@dataclass(frozen=True, kw_only=True)
class GeoSources:
    """What is read. Countries come from `polygons`, else are packaged."""

    metadata: tuple[Path, ...] = required(
        "A metadata file of YFCC100M, plain, .bz2 or .gz; others may follow."
    )
    labels: Path = required("in5k_map.json, or a list of synsets, one on each line.")
    polygons: Path | None = setting(
        None, "GeoJSON of countries. [default: those of the extra 'geo']"
    )
    country_property: str | None = setting(
        None, "Property of the polygons that names their country."
    )
    keep_damaged: bool = flag("Take what can be read of damaged files.")

    def __post_init__(self) -> None:
        if self.country_property and not self.polygons:
            raise ConfigError("--country-property is of --polygons; give both or neither")


def image_name(photo_id: int) -> str:
    """Where a photo is expected below the root: 3949570093 -> 394/3949570093.jpg."""
    return f"{str(photo_id)[:3]}/{photo_id}.jpg"


@dataclass(frozen=True, kw_only=True)
class GeoYfcc(Builder):
    """The first pass is kept in `OUT.work/` until the end, so that a killed build goes on, and one
    that stops for want of photos can be asked again with other thresholds at once."""

    example = (
        "acclimate build geo-yfcc --metadata yfcc100m_dataset-0.bz2 "
        "yfcc100m_dataset-1.bz2 --labels in5k_map.json --out geo.parquet"
    )
    resumes = True

    more: tuple[Path, ...] = argument("Further metadata files.", default=(), metavar="[FILE]...")
    sources: GeoSources
    out: Path = required(OUT)
    settings: GeoSettings = field(default_factory=GeoSettings)
    keep_ilsvrc12: bool = flag("Keep labels that are among ILSVRC12's 1,000.")
    images: Path | None = setting(None, "Folder of the photos. [default: images beside OUT]")
    workers: int = setting(2, "Threads that read.", at_least=1)
    piece_size: int = PIECE

    def build(self, watch: Watch) -> Built:
        try:
            made = self.made(watch)
        except ManifestError:
            self._report.unlink(missing_ok=True)  # of an earlier build, of which it is the outcome
            raise
        return self.write(*made)

    def when_stopped(self) -> str:
        if not any(map(compressed, (*self.sources.metadata, *self.more))):
            return super().when_stopped()
        return (
            "stopped; the same command goes on; a compressed file that was not read to its end is "
            "read from its beginning"
        )

    def write(self, manifest: Manifest, funnel: Funnel) -> Built:
        out = self.out.expanduser()
        write_json(self._report, funnel.as_dict())
        manifest.write(out)
        shutil.rmtree(self._work, ignore_errors=True)
        stages = [(stage.lost_to, str(stage.lost), str(stage.left)) for stage in funnel.stages]
        rows = [("rows read", DASH, str(funnel.rows)), *stages]
        return Built(
            manifest=manifest,
            out=self.out,
            facts={"report": str(self._report), "funnel": funnel.as_dict()},
            summary=[
                Listing(("lost to", "lost", "left"), rows),
                f"{funnel.photos} photos, {in_short(manifest)}",
                *(f"note: {note}" for note in funnel.notes),
            ],
            files=[("report", self._report)],
        )

    @property
    def _report(self) -> Path:
        return self.out.expanduser().with_suffix(".report.json")

    @property
    def _work(self) -> Path:
        return self.out.expanduser().with_name(f"{self.out.name}.work")

    def made(self, watch: Watch) -> tuple[Manifest, Funnel]:
        """The manifest, and what became of every row. The photos need not be there."""
        out = self.out.expanduser()
        require_name(out)
        settings = replace(self.settings, exclude_ilsvrc12=not self.keep_ilsvrc12)
        sources = replace(self.sources, metadata=(*self.sources.metadata, *self.more))
        metadata = [path.expanduser() for path in sources.metadata]
        files = layouts(metadata, keep_damaged=sources.keep_damaged)
        labels = read_labels(sources.labels, exclude_ilsvrc12=settings.exclude_ilsvrc12)
        if sources.polygons is None:
            countries = packaged_countries()
        else:
            countries = read_polygons(sources.polygons, name_property=sources.country_property)
        reader = Reader(Vocabulary.of(labels, plurals=settings.plurals), countries)
        parts = read_all(
            files,
            reader,
            self._work,
            key=_key(labels, reader, settings),
            keep_damaged=sources.keep_damaged,
            workers=self.workers,
            piece_size=self.piece_size,
            watch=watch,
        )
        counts = sum((part.counts for part in parts), Counter())
        counts["files without rows"] = len(sources.metadata) - len(files)
        selection = _selected(parts, countries.names, len(labels), settings, counts)
        facts: dict[str, object] = {
            "metadata": [path.name for path in sources.metadata],
            "labels": sources.labels.name,
            "label_count": len(labels),
            "countries": countries.source,
        }
        root = out.parent / "images" if self.images is None else self.images.expanduser()
        manifest = _manifest(selection, labels, parts, root, out.name)
        manifest.check(check_files=False)
        return manifest, funnel(counts, selection, settings, facts)


def _selected(
    parts: Sequence[StoredPiece],
    names: Sequence[str],
    labels: int,
    settings: GeoSettings,
    counts: Counter[str],
) -> Selection:
    """The second pass, after which `counts` of the first also has the duplicates."""
    photos = once(_candidates(parts))
    counts["duplicates of a photo"] = counts["candidates"] - len(photos)
    held = [photos]
    del photos  # or this function would keep them all while `select` goes on with fewer
    try:
        return select(held.pop(), names, labels, settings)
    except ManifestError as error:
        raise ManifestError(f"{error} ({_where_rows_went(counts)})") from None


def _where_rows_went(counts: Counter[str]) -> str:
    lost = ", ".join(
        f"{number} lost to {why}"
        for why, number in counts.most_common()
        if number and why not in ("rows", "candidates")
    )
    return f"of {counts['rows']} rows {counts['candidates']} have a place and a label; {lost}"


def _key(labels: Sequence[Label], reader: Reader, settings: GeoSettings) -> str:
    """A digest of everything that decides what the first pass makes of a row."""
    facts = (
        [(label.synset, label.lemmas) for label in labels],
        settings.plurals,
        reader.countries.digest(),
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _candidates(parts: Sequence[StoredPiece]) -> Photos:
    """What the second pass needs of all candidates; the texts stay on disk."""
    columns = ["photo_id", "country", "labels"]
    table = pa.concat_tables([pq.read_table(part.path, columns=columns) for part in parts])
    count = pc.list_value_length(table["labels"]).to_numpy()
    return Photos(
        table["photo_id"].to_numpy(),
        table["country"].to_numpy(),
        np.concatenate([[0], np.cumsum(count, dtype=np.int64)]),
        pc.list_flatten(table["labels"]).to_numpy(),
        np.arange(table.num_rows),
    )


def _texts(parts: Sequence[StoredPiece], place: np.ndarray) -> pa.Table:
    """Coordinates and addresses of the chosen candidates, in their order; one part at a time."""
    order = np.argsort(place)
    columns = ["longitude", "latitude", "url", "page"]
    taken, start = [], 0
    for part in parts:
        table = pq.read_table(part.path, columns=columns)
        inside = place[order] - start
        inside = inside[(inside >= 0) & (inside < table.num_rows)]
        taken.append(table.take(pa.array(inside)))
        start += table.num_rows
    back = np.empty(len(place), dtype=np.int64)
    back[order] = np.arange(len(place))
    return pa.concat_tables(taken).take(pa.array(back))


def _manifest(
    selection: Selection,
    labels: Sequence[Label],
    parts: Sequence[StoredPiece],
    root: Path,
    source: str,
) -> Manifest:
    """One row for each photo and label of it, by domain, photo id and synset."""
    photos = selection.photos
    owner = photos.owner
    texts = _texts(parts, photos.place).take(pa.array(owner))
    names = [image_name(photo) for photo in photos.photo_id.tolist()]

    def chosen(values: Sequence[str | None] | np.ndarray, index: np.ndarray) -> pa.Array:
        return pa.array(values, pa.string()).take(pa.array(index))

    domain = selection.domain[owner]
    table = pa.table(
        {
            "image": chosen(names, owner),
            "label": chosen([label.name for label in labels], photos.label),
            "domain": chosen(selection.domains, domain),
            "split": chosen(selection.split, owner),
            "role": chosen(selection.roles, domain),
            "continent": chosen([continent_of(name) for name in selection.domains], domain),
            "synset": chosen([label.synset for label in labels], photos.label),
            "photo_id": photos.photo_id[owner],
            "longitude": texts["longitude"],
            "latitude": texts["latitude"],
            "url": _decoded(texts["url"]),
            "page": _decoded(texts["page"]),
        }
    )
    classes = tuple(sorted({labels[i].name for i in np.unique(photos.label)}))
    return Manifest(table, classes, root.resolve(), source, selection.domains)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text; bytes that are not UTF-8, of which no address can be made, become U+FFFD."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [value.decode("utf-8", errors="replace") for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
