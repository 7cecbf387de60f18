"""The authors' released pickle: read as data, refused when hostile.

pandas is not needed: the byte streams are made from stand-ins that carry its names.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acclimate.build import Built
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.progress import unwatched
from acclimate.data.columns import image_codes, seeded_splits
from acclimate.data.manifest import Manifest
from acclimate.paper.released import builder as released_builder
from acclimate.paper.released import pickled
from acclimate.paper.released.builder import COLUMNS, Released, ReleasedSettings
from acclimate.paper.released.cells import value
from acclimate.paper.released.frames import ALLOWED, read_columns
from acclimate.paper.released.pickled import Call, Global, read_pickle
from fixtures.command_line import command
from fixtures.errors import refused
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


def built_from(file: Path, out: Path, **options: Any) -> Built:
    return Released(file=file, out=out, **options).build(unwatched)


@pytest.mark.parametrize("protocol", [3, 4, 5])
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
        for protocol in (3, 4):
            found = read_columns(saved(tmp_path / "x.pkl", made, protocol), ["b", "a"])
            assert [list(found["a"]), list(found["b"])] == held.tolist()


def test_cells_of_numpy_become_plain(tmp_path: Path) -> None:
    for held in (np.int64(7), np.float32(0.5), np.bool_(True), np.array([3, 1]), "x", [1]):
        path = tmp_path / "x.pkl"
        path.write_bytes(pickle.dumps(held, protocol=4))
        expected = held.tolist() if hasattr(held, "tolist") else held
        assert value(read_pickle(path, ALLOWED)) == expected
    for odd in (np.zeros((2, 2)), Name("numpy", "dtype"), Made(Name("builtins", "slice"), (1,))):
        assert value(read_pickle(saved(path, odd), ALLOWED)) is None


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


def test_validation_is_a_seeded_share_of_training_photos(tmp_path: Path) -> None:
    columns = many(
        60,
        in_5k_label_ids=objects([[10, 20]] * 60),
        is_train=np.arange(60) < 50,
        yfcc_metadata=objects([line(3000 + n) for n in range(60)]),
    )
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
    images = image_codes(trained, "image")
    expected = seeded_splits(trained.drop_columns("split"), images, val_share=0.2, seed=0)
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


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "is empty"),
        (b"\x1f\x8b\x08", "unpack it"),
        (b"(lp0\n.", "protocol 3"),
        (pickle.dumps([1], protocol=2), "protocol 3"),
        (b"\x80\x04]\x94", "broken pickle after byte 3"),
        (pickle.dumps([1, 2]), "a frame is missing"),
    ],
)
def test_what_is_no_such_pickle_is_refused(tmp_path: Path, content: bytes, fact: str) -> None:
    (tmp_path / "x.pkl").write_bytes(content)
    with refused(ManifestError, "x.pkl", fact):
        built_from(tmp_path / "x.pkl", tmp_path / "geo.parquet")
    assert not (tmp_path / "geo.parquet").exists()


def test_what_does_not_fit_the_released_table_is_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "--split is 0 7 15"):
        ReleasedSettings(split=(0, 7, 15))
    with refused(ConfigError, "--val-share", 1):
        ReleasedSettings(val_share=1.0)
    path = saved(tmp_path / "x.pkl", frame(released(country_id=np.array([0, 1, 39, 40, 40, 61]))))
    with refused(ManifestError, "x.pkl", "'France'", "0 and 1"):
        built_from(path, tmp_path / "geo.parquet")
    path = saved(tmp_path / "x.pkl", frame({"country": objects(["x"])}))
    with refused(ManifestError, "'yfcc_row_id'", "country"):
        built_from(path, tmp_path / "geo.parquet")


def test_truth_may_be_written_as_numbers(tmp_path: Path) -> None:
    numbers = released(is_train=np.array([1, 0, 1, 1, 0, 7]))
    built = built_from(saved(tmp_path / "x.pkl", frame(numbers)), tmp_path / "a.parquet")
    assert built.facts["lost"] == {"is_train is neither true nor false": 1}
    every = built_from(saved(tmp_path / "x.pkl", frame(released())), tmp_path / "b.parquet")
    expected = every.manifest.without_domains("Fiji").table["split"]
    assert built.manifest.table["split"].equals(expected)


def refusal(tmp_path: Path, content: bytes) -> str:
    (tmp_path / "x.pkl").write_bytes(content)
    with refused(ManifestError, "x.pkl") as caught:
        read_columns(tmp_path / "x.pkl", ["yfcc_row_id"])
    return str(caught.value)


@pytest.mark.parametrize("protocol", [3, 4, 5])
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
        ("numpy", "ndarray.__class__", "x"),
        ("numpy", "core.multiarray._reconstruct", "x"),
        ("numpy.core.multiarray", "_reconstruct.__globals__", "x"),
        ("builtins", "slice.__init_subclass__", "x"),
        ("builtins", "getattr", "x"),
        ("_codecs", "encode.__self__", "x"),
        ("pandas.core.frame", "DataFrame.eval", "x"),
        ("copyreg", "_reconstructor", "x"),
        ("copyreg", "__newobj__", "x"),
        ("functools", "partial", "x"),
    ],
)
def test_other_functions_are_refused_and_not_called(
    tmp_path: Path, protocol: int, module: str, name: str, argument: str
) -> None:
    sentinel = tmp_path / "touched"
    arguments = (argument.format(str(sentinel)),)
    content = dumped(Made(Name(module, name), arguments), protocol)
    if module in ("os", "posix", "subprocess") or name in ("eval", "exec"):
        try:
            pickle.loads(content)  # the control: the usual reader falls for it
        finally:
            assert sentinel.exists(), "this pickle is not hostile at all"
            sentinel.unlink()
    message = refusal(tmp_path, content)
    assert f" asks for {module}.{name} at byte " in message
    assert "it was not run" in message
    assert not sentinel.exists()


@pytest.mark.parametrize(
    "made",
    [
        Made(
            Name("numpy._core.multiarray", "_reconstruct"), (Name("numpy", "ndarray"), (1 << 40,))
        ),
        Made(Name("builtins", "slice"), ("a", [], {})),
        Made(Name("numpy", "dtype"), ("O8", False, True), {"__class__": "x"}),
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
    assert "is no pickled pandas frame of plain columns (" in refusal(tmp_path, dumped(made))


def with_array(held: object, bounds: tuple[int, ...] = (0, 1, 1)) -> Made:
    """A frame whose only column is `held`."""
    block = Made(
        Name("pandas._libs.internals", "_unpickle_block"),
        (held, Made(Name("builtins", "slice"), bounds), 2),
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


def repeated() -> Made:
    """A frame with its only block three times."""
    made = with_array(array(np.zeros((1, 1), dtype=int)))
    manager: Any = made.state["_mgr"]  # type: ignore[index]
    manager.arguments = (manager.arguments[0] * 3, manager.arguments[1])
    return made


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (reconstructed((1, 1 << 39), dtype("i8"), b"12345678"), "another number of bytes"),
        # Pointers from bytes: numpy's own reader has been made to crash with these.
        (reconstructed((1, 1), dtype("O8"), b"AAAAAAAA"), "another number of elements"),
        (reconstructed((1, 5), dtype("O8"), [1]), "another number of elements"),
        (reconstructed((1, -1), dtype("i8"), b""), "an array of unknown shape"),
        (reconstructed((1, True), dtype("i8"), b""), "an array of unknown shape"),
        (reconstructed((1,) * 40, dtype("i8"), b"12345678"), "an array of unknown shape"),
        (reconstructed((1, 1), dtype("V8"), b"12345678"), "an unknown type"),
        (reconstructed((1, 1), Made(Name("numpy", "dtype"), ([],)), b""), "an unknown type"),
        (reconstructed((1, 1), dtype("i8"), "text"), "bytes are missing"),
        (
            Made(Name("numpy._core.numeric", "_frombuffer"), (b"1", dtype("i8"), (1, 1), "C")),
            "another number of bytes",
        ),
        ([1, 2, 3], "an array is missing"),
    ],
)
def test_arrays_that_claim_what_they_are_not(tmp_path: Path, held: object, why: str) -> None:
    message = refusal(tmp_path, dumped(with_array(held)))
    assert "is no pickled pandas frame of plain columns (" in message
    assert why in message


def test_blocks_that_are_not_the_frames(tmp_path: Path) -> None:
    zero = array(np.zeros((1, 1), dtype=int))
    for bounds in ((0, 1, 0), (-1, 1, 1), (0, 1 << 40, 1), (1, 0, 1), (1, 2, 1)):
        outside = dumped(with_array(zero, bounds))
        assert "a block outside the frame" in refusal(tmp_path, outside), bounds
    assert "more blocks than columns" in refusal(tmp_path, dumped(repeated()))


FUNCTION = b"cnumpy\ndtype\n"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        *((first + b"\x8c\x01x\x93.", "builds a name from") for first in (b"K\x01", b"]", b"N")),
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
        (b"(ios\nsystem\n.", "has the instruction INST"),
        (b"(cos\nsystem\no.", "asks for os.system"),
        (b"Pid\n.", "has the instruction PERSID"),
        (b"NQ.", "has the instruction BINPERSID"),
        (b"\x82\x01.", "has the instruction EXT1"),
        (FUNCTION + b")}\x92.", "has the instruction NEWOBJ_EX"),
        (b"\x97.", "has the instruction NEXT_BUFFER"),
        (b"N2.", "has the instruction DUP"),
        (b"\x8b\x01\x00\x00\x00\x05.", "has the instruction LONG4"),
        (b"\x8f.", "has the instruction EMPTY_SET"),
        (b"N0.", "has the instruction POP"),
        (b"Nr\xff\xff\xff\xff.", "skips to the memo 4294967295"),
    ],
)
def test_instructions_that_act_are_refused(tmp_path: Path, body: bytes, what: str) -> None:
    assert what in refusal(tmp_path, b"\x80\x04" + body)


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
    assert "is a broken pickle" in refusal(tmp_path, b"\x80\x04" + body)


def test_a_memo_is_what_was_last_put_there(tmp_path: Path) -> None:
    """Numbers on end, one of which is used again."""
    body = b"(K\x01q\x00K\x02q\x01K\x03q\x00K\x05q\x02K\x06\x94h\x00h\x01h\x02h\x03t."
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04" + body)
    found = read_pickle(tmp_path / "x.pkl", ())
    assert found == pickle.loads(b"\x80\x04" + body) == (1, 2, 3, 5, 6, 3, 2, 5, 6)


@pytest.mark.parametrize(
    "body",
    [
        b"]" * 200_000 + b"a" * 199_999 + b".",
        b")" + b"\x85" * 200_000 + b".",
        b"(" * 200_000 + b"t" * 200_000 + b".",
        FUNCTION + b")R" + b"\x85" * 100_000 + b".",
        # dtype((dtype((dtype(…),)),)), a hundred thousand deep.
        FUNCTION * 100_000 + b")R" + b"\x85R" * 99_999 + b".",
        b"]\x94h\x00a.",  # a list that holds itself
        (b"]\x94" + b"(h\x00h\x00e" * 50_000) + b".",
    ],
)
def test_depth_and_cycles_are_harmless(tmp_path: Path, body: bytes) -> None:
    assert "a frame is missing" in refusal(tmp_path, b"\x80\x04" + body)


def test_sizes_over_the_limits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_CONTAINERS", 100)
    for instruction in (b"]", b"("):
        assert "more than 100 lists" in refusal(tmp_path, b"\x80\x04" + instruction * 101 + b".")
    monkeypatch.setattr(pickled, "MAX_BYTES", 10)
    assert "has 11 bytes, over the limit of 10" in refusal(tmp_path, b"\x80\x04" + b"N" * 9)


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


def test_the_command(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pkl", frame(released(yfcc_metadata=objects([None] * 6))))
    build = ("build", "geo-yfcc-released", path, "--out", tmp_path / "geo.parquet")
    assert "note: 6 × metadata without a photo id" in command(*build)
    facts = json.loads(command(*build, "--json"))
    assert (facts["photos"], facts["rows"], facts["domains"]) == (6, 7, 4)
    assert Manifest.read(tmp_path / "geo.parquet").classes == ("0010", "0020", "0030")
    with pytest.raises(SystemExit):  # three numbers are needed
        command(*build, "--split", "40", "22")


FILES = sorted((Path(__file__).parents[1] / "fixtures" / "pandas").glob("*.pkl"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pandas_own_kinds_of_column_are_refused(tmp_path: Path, file: Path) -> None:
    """Files with Int64, string and other columns that the released table has none of, as pandas
    1.5, 2.2 and 3.0 wrote them."""
    with refused(ManifestError, file.name):
        built_from(file, tmp_path / "geo.parquet")


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
        built = built_from(made, tmp_path / "x.parquet")
        urls = built.manifest.table["url"].to_pylist()
        assert urls == [None] * 500, name


@pytest.mark.parametrize(
    ("limit", "value", "columns", "fact"),
    [
        ("MAX_LABELS", 5000, {"in_5k_label_ids": [list(range(1000))] * 50}, "5000 labels"),
        ("MAX_LABELS", 10**9, {"in_5k_label_ids": [list(range(6000))] * 50}, "6000 labels"),
        ("MAX_LISTED", 9000, {"yfcc_metadata": [[0] * 5000] * 50}, "9000 values"),
    ],
)
def test_a_list_that_all_photos_share_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    columns: dict[str, Any],
    fact: str,
) -> None:
    monkeypatch.setattr(released_builder, limit, value)
    shared = {name: objects(cells) for name, cells in columns.items()}
    made = saved(tmp_path / "x.pkl", frame(many(50, **shared)))
    with refused(ManifestError, "x.pkl", fact):
        built_from(made, tmp_path / "x.parquet")


def test_a_country_with_an_endless_name(tmp_path: Path) -> None:
    names = objects(["F" * 201, "France"])
    made = saved(tmp_path / "x.pkl", frame(many(2, country=names)))
    built = built_from(made, tmp_path / "x.parquet")
    assert built.facts["lost"] == {"a country's name of more than 200 characters": 1}
