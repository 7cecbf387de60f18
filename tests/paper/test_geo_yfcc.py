"""Geo-YFCC from metadata: a known answer, nasty rows, restarts, and each rule by hand."""

import bz2
import gzip
import importlib.util
import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.progress import Watch, unwatched
from acclimate.data.manifest import Manifest
from acclimate.paper.geo_yfcc import rows, work
from acclimate.paper.geo_yfcc.funnel import Funnel
from acclimate.paper.geo_yfcc.labels import Label, read_labels
from acclimate.paper.geo_yfcc.reading import LOSSES, ODDITIES, Reader
from acclimate.paper.geo_yfcc.rows import Piece, Rows, blocks, pieces
from acclimate.paper.geo_yfcc.stages import Photos, once, select, shared_out
from acclimate.paper.geo_yfcc.tags import Vocabulary, normalise
from fixtures.command_line import app, command
from fixtures.errors import refused

pytest.importorskip("shapely")

from acclimate.paper.geo_yfcc.builder import (
    GeoSettings,
    GeoSources,
    GeoYfcc,
    image_name,
)
from acclimate.paper.geo_yfcc.countries import read_polygons


def _generator() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "yfcc_rows.py"
    spec = importlib.util.spec_from_file_location("yfcc_rows", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["yfcc_rows"] = module
    spec.loader.exec_module(module)
    return module


yfcc_rows = _generator()
SMALL = GeoSettings(
    min_countries=5, min_images=30, max_images=80, test_images=10, split=(4, 1, 2), seed=3
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("yfcc")
    answer = yfcc_rows.write(folder, rows=8000, seed=1, files=2, countries=12, vertices=300)
    return folder, answer


def sources(folder: Path, **more: Any) -> GeoSources:
    files, polygons = tuple(sorted(folder.glob("yfcc100m_dataset-*"))), folder / "world.geojson"
    return GeoSources(metadata=files, labels=folder / "labels.txt", polygons=polygons, **more)


class Made(NamedTuple):
    manifest: Manifest
    funnel: Funnel


def made_from(
    sources: GeoSources,
    out: Path,
    settings: GeoSettings,
    *,
    watch: Watch = unwatched,
    **options: Any,
) -> Made:
    builder = GeoYfcc(sources=sources, out=out, settings=settings, **options)
    made = Made(*builder.made(watch))
    builder.write(*made)
    return made


def assert_is_the_answer(built: Made, answer: Any, settings: GeoSettings) -> None:
    """Every count, and every row, as the generator knows them."""
    right = yfcc_rows.expected(
        answer,
        min_countries=settings.min_countries,
        min_images=settings.min_images,
        max_images=settings.max_images,
    )
    funnel = built.funnel
    assert funnel.rows == answer.rows
    lost = [stage.lost for stage in funnel.stages]
    reading = [answer.lost[name] for name in (*LOSSES, "duplicates of a photo")]
    assert lost == [*reading, *right["lost"]]
    left = [stage.left for stage in funnel.stages]
    assert left == (funnel.rows - np.cumsum(lost)).tolist()
    assert {name: funnel.odd[name] for name in ODDITIES} == dict(answer.odd)
    assert {d.domain: d.photos for d in funnel.domains} == right["photos"]
    assert list(funnel.categories.values())[:2] == right["categories"]
    rows: dict[str, dict[int, list[str]]] = {}
    for row in built.manifest.table.to_pylist():
        rows.setdefault(row["domain"], {}).setdefault(row["photo_id"], []).append(row["synset"])
    for domain, photos in rows.items():
        assert len(photos) == right["photos"][domain]
        assert photos.items() <= right["domains"][domain].items()


@pytest.mark.parametrize(("columns", "suffix"), [(23, ""), (25, ".bz2"), (25, ".gz")])
def test_the_known_answer(tmp_path: Path, columns: int, suffix: str) -> None:
    answer = yfcc_rows.write(
        tmp_path,
        rows=6000,
        seed=2,
        files=3,
        columns=columns,
        suffix=suffix,
        countries=12,
        vertices=300,
    )
    built = made_from(sources(tmp_path), tmp_path / "geo.parquet", SMALL)
    assert_is_the_answer(built, answer, SMALL)
    assert set(answer.lost) == {*LOSSES, "duplicates of a photo"}, "the generator makes every kind"
    assert {stage.lost_to: stage.lost for stage in built.funnel.stages}[
        "only categories in fewer than 5 countries"
    ] > 0


def test_nothing_sampled_gives_exactly_the_rows_of_the_answer(
    made: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, answer = made
    settings = GeoSettings(min_images=30, max_images=10_000, test_images=10, split=(4, 1, 2))
    built = made_from(sources(folder), tmp_path / "geo.parquet", settings)
    right = yfcc_rows.expected(answer, min_countries=5, min_images=30, max_images=10_000)
    rows = {
        (row["domain"], row["photo_id"], row["synset"]) for row in built.manifest.table.to_pylist()
    }
    assert len(rows) == len(built.manifest)
    assert rows == {
        (domain, photo, label)
        for domain, photos in right["domains"].items()
        for photo, labels in photos.items()
        for label in labels
    }


def test_the_manifest_and_its_report(made: tuple[Path, Any], tmp_path: Path) -> None:
    built = made_from(sources(made[0]), tmp_path / "geo.parquet", SMALL)
    manifest = Manifest.read(tmp_path / "geo.parquet")
    assert manifest.digest() == built.manifest.digest()
    assert manifest.problems(check_files=False) == []
    assert manifest.root == (tmp_path / "images").resolve()
    row = manifest.table.to_pylist()[0]
    photo = row["photo_id"]
    assert row["image"] == image_name(photo) == f"{str(photo)[:3]}/{photo}.jpg"
    assert row["url"].startswith("http://farm") and f"/{photo}_" in row["url"]
    assert row["page"].endswith(f"/{photo}/")
    assert -180 <= row["longitude"] <= 180 and -90 <= row["latitude"] <= 90
    assert "temple" in manifest.classes and "quokka" not in manifest.classes
    report = json.loads((tmp_path / "geo.report.json").read_text())
    assert report == json.loads(json.dumps(built.funnel.as_dict()))
    assert not (tmp_path / "geo.parquet.work").exists()


def test_splits_and_roles(made: tuple[Path, Any], tmp_path: Path) -> None:
    built = made_from(sources(made[0]), tmp_path / "geo.parquet", SMALL)
    split_of: dict[str, set[str]] = {}
    photos: Counter[tuple[str, str]] = Counter()
    for row in built.manifest.table.to_pylist():
        seen = split_of.setdefault(row["image"], set())
        photos[row["domain"], row["split"]] += not seen
        seen.add(row["split"])
    assert all(len(splits) == 1 for splits in split_of.values())
    assert len(built.manifest) > len(split_of), "some photos have several labels"
    for counts in built.funnel.domains:
        assert counts.test == photos[counts.domain, "test"] == 10
        assert counts.val == photos[counts.domain, "val"] == round(0.2 * (counts.photos - 10))
        assert counts.train == photos[counts.domain, "train"]
    roles = Counter(built.manifest.roles().values())
    asked = shared_out(len(built.manifest.domains), (4, 1, 2))
    assert (roles["train"], roles["val"], roles["test"]) == asked
    note = f"7 domains were asked for (4 train, 1 val, 2 test) and {sum(asked)} found"
    assert any(note in given for given in built.funnel.notes)


def test_same_seed_same_bytes_whatever_the_pieces_and_threads(
    made: tuple[Path, Any], tmp_path: Path
) -> None:
    def bytes_of(name: str, settings: GeoSettings, files: GeoSources, **options: int) -> bytes:
        made_from(files, tmp_path / name / "geo.parquet", settings, **options)
        return (tmp_path / name / "geo.parquet").read_bytes()

    given = sources(made[0])
    backwards = replace(given, metadata=given.metadata[::-1])
    once = bytes_of("a", SMALL, given)
    assert once == bytes_of("b", SMALL, given, workers=1, piece_size=99_999)
    other = replace(SMALL, seed=4)
    assert once != bytes_of("c", other, given)
    sampled = [
        set(pq.read_table(tmp_path / name / "geo.parquet")["image"].to_pylist()) for name in "ac"
    ]
    assert sampled[0] != sampled[1]
    # Duplicates are beside their originals here, so that the order of the files does not matter.
    assert once == bytes_of("e", SMALL, backwards)


def test_a_stopped_build_goes_on(
    made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "geo.parquet"
    made_from(sources(made[0]), tmp_path / "whole" / "geo.parquet", SMALL)
    reads: list[int] = []
    read = Reader.read
    allowed = 4  # the thread may begin another piece before it hears of the interruption

    def counted(self: Reader, block: bytes, columns: int) -> Any:
        reads.append(len(block))
        if len(reads) > allowed:
            raise KeyboardInterrupt
        return read(self, block, columns)

    monkeypatch.setattr(Reader, "read", counted)
    size = 400_000
    with pytest.raises(KeyboardInterrupt):
        made_from(sources(made[0]), out, SMALL, workers=1, piece_size=size)
    assert not out.exists()
    parts = sorted((tmp_path / "geo.parquet.work").iterdir())
    assert len(parts) == 4
    before = len(reads)
    allowed = 1_000
    made_from(sources(made[0]), out, SMALL, workers=1, piece_size=size)
    every = sum(len(pieces(path, size)) for path in sources(made[0]).metadata)
    assert len(reads) - before == every - 4
    assert out.read_bytes() == (tmp_path / "whole" / "geo.parquet").read_bytes()
    assert not (tmp_path / "geo.parquet.work").exists()


def test_parts_are_kept_for_other_thresholds_and_not_for_other_labels(
    made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "geo.parquet"
    strict = GeoSettings(min_images=5_000, max_images=5_000, test_images=10)
    with refused(ManifestError, "0 countries", 5000, "--split 40 7 15", "Hostland", " lost to "):
        made_from(sources(made[0]), out, strict)
    reads = []
    read = Reader.read
    monkeypatch.setattr(Reader, "read", lambda *a: (reads.append(1), read(*a))[1])
    with pytest.raises(ManifestError):
        made_from(sources(made[0]), out, replace(strict, plurals=True))
    assert len(reads) == 2
    made_from(sources(made[0]), out, SMALL)
    assert len(reads) == 2, "thresholds do not concern the first pass"


# Hand-written rows -------------------------------------------------------------------------------

WORLD = {
    "type": "FeatureCollection",
    "features": [
        {
            "type": "Feature",
            "properties": {"name": name},
            "geometry": {"type": "Polygon", "coordinates": [[*ring, ring[0]]]},
        }
        for name, ring in (
            ("Land", [[5, 5], [15, 5], [15, 15], [5, 15]]),
            ("Edge", [[170, -5], [180, -5], [180, 5], [170, 5]]),
            ("Ice", [[-180, -90], [180, -90], [180, -60], [-180, -60]]),
        )
    ],
}
LABELS = (Label("n1", "temple", ("temple",)), Label("n2", "tea house", ("tea house", "café")))


def line(**fields: str) -> bytes:
    values = {
        **dict.fromkeys(Rows.of(b"\n", 23).layout, ""),
        "photo_id": "123456",
        "title": "IMG",
        "tags": "temple",
        "longitude": "10.5",
        "latitude": "10.5",
        "url": "http://u/1.jpg",
        "page": "http://p/1",
        "marker": "0",
        **fields,
    }
    return "\t".join(values.values()).encode("utf-8", errors="surrogateescape") + b"\n"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    path = tmp_path_factory.mktemp("world") / "world.geojson"
    path.write_text(json.dumps(WORLD))
    return Reader(Vocabulary.of(LABELS), read_polygons(path))


@pytest.mark.parametrize(
    ("row", "lost_to"),
    [
        (line(longitude="", latitude=""), "no coordinates"),
        (line(longitude=""), "no coordinates"),
        (line(latitude=""), "no coordinates"),
        (line(longitude="null"), "coordinates are no numbers"),
        (line(latitude="NaN"), "coordinates are no numbers"),
        (line(latitude="10,5"), "coordinates are no numbers"),
        (line(latitude="1\udcff"), "coordinates are no numbers"),
        (line(longitude="180.1"), "coordinates out of range"),
        (line(latitude="-90.1"), "coordinates out of range"),
        (line(longitude="0", latitude="0.0"), "at 0/0"),
        (line(longitude="-0.0", latitude="0"), "at 0/0"),
        (line(longitude="-1.0", latitude="-1"), "at -1/-1"),
        (line(longitude="-30", latitude="20"), "in no country"),
        (line(latitude="90"), "in no country"),
        (line(title="a\ttitle"), "too many columns"),
        (line(marker="0\t"), "too many columns"),
        (line()[:-3] + b"\n", "too few columns"),
        (b"what is this\n", "too few columns"),
        (line(marker="1"), "videos"),
        (line(marker="1\r"), "videos"),
        (line(marker=""), "neither photo nor video"),
        (line(marker="01"), "neither photo nor video"),
        (line(tags=""), "no tags"),
        (line(tags=",,"), "no tag is a label"),
        (line(tags="temples"), "no tag is a label"),
        (line(tags="temple+bar"), "no tag is a label"),
        (line(tags="temple%4"), "no tag is a label"),
        (line(tags="temple%2Cfane"), "no tag is a label"),
        (line(title="temple", tags="x"), "no tag is a label"),
        (line(photo_id=""), "photo id is no number"),
        (line(photo_id="12a"), "photo id is no number"),
        (line(photo_id="0123"), "photo id is no number"),
        (line(photo_id="9" * 19), "photo id is no number"),
    ],
)
def test_nasty_rows_are_lost_to_one_thing_and_counted(
    reader: Reader, row: bytes, lost_to: str
) -> None:
    table, counts = reader.read(line() + row + line(), 23)
    assert table.num_rows == 2
    assert {name: n for name, n in counts.items() if n and name in LOSSES} == {lost_to: 1}
    assert counts["rows"] == 3


@pytest.mark.parametrize(
    ("row", "country"),
    [
        (line(longitude="180", latitude="0"), "Edge"),
        (line(longitude="-180.0", latitude="0"), "Edge"),
        (line(longitude="179.999999", latitude="4.9"), "Edge"),
        (line(longitude="33.3", latitude="-90"), "Ice"),
        (line(longitude="+10.5", latitude="1.05e1"), "Land"),
        (line(marker="0\r"), "Land"),
        (line(title="%zz%", description="\udcff\udcfe"), "Land"),
        (line(taken="null", uploaded="4501-01-01"), "Land"),
        (b"\n" + line() + b"\r\n", "Land"),
    ],
)
def test_odd_rows_that_are_good(reader: Reader, row: bytes, country: str) -> None:
    table, counts = reader.read(row, 23)
    assert table.num_rows == counts["rows"] == 1
    assert reader.countries.names[table["country"][0].as_py()] == country


def test_odd_tags_are_counted_and_the_others_of_the_photo_match(reader: Reader) -> None:
    rows = line(tags="100%,temple") + line(tags="%E9,caf\udce9,%FF,Caf%C3%A9") + line()
    table, counts = reader.read(rows, 23)
    assert table["labels"].to_pylist() == [[0], [1], [0]]
    assert [counts[name] for name in ODDITIES] == [1, 1]


def test_both_versions_have_the_same_fields(reader: Reader) -> None:
    first, *rest = line().split(b"\t")
    table, _ = reader.read(b"\t".join([b"7", first, b"hash", *rest]), 25)
    expected, _ = reader.read(line(), 23)
    assert table.equals(expected)
    assert table["photo_id"].to_pylist() == [123456]
    assert table["url"].to_pylist() == [b"http://u/1.jpg"]
    assert table["page"].to_pylist() == [b"http://p/1"]


# Tags and labels ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "key"),
    [
        (b"Tea+House", "tea house"),
        (b"tea_house", "tea house"),
        (b"TEA-HOUSE", "tea house"),
        (b"tea%20house", "tea house"),
        (b"tea%2Dhouse", "tea house"),
        (b"++tea__--house+", "tea house"),
        (b"Caf%C3%89", "café"),
        ("CAFÉ".encode(), "café"),
        (b"cafe%CC%81", "café"),
        (b"b%26w", "b&w"),
        (b"c%2B%2B", "c"),
        (b"100%", "100%"),
        (b"%zz", "%zz"),
        (b"caf%e9", "caf\ufffd"),
        (b"", ""),
    ],
)
def test_normalisation(tag: bytes, key: str) -> None:
    assert normalise(tag) == key


TAG = st.lists(
    st.sampled_from(
        [b"t", b"T", b"e", b"a", b"+", b"_", b"-", b" ", b"%20", b"%74", b"%", b"\xc3\xa9"]
    ),
    max_size=5,
).map(b"".join)


@effort(max_examples=200)
@given(st.lists(st.lists(TAG, min_size=1, max_size=5), min_size=1, max_size=6))
def test_matching_in_bulk_is_matching_one_by_one(lists: list[list[bytes]]) -> None:
    words = ("t", "te", "tea", "t e", "a t", "é", "té", "at", "ea t")
    labels = [Label(f"n{i}", word, (word,)) for i, word in enumerate(words)]
    labels.append(Label("n99", "both", ("t", "é")))
    joined = [b",".join(tags) for tags in lists]
    text = np.frombuffer(b"".join(row + b"\t" for row in joined), dtype=np.uint8)
    found = Vocabulary.of(labels).match(text, np.cumsum([len(row) + 1 for row in joined]))
    expected = [
        (number, label)
        for number, tags in enumerate(lists)
        for label, meant in enumerate(labels)
        if {normalise(tag) for tag in tags} & {*meant.lemmas}
    ]
    assert list(zip(found.row.tolist(), found.label.tolist(), strict=True)) == expected


def labels_in(tags: bytes, *labels: Label, plurals: bool) -> list[int]:
    text = np.frombuffer(tags + b"\t", dtype=np.uint8)
    return Vocabulary.of(labels, plurals=plurals).match(text, np.array([len(text)])).label.tolist()


def test_plurals_are_optional_and_give_way_to_lemmas() -> None:
    glass, glasses = Label("n1", "glass", ("glass",)), Label("n2", "glasses", ("glasses",))
    berry, toy = Label("n3", "berry", ("berry",)), Label("n4", "toy", ("toy",))
    every = (glass, glasses, berry, toy)
    assert labels_in(b"berries,toys,glasses", *every, plurals=False) == [1]
    assert labels_in(b"berries,toys,glasses", *every, plurals=True) == [1, 2, 3]
    assert labels_in(b"glasses", glass, plurals=True) == [0]
    assert labels_in(b"toies", toy, plurals=True) == []
    for tags in (b"+toy", b"toy+", b"x,_toy", b"toy-,x", b",toy,", b"+,toy"):
        assert labels_in(tags, toy, plurals=False) == [0], tags


def test_labels_from_the_authors_map_and_from_lists(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    # A bear, and two cranes, of which ILSVRC12 has both.
    entries = [
        {"label_id": "5", "label_name": "n02131653"},
        {"label_id": "9", "label_name": "n03126707"},
        {"label_id": "1", "label_name": "n02012849"},
    ]
    path.write_text(json.dumps(entries))
    labels = read_labels(path)
    assert [(label.synset, label.name) for label in labels] == [("n02131653", "bear")]
    every = read_labels(path, exclude_ilsvrc12=False)
    assert [label.name for label in every] == ["crane (n02012849)", "bear", "crane (n03126707)"]
    # With a byte order mark, as some editors put.
    path.write_text("n02131653\n\nn99\tyeti, abominable snowman\n", encoding="utf-8-sig")
    assert read_labels(path)[1] == Label("n99", "yeti", ("yeti", "abominable snowman"))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", ("is empty",)),
        ("n01440764\n", ("ILSVRC12",)),
        ("n99999999\nn99999998\nn99999997\nn99999996\n", ("n99999997 and 1 more",)),
        ('[{"name": 3}]', ("no list of labels",)),
        ('[{"label_name": 3}]', ("no list of labels",)),
        ('{"n02131653": 0, "n04407435": 1}', ("no list of labels",)),
        (f"{'y' * 500}\n", (f"{'y' * 59}…",)),
        ("yeti\t , \n", ("yeti", "lemmas")),
    ],
)
def test_bad_labels(tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
    (tmp_path / "labels").write_text(text)
    with refused(ManifestError, "labels", *facts):
        read_labels(tmp_path / "labels")


# Files -------------------------------------------------------------------------------------------


@effort(max_examples=60)
@given(
    st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=12),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_pieces_and_blocks_hold_every_line_once(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    closed: bool,
    piece: int,
    block: int,
) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines"
    content = b"\n".join(lines) + (b"\n" if closed else b"")
    path.write_bytes(content)
    read = [chunk for part in pieces(path, piece) for chunk, _ in blocks(part, block)]
    assert all(chunk.endswith(b"\n") for chunk in read)
    joined = b"".join(read)
    assert joined == content or joined == content + b"\n"
    for pack, suffix in ((bz2.compress, ".bz2"), (gzip.compress, ".gz")):
        packed = path.with_suffix(suffix)
        packed.write_bytes(pack(content[: len(content) // 2]) + pack(content[len(content) // 2 :]))
        assert b"".join(chunk for chunk, _ in blocks(Piece(packed, 0, None), block)) == joined


@pytest.mark.parametrize("suffix", [".bz2", ".gz"])
def test_a_truncated_file(tmp_path: Path, suffix: str) -> None:
    # Text that hardly compresses, so that a cut file still has whole blocks.
    yfcc_rows.write(tmp_path, rows=12_000, seed=5, suffix=suffix, countries=12, vertices=100)
    path = tmp_path / f"yfcc100m_dataset-0{suffix}"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 4 // 5])
    with refused(ManifestError, path.name, "--keep-damaged") as caught:
        made_from(sources(tmp_path), tmp_path / "geo.parquet", SMALL)
    rows = int(str(caught.value).partition(" rows (")[0].split()[-1])
    assert 2_000 < rows < 12_000
    built = made_from(sources(tmp_path, keep_damaged=True), tmp_path / "geo.parquet", SMALL)
    assert built.funnel.rows == rows
    assert built.funnel.odd["damaged files"] == 1


def test_empty_and_foreign_files(made: tuple[Path, Any], tmp_path: Path) -> None:
    given = sources(made[0])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "empty.bz2").write_bytes(bz2.compress(b""))
    files = (tmp_path / "empty", *given.metadata, tmp_path / "empty.bz2")
    built = made_from(replace(given, metadata=files), tmp_path / "geo.parquet", SMALL)
    assert built.funnel.rows == 8000
    assert built.funnel.odd["files without rows"] == 2

    # A page that says "not found", saved under the name of the data.
    page = tmp_path / "yfcc100m_dataset-9.bz2"
    page.write_bytes(b"<html>not found</html>")
    (tmp_path / "photos.csv").write_text("a\tb\tc\nd\te\tf\n")
    for paths, facts in (
        ((tmp_path / "empty", tmp_path / "empty.bz2"), ("empty, empty.bz2",)),
        ((tmp_path / "none",), (tmp_path / "none",)),
        ((tmp_path / "photos.csv",), ("photos.csv", 3, "23 or 25")),
        ((*given.metadata, page), (page.name, "0 rows", "--keep-damaged")),
        ((given.metadata[0], given.metadata[0]), (given.metadata[0], "twice")),
    ):
        with refused(ManifestError, *facts):
            made_from(replace(given, metadata=paths), tmp_path / "geo.parquet", SMALL)
    with refused(ManifestError, "geo.csv", ".parquet"):
        made_from(given, tmp_path / "geo.csv", SMALL)
    partly = replace(given, metadata=(*given.metadata, page), keep_damaged=True)
    funnel = made_from(partly, tmp_path / "geo.parquet", SMALL).funnel
    assert (funnel.rows, funnel.odd["files without rows"]) == (8000, 1)


def test_files_of_the_same_name_size_and_time_are_told_apart(
    reader: Reader, tmp_path: Path
) -> None:
    files = {}
    for number in "56":
        path = tmp_path / number / "part"
        path.parent.mkdir()
        path.write_bytes(line(photo_id=number))
        os.utime(path, (1, 1))
        files[path] = 23
    for _ in range(2):  # read, then taken from the work folder
        parts = work.read_all(files, reader, tmp_path / "work", key="")
        assert [pq.read_table(part.path)["photo_id"].to_pylist() for part in parts] == [[5], [6]]


def test_zeros_after_a_download_was_cut_short_do_not_fill_the_memory(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LINE", 2000)
    path = tmp_path / "part"
    path.write_bytes(line(photo_id="5") * 3 + bytes(100_000) + b"\n" + line(photo_id="6"))
    with refused(ManifestError, "part", "3 rows", "2000 bytes"):
        work.read_all({path: 23}, reader, tmp_path / "work", key="", piece_size=1000, workers=1)
    longest = max(
        (len(block) for piece in pieces(path, 1000)[1:] for block, _ in blocks(piece, 500)),
        default=0,
    )
    assert longest < 5000


def test_duplicates_count_once_and_the_first_stays(reader: Reader, tmp_path: Path) -> None:
    one = line(photo_id="5", url="http://first") + line(photo_id="5", url="http://second")
    two = line(photo_id="5", url="http://third") + line(photo_id="6", url="http://six")
    files = {}
    for name, content in (("one", one), ("two", two)):
        (tmp_path / name).write_bytes(content)
        files[tmp_path / name] = 23
    parts = work.read_all(files, reader, tmp_path / "work", key="")
    urls = [url for part in parts for url in pq.read_table(part.path)["url"].to_pylist()]
    from acclimate.paper.geo_yfcc.builder import _candidates

    photos = once(_candidates(parts))
    assert photos.photo_id.tolist() == [5, 6]
    assert [urls[place] for place in photos.place] == [b"http://first", b"http://six"]


# The second pass, by hand ------------------------------------------------------------------------


def photos_of(rows: list[tuple[int, int, list[int]]]) -> Photos:
    ids, countries, labels = zip(*rows, strict=True)
    return Photos(
        np.array(ids),
        np.array(countries, dtype=np.int16),
        np.cumsum([0, *map(len, labels)]),
        np.array([label for held in labels for label in held], dtype=np.int32),
        np.arange(len(ids)),
    )


def test_categories_go_before_countries_are_counted() -> None:
    # Label 1 is in one country only: without it country 0 has two photos left, and is too small.
    rows = [(1, 0, [0]), (2, 0, [0, 1]), (3, 0, [1]), *((10 + i, 1, [0]) for i in range(3))]
    rows += [(20 + i, 2, [0]) for i in range(4)]
    settings = GeoSettings(
        min_countries=2, min_images=3, max_images=3, test_images=1, split=(1, 0, 1)
    )
    chosen = select(photos_of(rows), ("A", "B", "C"), 2, settings)
    assert chosen.domains == ("B", "C")
    assert [(stage.lost, stage.left) for stage in chosen.stages] == [
        (1, 9),
        (2, 7),
        (1, 6),
    ]
    assert chosen.found == {"A": 2, "B": 3, "C": 4}
    assert sorted(chosen.roles) == ["test", "train"]
    assert chosen.domain.tolist() == [0, 0, 0, 1, 1, 1]
    assert chosen.split.tolist().count("test") == 2
    assert chosen.photos.photo_id[:3].tolist() == [10, 11, 12]
    assert list(chosen.categories.values()) == [2, 1, 1]


def test_a_category_left_in_too_few_countries_stays_and_is_said() -> None:
    rows = [(i, i % 4, [0]) for i in range(40)] + [(100 + c, c, [1]) for c in (0, 4, 5)]
    settings = GeoSettings(
        min_countries=3, min_images=10, max_images=50, test_images=2, split=(2, 1, 1)
    )
    chosen = select(photos_of(rows), tuple("ABCDEF"), 2, settings)
    assert chosen.domains == ("A", "B", "C", "D")
    assert 1 in chosen.photos.label
    (note,) = chosen.notes
    assert note.startswith("1 category") and "3 countries" in note


@given(st.integers(3, 400), st.tuples(st.integers(1, 60), st.integers(0, 30), st.integers(0, 30)))
def test_domains_are_shared_out_in_proportion(total: int, parts: tuple[int, int, int]) -> None:
    counts = shared_out(total, parts)
    assert sum(counts) == total
    assert all((count > 0) == (part > 0) for count, part in zip(counts, parts, strict=True))
    if total == sum(parts):
        assert counts == parts
    for count, part in zip(counts, parts, strict=True):
        exact = total * part / sum(parts)
        assert abs(count - exact) < 2 or count == 1 or exact > count


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"max_images": 9_999}, ("--max-images 9999", "--min-images 10000")),
        ({"test_images": 10_000}, ("--test-images 10000", "--min-images 10000")),
        ({"val_share": 1.0}, ("--val-share", 1)),
        ({"split": (0, 1, 1)}, ("--split is 0 1 1",)),
        ({"min_countries": 0}, ("--min-countries",)),
    ],
)
def test_settings_are_checked(changed: dict[str, Any], facts: tuple[str, ...]) -> None:
    with refused(ConfigError, *facts):
        GeoSettings(**changed)


@pytest.mark.slow
def test_the_command(
    made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, out = sources(made[0]), tmp_path / "geo.parquet"
    flags = ["build", "geo-yfcc", "--metadata", *files.metadata]  # the second is an argument
    flags += [f"--labels={files.labels}", f"--polygons={files.polygons}", f"--out={out}"]
    flags += ["--min-images=30", "--max-images=80", "--test-images=10", "--seed=3"]
    flags += ["--split", 4, 1, 2]
    told = json.loads(command(*flags, "--json"))
    assert told["funnel"]["rows"] == 8000
    assert told["rows"] == told["funnel"]["manifest_rows"]
    assert told["report"] == str(tmp_path / "geo.report.json")
    shown = command(*flags)
    assert "no coordinates" in shown and f"manifest: {out}" in shown.replace("\n", "")


def test_the_command_says_that_it_goes_on(
    made: tuple[Path, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reader, "read", interrupted)
    files = sources(made[0])
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(files.metadata[0].read_bytes()))
    anew = "; a compressed file that was not read to its end is read from its beginning"
    for metadata, more in ((files.metadata[0], ""), (packed, anew)):
        flags = [f"--metadata={metadata}", f"--labels={files.labels}"]
        flags += [f"--polygons={files.polygons}", f"--out={tmp_path / 'geo.parquet'}"]
        with pytest.raises(SystemExit) as stop:
            app(["build", "geo-yfcc", *flags])
        assert stop.value.code == 130
        said = capsys.readouterr().err
        assert said.endswith(f"stopped; the same command goes on{more}\n")


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_part_that_is_damaged_is_read_again(
    made: tuple[Path, Any], tmp_path: Path, damage: str
) -> None:
    out = tmp_path / "geo.parquet"
    builder = GeoYfcc(sources=sources(made[0]), out=out, settings=SMALL, piece_size=200_000)
    whole, _ = builder.made(unwatched)
    parts = sorted((tmp_path / "geo.parquet.work").glob("*.parquet"))
    data = parts[0].read_bytes()
    half = len(data) // 2
    damaged = {
        "cut": data[:half],
        "flip": data[:200] + bytes([data[200] ^ 255]) + data[201:],
        "empty": b"",
        "other": b"PAR1" * 20,
    }
    parts[0].write_bytes(damaged[damage])
    again, _ = builder.made(unwatched)
    assert again.digest() == whole.digest()
    assert parts[0].read_bytes() == data


def test_a_report_of_an_earlier_build_is_not_left_beside_a_failure(
    made: tuple[Path, Any], tmp_path: Path
) -> None:
    out = tmp_path / "geo.parquet"
    builder = GeoYfcc(sources=sources(made[0]), out=out, settings=SMALL)
    builder.build(unwatched)
    report = tmp_path / "geo.report.json"
    assert report.exists()
    with pytest.raises(ManifestError):
        replace(builder, settings=replace(SMALL, min_images=5000, max_images=5000)).build(unwatched)
    assert not report.exists()
