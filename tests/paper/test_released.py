"""The authors' released pickle: read as data in every layout of pandas, refused when hostile.

pandas is not needed: the byte streams are made from stand-ins that carry its names. Where pandas
is installed, its own files are read as well.
"""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate.build import Built
from acclimate.cli import app, load_commands
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.progress import unwatched
from acclimate.data.columns import seeded_splits
from acclimate.data.manifest import Manifest
from acclimate.paper.released import builder, pickled
from acclimate.paper.released.builder import COLUMNS, Released, ReleasedSettings
from acclimate.paper.released.cells import value
from acclimate.paper.released.frames import ALLOWED, read_columns
from acclimate.paper.released.pickled import Call, Global, read_pickle
from fixtures.pandas_pickles import (
    URL,
    Made,
    Name,
    array,
    dtype,
    dumped,
    frame,
    index,
    line,
    objects,
    range_index,
    released,
    saved,
)

load_commands()


def built_from(file: Path, out: Path, **options: Any) -> Built:
    return Released(file=file, out=out, **options).build(unwatched)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("numpy", ["old", "new"])
@pytest.mark.parametrize("layout", ["old", "new"])
def test_columns_of_every_layout(tmp_path: Path, protocol: int, numpy: str, layout: str) -> None:
    columns = released()
    made = frame(columns, layout=layout, numpy=numpy, buffer=protocol == 5)
    found = read_columns(saved(tmp_path / "x.pkl", made, protocol), COLUMNS)
    assert {name: list(held) for name, held in found.items()} == {
        name: list(held) for name, held in columns.items()
    }


def test_arrays_in_column_order(tmp_path: Path) -> None:
    """numpy's own stream of a transposed array, of numbers and of objects."""
    for held in (np.arange(6).reshape(2, 3), objects(list("abcdef")).reshape(2, 3)):
        made = frame({"a": np.arange(3)})
        block = Made(
            Name("pandas._libs.internals", "_unpickle_block"),
            (np.asfortranarray(held), Made(Name("builtins", "slice"), (0, 2, 1)), 2),
        )
        manager = Name("pandas.core.internals.managers", "BlockManager")
        axes = [index(["a", "b"], "numpy._core"), range_index(3)]
        made.state = {"_mgr": Made(manager, ((block,), axes))}
        for protocol in (2, 4):
            found = read_columns(saved(tmp_path / "x.pkl", made, protocol), ["b", "a"])
            assert [list(found["a"]), list(found["b"])] == held.tolist()


def test_cells_of_numpy_become_plain(tmp_path: Path) -> None:
    for held in (np.int64(7), np.float32(0.5), np.bool_(True), np.array([3, 1]), "x", [1]):
        path = tmp_path / "x.pkl"
        path.write_bytes(pickle.dumps(held, protocol=4))
        expected = held.tolist() if hasattr(held, "tolist") else held
        assert value(read_pickle(path, ALLOWED)) == expected


def test_strings_and_categories_of_newer_pandas(tmp_path: Path) -> None:
    backed = Name("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked")
    texts = Made(
        backed,
        (Name("pandas.arrays", "StringArray"), 82904607, None),
        (Made(Name("pandas", "StringDtype"), ("python", None)), array(objects(["x", "y"]))),
    )
    kinds = Made(
        Name("pandas", "CategoricalDtype"),
        (),
        {"categories": index(["no", "yes"], "numpy._core"), "ordered": False},
        new=True,
    )
    categories = Made(
        backed,
        (Name("pandas", "Categorical"), 82904607, None),
        (kinds, array(np.array([1, -1], dtype=np.int8))),
    )
    block = Name("pandas._libs.internals", "_unpickle_block")
    blocks = tuple(
        Made(block, (held, Made(Name("builtins", "slice"), (place, place + 1, 1)), 2))
        for place, held in enumerate((texts, categories))
    )
    axes = [index(["text", "kind"], "numpy._core"), range_index(2)]
    manager = Made(Name("pandas.core.internals.managers", "BlockManager"), (blocks, axes))
    made = Made(Name("pandas", "DataFrame"), (), {"_mgr": manager}, new=True)
    found = read_columns(saved(tmp_path / "x.pkl", made), ["text", "kind"])
    assert found == {"text": ["x", "y"], "kind": ["yes", None]}


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_real_pandas(tmp_path: Path, protocol: int) -> None:
    pandas = pytest.importorskip("pandas")
    columns = released()
    made = pandas.DataFrame({name: list(held) for name, held in columns.items()})
    for held in (made, made[made["country_id"] < 62]):
        held.to_pickle(tmp_path / "x.pkl", protocol=protocol)
        found = read_columns(tmp_path / "x.pkl", COLUMNS)
        assert {name: list(column) for name, column in found.items()} == {
            name: list(column) for name, column in columns.items()
        }


def arrow(texts: list[str | None], *, large: bool = True, skipped: int = 0) -> Made:
    """As pyarrow pickles an array, the first `skipped` of which were sliced off."""
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)]).astype("<i8" if large else "<i4")
    valid = np.packbits([text is not None for text in texts], bitorder="little").tobytes()
    buffers = [
        Made(Name("pyarrow.lib", "py_buffer"), (held,))
        for held in (valid, ends.tobytes(), b"".join(encoded))
    ]
    kind = Made(Name("pyarrow.lib", "type_for_alias"), ("large_string" if large else "string",))
    facts = (kind, len(texts) - skipped, 1, skipped, buffers, [], None)
    return Made(Name("pyarrow.lib", "_restore_array"), (facts,))


def arrow_column(held: Made) -> Made:
    return Made(Name("pandas.arrays", "ArrowStringArray"), (), {"_pa_array": held}, new=True)


@pytest.mark.parametrize("large", [True, False])
def test_text_that_pyarrow_keeps(tmp_path: Path, large: bool) -> None:
    whole = arrow(["off", "Peru", None, "Côte d'Ivoire"], large=large, skipped=1)
    chunks = Made(Name("pyarrow.lib", "chunked_array"), ([whole, arrow(["x"], large=large)], None))
    for held, more in ((whole, []), (chunks, ["x"])):
        path = saved(tmp_path / "x.pkl", with_array(arrow_column(held)))
        found = read_columns(path, ["yfcc_row_id"])["yfcc_row_id"]
        assert found == ["Peru", None, "Côte d'Ivoire", *more]


def labels(tmp_path: Path) -> Path:
    path = tmp_path / "in5k_map.json"
    synsets = {10: "n00007846", 20: "n00021265", 30: "n00440382"}
    path.write_text(json.dumps([{"label_id": k, "label_name": v} for k, v in synsets.items()]))
    return path


def test_the_manifest_has_the_schema_of_the_raw_builder(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pkl", frame(released()))
    built = built_from(path, tmp_path / "geo.parquet", labels=labels(tmp_path))
    assert built.facts == {"photos": 6, "lost": {}, "notes": {}}
    manifest = Manifest.read(tmp_path / "geo.parquet")
    assert manifest.table.column_names == [
        *("image", "label", "domain", "split", "role", "continent", "synset", "photo_id"),
        *("longitude", "latitude", "url", "page"),
    ]
    assert manifest.root == tmp_path / "images"
    assert manifest.roles() == {"France": "train", "Peru": "train", "Japan": "val", "Fiji": "test"}
    continents = {"France": "Europe", "Peru": "Americas", "Japan": "Asia", "Fiji": "Oceania"}
    assert manifest.groups() == continents  # by which maps of domains are coloured
    assert manifest.digest() == built.manifest.digest()
    rows = manifest.table.to_pylist()
    assert [(row["domain"], row["photo_id"], row["synset"]) for row in rows] == [
        ("Fiji", 3005, "n00021265"),
        ("France", 3000, "n00007846"),
        ("France", 3001, "n00021265"),
        ("France", 3001, "n00440382"),
        ("Japan", 3003, "n00007846"),
        ("Japan", 3004, "n00440382"),
        ("Peru", 3002, "n00007846"),
    ]
    assert rows[2] == {
        "image": "300/3001.jpg",
        "label": "food",
        "domain": "France",
        "split": "test",
        "role": "train",
        "continent": "Europe",
        "synset": "n00021265",
        "photo_id": 3001,
        "longitude": 2.5,
        "latitude": -48.25,
        "url": "http://farm3.staticflickr.com/1/3001_a.jpg",
        "page": "http://www.flickr.com/photos/u/3001/",
    }


def test_without_a_label_map_classes_are_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pkl", frame(released()))
    manifest = built_from(path, tmp_path / "geo.parquet").manifest
    assert manifest.classes == ("0010", "0020", "0030")


def test_validation_is_a_seeded_share_of_training_photos(tmp_path: Path) -> None:
    count = 60
    columns = {
        "yfcc_row_id": np.arange(count),
        "label_ids": objects([[0]] * count),
        "country": objects(["France"] * count),
        "country_id": np.zeros(count, dtype=int),
        "in_5k_label_ids": objects([[10, 20]] * count),
        "is_train": np.arange(count) < 50,
        "yfcc_metadata": objects([line(3000 + n) for n in range(count)]),
    }
    path = saved(tmp_path / "x.pkl", frame(columns))
    manifests = [
        built_from(path, tmp_path / "a.parquet", settings=ReleasedSettings(seed=seed)).manifest
        for seed in (0, 0, 1)
    ]
    assert [m.rows(split=s).size for m in manifests[:1] for s in ("train", "val", "test")] == [
        *(80, 20, 20),  # each photo has two labels
    ]
    assert manifests[0].digest() == manifests[1].digest() != manifests[2].digest()
    trained = manifests[0].table.filter(np.isin(manifests[0].splits, ["train", "val"]))
    expected = seeded_splits(trained.drop_columns("split"), val_share=0.2, seed=0)
    assert trained["split"].to_pylist() == expected.to_pylist()


METADATA = {
    "tabs, 25 columns": line(3000, columns=25),
    "list": line(3000).split("\t"),
    "tuple, 25 columns": tuple(line(3000, columns=25).split("\t")),
    "dictionary": {
        "photoid": 3000,
        "downloadurl": URL.format(3, 3000),
        "longitude": "2.5",
        "pageurl": "http://www.flickr.com/photos/u/3000/",
        "latitude": -48.25,
    },
    "spelt out": {
        "Photo/video identifier": "3000",
        "Photo/video download URL": URL.format(3, 3000),
        "Photo/video page URL": "http://www.flickr.com/photos/u/3000/",
        "Longitude": "2.5",
        "Latitude": "-48.25",
    },
}


@pytest.mark.parametrize("kind", METADATA)
def test_metadata_in_whatever_form(tmp_path: Path, kind: str) -> None:
    metadata = [METADATA[kind], *[line(3000 + n) for n in range(1, 6)]]
    path = saved(tmp_path / "x.pkl", frame(released(yfcc_metadata=objects(metadata))))
    table = built_from(path, tmp_path / "geo.parquet").manifest.table
    plain = saved(tmp_path / "y.pkl", frame(released()))
    assert table == built_from(plain, tmp_path / "plain.parquet").manifest.table


def test_what_cannot_be_used_is_counted(tmp_path: Path) -> None:
    columns = released(
        country=objects(["France", None, "Peru", "Japan", "Japan", "Fiji"]),
        country_id=np.array([0, 0, 39, 40, 40, 62]),
        in_5k_label_ids=objects([[10, 99], [20], [99], [10], [30], [20]]),
        yfcc_metadata=objects([None, "x", "y", "file:///etc/passwd", line(3003), "z"]),
    )
    built = built_from(
        saved(tmp_path / "x.pkl", frame(columns)),
        tmp_path / "geo.parquet",
        labels=labels(tmp_path),
    )
    assert built.facts["lost"] == {
        "no country, or an id that is out of range": 2,
        "no label that is known": 1,
    }
    assert built.facts["notes"] == {
        "labels outside the list": 2,
        "metadata without a photo id": 2,
        "metadata without a URL": 2,
    }
    images = built.manifest.table["image"].to_pylist()
    assert images == ["rows/5.jpg", "rows/8.jpg", "300/3003.jpg"]


def test_a_label_list_that_all_photos_share_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acclimate.paper.released import builder as module

    shared = list(range(1000))
    made = frame(released(in_5k_label_ids=objects([shared] * 6)))
    monkeypatch.setattr(module, "MAX_LABELS", 5000)
    with pytest.raises(ManifestError) as caught:
        built_from(saved(tmp_path / "x.pkl", made), tmp_path / "geo.parquet")
    assert str(caught.value) == "x.pkl has more than 5000 labels; give the file as released"


def test_only_web_addresses_are_kept(tmp_path: Path) -> None:
    fields = line(3000).split("\t")
    fields[13], fields[14] = "javascript:x", "file:///etc/passwd"
    metadata = ["\t".join(fields), *[line(3000 + n) for n in range(1, 6)]]
    path = saved(tmp_path / "x.pkl", frame(released(yfcc_metadata=objects(metadata))))
    built = built_from(path, tmp_path / "geo.parquet")
    assert built.facts["notes"] == {"metadata without a URL": 1}
    [row] = [row for row in built.manifest.table.to_pylist() if row["photo_id"] == 3000]
    assert (row["url"], row["page"]) == (None, None)


def test_the_same_photo_again_is_counted(tmp_path: Path) -> None:
    metadata = objects([line(3000)] * 6)
    built = built_from(
        saved(tmp_path / "x.pkl", frame(released(yfcc_metadata=metadata))),
        tmp_path / "geo.parquet",
    )
    assert (built.facts["photos"], built.facts["lost"]) == (4, {"the same photo again": 2})


def test_a_country_with_two_ids_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pkl", frame(released(country_id=np.array([0, 1, 39, 40, 40, 61]))))
    with pytest.raises(ManifestError) as caught:
        built_from(path, tmp_path / "geo.parquet")
    assert str(caught.value) == ("x.pkl gives 'France' the ids 0 and 1; give the file as released")


def test_a_frame_without_a_column_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pkl", frame({"country": objects(["x"])}))
    with pytest.raises(ManifestError) as caught:
        built_from(path, tmp_path / "geo.parquet")
    assert str(caught.value) == "x.pkl has no column 'yfcc_row_id'; it has country"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.pkl is empty; fetch it again"),
        (b"\x1f\x8b\x08", "x.pkl is compressed; unpack it first (tar xzf or gunzip)"),
        (
            b"(lp0\n.",
            "x.pkl is no pickle of protocol 2 or later; give the file as released",
        ),
        (
            b"\x80\x04]\x94",
            "x.pkl is a broken pickle at byte 4 (cut short or damaged); fetch it again",
        ),
        (
            pickle.dumps([1, 2]),
            "x.pkl is no pickled pandas frame of plain columns (a frame is missing); "
            "give the file as released",
        ),
    ],
)
def test_what_is_no_such_pickle_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.pkl").write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        built_from(tmp_path / "x.pkl", tmp_path / "geo.parquet")
    assert str(caught.value) == message
    assert not (tmp_path / "geo.parquet").exists()


def test_split_that_is_no_split_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        ReleasedSettings(split=(0, 7, 15))
    assert str(caught.value) == (
        "--split is 0,7,15; give the numbers of training, validation and test domains, "
        "such as 40,7,15"
    )
    with pytest.raises(ConfigError) as caught:
        ReleasedSettings(val_share=1.0)
    assert str(caught.value) == ("--val-share is 1.0; give a share of at least 0 and less than 1")


def test_truth_may_be_written_as_numbers(tmp_path: Path) -> None:
    numbers = released(is_train=np.array([1, 0, 1, 1, 0, 7]))
    built = built_from(saved(tmp_path / "x.pkl", frame(numbers)), tmp_path / "a.parquet")
    assert built.facts["lost"] == {"is_train is neither true nor false": 1}
    every = built_from(saved(tmp_path / "x.pkl", frame(released())), tmp_path / "b.parquet")
    expected = every.manifest.without_domains("Fiji").table["split"]
    assert built.manifest.table["split"].equals(expected)


def refused(tmp_path: Path, content: bytes) -> str:
    (tmp_path / "x.pkl").write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        read_columns(tmp_path / "x.pkl", COLUMNS)
    return str(caught.value)


SENTINEL = "touched"


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    ("module", "name", "argument"),
    [
        ("os", "system", "touch {}"),
        ("posix", "system", "touch {}"),
        ("subprocess", "getoutput", "touch {}"),
        ("builtins", "eval", "__import__('pathlib').Path({!r}).touch()"),
        ("builtins", "exec", "__import__('pathlib').Path({!r}).touch()"),
        ("builtins", "open", "{}"),
        ("pathlib", "Path.cwd", ""),
        ("numpy", "load", "{}"),
        ("pandas", "read_pickle", "{}"),
    ],
)
def test_other_functions_are_refused_and_not_called(
    tmp_path: Path, protocol: int, module: str, name: str, argument: str
) -> None:
    sentinel = tmp_path / SENTINEL
    arguments = (argument.format(str(sentinel)),)
    content = dumped(Made(Name(module, name), arguments), protocol)
    if module in ("os", "posix", "subprocess") or name in ("eval", "exec"):
        try:
            pickle.loads(content)  # the control: the usual reader falls for it
        finally:
            assert sentinel.exists(), "this pickle is not hostile at all"
            sentinel.unlink()
    at = content.index(b"\x93" if protocol > 3 else b"system\n") + 1 if name == "system" else None
    message = refused(tmp_path, content)
    assert f" asks for {module}.{name}, which is no part of a table, at byte " in message
    assert message.endswith(
        "; it was not run: do not trust the file, and fetch it again from its authors"
    )
    if at is not None and protocol > 3:
        assert f"at byte {at};" in message
    assert not sentinel.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy", "ndarray.__class__"),
        ("numpy", "core.multiarray._reconstruct"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("builtins", "slice.__init_subclass__"),
        ("builtins", "getattr"),
        ("_codecs", "encode.__self__"),
        ("pandas.core.frame", "DataFrame.eval"),
        ("copyreg", "_reconstructor"),
        ("copyreg", "__newobj__"),
        ("functools", "partial"),
    ],
)
def test_no_way_through_attributes(tmp_path: Path, module: str, name: str) -> None:
    message = refused(tmp_path, dumped(Made(Name(module, name), ("x",)), 4))
    assert f" asks for {module}.{name}, which is no part of a table, " in message


def test_names_from_odd_things_are_refused(tmp_path: Path) -> None:
    for first in (b"K\x01", b"]", b"N"):
        content = b"\x80\x04" + first + b"\x8c\x01x\x93."
        assert "builds a name from what is no text" in refused(tmp_path, content)


@pytest.mark.parametrize(
    "made",
    [
        Made(
            Name("numpy._core.multiarray", "_reconstruct"), (Name("numpy", "ndarray"), (1 << 40,))
        ),
        Made(Name("builtins", "slice"), ("a", [], {})),
        Made(Name("numpy", "dtype"), ("O8", False, True), {"__class__": "x"}),
        Made(Name("_codecs", "encode"), ("x", "zip")),
        Made(Name("pandas._libs.internals", "_unpickle_block"), (1, 2, 3)),
        Made(Name("pandas.core.frame", "DataFrame"), (), {"_mgr": 5}, new=True),
        Made(Name("pandas.core.frame", "DataFrame"), (), [1, 2], new=True),
        Made(Name("pandas.core.frame", "DataFrame"), ("x",) * 9),
        Made(
            Name("pandas.core.frame", "DataFrame"),
            (),
            {"_mgr": Made(Name("pandas.core.internals.managers", "BlockManager"), (1, 2, 3, 4))},
        ),
    ],
)
def test_odd_arguments_of_known_names_do_nothing(tmp_path: Path, made: Made) -> None:
    assert "is no pickled pandas frame of plain columns (" in refused(tmp_path, dumped(made))


def with_array(held: object) -> Made:
    """A frame whose only column is `held`."""
    block = Made(
        Name("pandas._libs.internals", "_unpickle_block"),
        (held, Made(Name("builtins", "slice"), (0, 1, 1)), 2),
    )
    axes = [index(["yfcc_row_id"], "numpy._core"), range_index(1)]
    manager = Made(Name("pandas.core.internals.managers", "BlockManager"), ((block,), axes))
    return Made(Name("pandas.core.frame", "DataFrame"), (), {"_mgr": manager}, new=True)


def reconstructed(shape: object, kind: object, content: object) -> Made:
    return Made(
        Name("numpy._core.multiarray", "_reconstruct"),
        (Name("numpy", "ndarray"), (0,), b"b"),
        (1, shape, kind, False, content),
    )


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (
            reconstructed((1, 1 << 39), dtype("i8"), b"12345678"),
            "an array with another number of bytes than it claims",
        ),
        # Pointers from bytes: numpy's own reader has been made to crash with these.
        (
            reconstructed((1, 1), dtype("O8"), b"AAAAAAAA"),
            "an array with another number of elements than it claims",
        ),
        (
            reconstructed((1, 5), dtype("O8"), [1]),
            "an array with another number of elements than it claims",
        ),
        (reconstructed((1, -1), dtype("i8"), b""), "an array of unknown shape"),
        (reconstructed((1, True), dtype("i8"), b""), "an array of unknown shape"),
        (reconstructed((1,) * 40, dtype("i8"), b"12345678"), "an array of unknown shape"),
        (reconstructed((1, 1), dtype("V8"), b"12345678"), "an unknown type"),
        (reconstructed((1, 1), Made(Name("numpy", "dtype"), ([],)), b""), "an unknown type"),
        (reconstructed((1, 1), dtype("i8"), "text"), "bytes is missing"),
        (
            Made(Name("numpy._core.numeric", "_frombuffer"), (b"1", dtype("i8"), (1, 1), "C")),
            "an array with another number of bytes than it claims",
        ),
        ([1, 2, 3], "an array is missing"),
        (
            Made(Name("pandas.arrays", "ArrowStringArray"), (), {"_pa_array": []}),
            "text is missing",
        ),
        (
            Made(Name("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked"), ([], 1, None)),
            "a column of an unknown kind",
        ),
    ],
)
def test_arrays_that_claim_what_they_are_not(tmp_path: Path, held: object, why: str) -> None:
    (tmp_path / "x.pkl").write_bytes(dumped(with_array(held)))
    with pytest.raises(ManifestError) as caught:
        read_columns(tmp_path / "x.pkl", ["yfcc_row_id"])
    assert str(caught.value) == (
        f"x.pkl is no pickled pandas frame of plain columns ({why}); give the file as released"
    )


def test_text_of_pyarrow_that_claims_what_it_is_not(tmp_path: Path) -> None:
    def refusal(change: Callable[[list[Any]], None], held: Made | None = None) -> str:
        made = held or arrow(["ab", "c"])
        facts: list[Any] = list(made.arguments[0]) if held is None else []  # type: ignore[call-overload]
        change(facts)
        made.arguments = (tuple(facts),) if held is None else made.arguments
        (tmp_path / "x.pkl").write_bytes(dumped(with_array(arrow_column(made))))
        with pytest.raises(ManifestError) as caught:
            read_columns(tmp_path / "x.pkl", ["yfcc_row_id"])
        return str(caught.value)

    def put(place: int, held: object) -> Callable[[list[Any]], None]:
        return lambda facts: facts.__setitem__(place, held)

    def buffer(place: int, held: bytes) -> Callable[[list[Any]], None]:
        made = Made(Name("pyarrow.lib", "py_buffer"), (held,))
        return lambda facts: facts[4].__setitem__(place, made)

    assert "other lengths than it claims" in refusal(put(1, 1 << 40))
    assert "other lengths than it claims" in refusal(put(3, 5))
    assert "text of unknown shape" in refusal(put(1, -1))
    assert "text of unknown shape" in refusal(put(4, []))
    assert "other lengths than it claims" in refusal(buffer(1, np.array([0, 9, 3]).tobytes()))
    assert "other lengths than it claims" in refusal(buffer(1, np.array([0, -2, 3]).tobytes()))
    assert "other lengths than it claims" in refusal(buffer(1, np.array([0, 2, 4]).tobytes()))
    assert "other lengths than it claims" in refusal(buffer(1, b"xyz"))
    assert "other lengths than it claims" in refusal(buffer(0, b""))
    one = arrow(["x"])
    again = Made(Name("pyarrow.lib", "chunked_array"), ([one, one], None))
    assert "a part of a text that is repeated" in refusal(lambda _: None, again)


def test_a_block_that_is_repeated_is_refused(tmp_path: Path) -> None:
    made = with_array(array(np.zeros((1, 1), dtype=int)))
    manager: Any = made.state["_mgr"]  # type: ignore[index]
    manager.arguments = (manager.arguments[0] * 3, manager.arguments[1])
    (tmp_path / "x.pkl").write_bytes(dumped(made))
    with pytest.raises(ManifestError, match="more blocks than columns"):
        read_columns(tmp_path / "x.pkl", ["yfcc_row_id"])


FUNCTION = b"cnumpy\ndtype\n"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (FUNCTION + b"}b.", "sets the state of what has none"),  # on a function
        (b"]}b.", "sets the state of what has none"),
        (FUNCTION + b")R}b}b.", "sets the state of what has none"),  # twice
        (b"K\x05)R.", "calls what is no function"),
        (FUNCTION + b")R)R.", "calls what is no function"),  # what a function gave
        (FUNCTION + b"]R.", "calls what is no function"),
        (FUNCTION + b"K\x01a.", "appends to what is no list"),
        (FUNCTION + b")RK\x01a.", "appends to what is no list"),
        (FUNCTION + b")RK\x01K\x01s.", "sets an entry of what is no dictionary"),
        (b"}(K\x01tNs.", "has a dictionary key that is neither text nor a small number"),
        (b"}\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00Ns.", "has a dictionary key that is"),
        (b"(ios\nsystem\n.", "has the instruction 0x69, which no table needs,"),
        (b"(cos\nsystem\no.", "asks for os.system, which is no part of a table,"),
        (b"Pid\n.", "has the instruction 0x50, which no table needs,"),
        (b"NQ.", "has the instruction 0x51, which no table needs,"),
        (b"\x82\x01.", "has the instruction 0x82, which no table needs,"),
        (FUNCTION + b")}\x92.", "has the instruction 0x92, which no table needs,"),
        (b"\x97.", "has the instruction 0x97, which no table needs,"),
        (b"N2.", "has the instruction 0x32, which no table needs,"),
        (b"\x8b\xff\xff\xff\x7f.", "has the instruction 0x8b, which no table needs,"),
    ],
)
def test_instructions_that_act_are_refused(tmp_path: Path, body: bytes, what: str) -> None:
    assert what in refused(tmp_path, b"\x80\x04" + body)


@pytest.mark.parametrize(
    "body",
    [
        b"\x8e" + (1 << 62).to_bytes(8, "little") + b"x.",
        b"\x8d" + (1 << 40).to_bytes(8, "little") + b"x.",
        b"\x96" + (1 << 63).to_bytes(8, "little") + b"x.",
        b"B\xff\xff\xff\xffx.",
        b"X\xff\xff\xff\xffx.",
        b"C\xffx.",
        b"\x95",  # a frame header that is cut short
    ],
)
def test_lengths_beyond_the_end_allocate_nothing(tmp_path: Path, body: bytes) -> None:
    assert "it claims more bytes than it has" in refused(tmp_path, b"\x80\x04" + body)


def test_a_memo_with_a_huge_number_is_only_a_number(tmp_path: Path) -> None:
    body = b"Nr\xff\xff\xff\xff0j\xff\xff\xff\xff."
    assert "a frame is missing" in refused(tmp_path, b"\x80\x04" + body)


def test_a_memo_is_what_was_last_put_there(tmp_path: Path) -> None:
    """Numbers on end, one used again, one far away and one that is then reached."""
    body = (
        b"(K\x01q\x00K\x02q\x01K\x03q\x00K\x04q\x05K\x05q\x02K\x06\x94K\x07q\x03"
        b"h\x00h\x01h\x02h\x03h\x04h\x05t."
    )
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04" + body)
    found = read_pickle(tmp_path / "x.pkl", ())
    assert found == pickle.loads(b"\x80\x04" + body) == (1, 2, 3, 4, 5, 6, 7, 3, 2, 5, 7, 6, 4)


@pytest.mark.parametrize(
    "body",
    [
        b"]" * 200_000 + b"a" * 199_999 + b".",
        b")" + b"\x85" * 200_000 + b".",
        b"(" * 200_000 + b"t" * 200_000 + b".",
        FUNCTION + b")R" + b"\x85" * 100_000 + b".",
        b"]\x94h\x00a.",  # a list that holds itself
        (b"]\x94" + b"(h\x00h\x00e" * 50_000) + b".",
    ],
)
def test_depth_and_cycles_are_harmless(tmp_path: Path, body: bytes) -> None:
    assert "a frame is missing" in refused(tmp_path, b"\x80\x04" + body)


def test_deep_calls_are_harmless(tmp_path: Path) -> None:
    """dtype((dtype((dtype(…),)),)), a hundred thousand deep."""
    depth = 100_000
    body = FUNCTION * depth + b")R" + b"\x85R" * (depth - 1) + b"."
    assert "a frame is missing" in refused(tmp_path, b"\x80\x04" + body)


def test_categories_of_categories_are_refused(tmp_path: Path) -> None:
    backed = Name("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked")
    inner: object = array(objects(["a"]))
    for _ in range(50):
        names = Made(
            Name("pandas.core.indexes.base", "_new_Index"),
            (Name("pandas", "Index"), {"data": inner}),
        )
        kinds = Made(Name("pandas", "CategoricalDtype"), (), {"categories": names}, new=True)
        inner = Made(
            backed,
            (Name("pandas", "Categorical"), 1, None),
            (kinds, array(np.zeros(1, dtype=np.int8))),
        )
    (tmp_path / "x.pkl").write_bytes(dumped(with_array(inner)))
    with pytest.raises(ManifestError, match="a column of an unknown kind"):
        read_columns(tmp_path / "x.pkl", ["yfcc_row_id"])


def test_too_many_containers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_CONTAINERS", 100)
    message = refused(tmp_path, b"\x80\x04" + b"]" * 101 + b".")
    assert "holds more than 100 lists, tuples and dictionaries" in message


def test_a_file_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_BYTES", 10)
    assert refused(tmp_path, b"\x80\x04" + b"N" * 9) == ("x.pkl has 11 bytes, over the limit of 10")


def test_nothing_but_data_and_records_comes_out(tmp_path: Path) -> None:
    made = frame(released())
    seen: set[type] = set()
    waiting = [read_pickle(saved(tmp_path / "x.pkl", made), ALLOWED)]
    while waiting:
        held = waiting.pop()
        seen.add(type(held))
        if isinstance(held, Call):
            waiting += [held.target, held.state, *held.arguments]
        elif isinstance(held, dict):
            waiting += [*held, *held.values()]
        elif isinstance(held, list | tuple):
            waiting += held
    assert seen == {Call, Global, dict, list, tuple, str, int, bool, bytes, type(None)}


def _flipped(content: bytes, rng: random.Random) -> bytes:
    held = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        held[rng.randrange(2, len(held))] = rng.randrange(256)
    return bytes(held)


def _cut(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(2, len(content))
    return content[:start] + content[start + rng.randint(1, 40) :]


@pytest.mark.parametrize("spoil", [_flipped, _cut])
@pytest.mark.parametrize("layout", ["old", "new"])
def test_damage_is_an_error_of_ours_or_another_table(
    tmp_path: Path, layout: str, spoil: Callable[[bytes, random.Random], bytes]
) -> None:
    whole, rng = dumped(frame(released(), layout=layout)), random.Random(0)
    refusals = 0
    for _ in range(600):
        (tmp_path / "x.pkl").write_bytes(spoil(whole, rng))
        try:
            built_from(tmp_path / "x.pkl", tmp_path / "geo.parquet")
        except ManifestError:
            refusals += 1
    assert refusals > 100


def test_the_command(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pkl", frame(released(yfcc_metadata=objects([None] * 6))))
    out = tmp_path / "geo.parquet"
    arguments = ["build", "geo-yfcc-released", str(path), "--out", str(out)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "note: 6 × metadata without a photo id" in shown.output
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert (facts["photos"], facts["rows"], facts["domains"]) == (6, 7, 4)
    wrong = CliRunner().invoke(app, [*arguments, "--split", "40,22"])
    assert isinstance(wrong.exception, ConfigError)


FILES = sorted((Path(__file__).parents[1] / "fixtures" / "pandas").glob("*.pkl"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_that_pandas_itself_wrote(tmp_path: Path, file: Path) -> None:
    """Int64, Float64, boolean and string columns; cells that are Series, sets, arrays and NA. Made
    by pandas 1.5, 2.2 and 3.0, in protocols 2, 4 and 5."""
    built = built_from(file, tmp_path / "geo.parquet")
    assert (built.facts["lost"], built.facts["notes"]) == (
        {},
        {"metadata without a photo id": 2, "metadata without a URL": 2},
    )
    found = built.manifest.table.select(["image", "label", "domain", "url"]).to_pylist()
    plain = released(
        yfcc_metadata=objects([line(3000), line(3001), line(3002), None, None, line(3005)])
    )
    expected = built_from(saved(tmp_path / "x.pkl", frame(plain)), tmp_path / "plain.parquet")
    assert found == expected.manifest.table.select(["image", "label", "domain", "url"]).to_pylist()
    assert built.manifest.digest() == expected.manifest.digest()


def masked(name: str, values: Any, gaps: list[bool], **state: Any) -> Made:
    facts = {"_data": array(values), "_mask": array(np.array(gaps)), **state}
    return Made(Name("pandas.arrays", name), (), facts, new=True)


def series_of(values: Any, **changes: Any) -> Made:
    held = values if isinstance(values, Made) else array(values)
    axes = [range_index(3)]
    state: Any = (axes, [held], axes, {"0.14.1": {}})
    manager = Name("pandas.core.internals.managers", "SingleBlockManager")
    facts = {"_mgr": Made(manager, (), changes.get("state", state), new=True)}
    return Made(Name("pandas", "Series"), (), changes.get("facts", facts), new=True)


def cell(tmp_path: Path, made: object, protocol: int = 4) -> object:
    return value(read_pickle(saved(tmp_path / "x.pkl", made, protocol), ALLOWED))


def test_cells_of_every_kind(tmp_path: Path) -> None:
    assert cell(tmp_path, series_of(np.array([3, 4]))) == [3, 4]
    assert cell(tmp_path, series_of(objects(["a", None]))) == ["a", None]
    gaps = masked("IntegerArray", np.array([1, 2]), [False, True])
    assert cell(tmp_path, gaps) == cell(tmp_path, series_of(gaps)) == [1, None]
    truth = masked("BooleanArray", np.array([True, False]), [True, False])
    assert cell(tmp_path, truth) == [None, False]
    assert cell(tmp_path, Name("pandas", "NA")) is None
    nat = Made(Name("pandas._libs.tslibs.nattype", "_nat_unpickle"), (None,))
    assert cell(tmp_path, nat) is None
    for protocol in (2, 4, 5):
        for held in ({1}, frozenset({1})):
            (tmp_path / "x.pkl").write_bytes(pickle.dumps(held, protocol))
            assert value(read_pickle(tmp_path / "x.pkl", ALLOWED)) == [1]


@pytest.mark.parametrize(
    "made",
    [
        series_of(np.zeros((2, 2))),
        series_of(np.zeros(2), facts=[1]),
        series_of(np.zeros(2), facts={}),
        series_of(np.zeros(2), state=7),
        series_of(np.zeros(2), state=([], [], [], {})),
        masked("IntegerArray", np.array([1, 2]), [False]),
        masked("IntegerArray", objects([1]), [False]),
        masked("IntegerArray", np.array([1]), [False], _mask=array(np.array([0]))),
        masked("IntegerArray", np.array([1]), [False], _mask=7),
        masked("IntegerArray", np.zeros((1, 1)), [False], _mask=array(np.zeros((1, 1), bool))),
        Made(Name("pandas.arrays", "IntegerArray"), (), [1], new=True),
        Made(Name("builtins", "set"), (7,)),
        Made(Name("builtins", "set"), (b"",)),
    ],
)
def test_cells_that_are_laid_out_otherwise_are_none(tmp_path: Path, made: Made) -> None:
    assert cell(tmp_path, made) is None


def test_a_column_with_gaps_that_is_laid_out_otherwise_is_refused(tmp_path: Path) -> None:
    made = with_array(masked("IntegerArray", np.array([1, 2]), [False]))
    (tmp_path / "x.pkl").write_bytes(dumped(made))
    with pytest.raises(ManifestError, match="numbers with gaps of unknown shape"):
        read_columns(tmp_path / "x.pkl", ["yfcc_row_id"])


def test_a_series_that_all_rows_share_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_LISTED", 100_000)
    shared = series_of(np.zeros(50_000, dtype=np.int8))
    made = saved(tmp_path / "x.pkl", frame(many(500, yfcc_metadata=objects([shared] * 500))))
    with pytest.raises(ManifestError, match="more than 100000 values in the lists of its cells"):
        built_from(made, tmp_path / "geo.parquet")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pandas.arrays", "DatetimeArray"),
        ("pandas.arrays", "ArrowExtensionArray"),
        ("pandas._libs.tslibs.timestamps", "_unpickle_timestamp"),
        ("pandas.core.dtypes.dtypes", "ArrowDtype"),
        ("collections", "OrderedDict"),
        ("datetime", "date"),
    ],
)
def test_harmless_content_that_is_not_read_is_called_that(
    tmp_path: Path, module: str, name: str
) -> None:
    message = refused(tmp_path, dumped(Made(Name(module, name), (1,))))
    assert message.startswith(f"x.pkl holds {module}.{name} at byte ")
    assert message.endswith(
        ", which is harmless and not read here; save its columns as text, numbers and lists, or "
        "give the file as released"
    )


@pytest.mark.parametrize(
    ("module", "name"), [("numpy.testing._private.utils", "runstring"), ("os", "Series")]
)
def test_nothing_else_is_called_harmless(tmp_path: Path, module: str, name: str) -> None:
    assert "do not trust the file" in refused(tmp_path, dumped(Made(Name(module, name), (1,))))


def many(count: int, **changes: Any) -> dict[str, Any]:
    """`count` photos of one country, cells of which are one object where a column says so."""
    columns: dict[str, Any] = {
        "yfcc_row_id": np.arange(count),
        "label_ids": objects([[0]] * count),
        "country": objects(["France"] * count),
        "country_id": np.zeros(count, dtype=int),
        "in_5k_label_ids": objects([[10]] * count),
        "is_train": np.ones(count, dtype=bool),
        "yfcc_metadata": objects([""] * count),
    }
    return {**columns, **changes}


def test_a_text_that_all_rows_share_takes_no_memory_for_each(tmp_path: Path) -> None:
    fields = [""] * 23
    fields[14] = "http://x.org/" + "y" * 150_000
    shared = {
        "one field": "\t".join(fields),
        "all of it": "\t".join(["z" * 1_000_000, *fields[1:]]),
        "a list": fields,
        "a dictionary": {"url": fields[14]},
    }
    for name, cell in shared.items():
        made = saved(tmp_path / "x.pkl", frame(many(500, yfcc_metadata=objects([cell] * 500))))
        built = Released(file=made, out=tmp_path / "x.parquet").build(unwatched)
        urls = built.manifest.table["url"].to_pylist()
        assert urls == [None] * 500, name


def test_a_list_of_labels_that_is_no_photos(tmp_path: Path) -> None:
    labels = list(range(6000))
    made = saved(tmp_path / "x.pkl", frame(many(50, in_5k_label_ids=objects([labels] * 50))))
    with pytest.raises(ManifestError) as error:
        Released(file=made, out=tmp_path / "x.parquet").build(unwatched)
    assert str(error.value) == (
        "x.pkl gives row 0 6000 labels, and a photo has at most 5000; give the file as released"
    )


def test_a_country_with_an_endless_name(tmp_path: Path) -> None:
    names = objects(["F" * 201, "France"])
    made = saved(tmp_path / "x.pkl", frame(many(2, country=names)))
    built = Released(file=made, out=tmp_path / "x.parquet").build(unwatched)
    assert built.facts["lost"] == {"a country's name of more than 200 characters": 1}
