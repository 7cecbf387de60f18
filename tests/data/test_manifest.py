import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from acclimate.core.errors import ConfigError, ManifestError, UnknownName
from acclimate.data.columns import _spelling, conform
from acclimate.data.manifest import Manifest
from fixtures.errors import refused

quick = settings(max_examples=40)


def plant(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())
    return root


def table(tmp_path: Path, text: str, name: str = "photos.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def of(columns: dict[str, list[object]], classes: tuple[str, ...] = ("cat", "dog")) -> Manifest:
    rows = len(next(iter(columns.values())))
    filled = {"label": ["cat"] * rows, "domain": ["a"] * rows, "split": ["train"] * rows}
    return Manifest(pa.table({**filled, **columns}), classes, Path("/nowhere"), "made up")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return plant(
        tmp_path / "pets",
        *(f"photo/cat/{i}.jpg" for i in range(5)),
        *(f"photo/dog/deep/er/{i}.PNG" for i in range(5)),
        *(f"sketch/dog/{i}.webp" for i in range(3)),
        "README.md",
        "sample.png",
        "photo/notes.txt",
        "photo/cat/._0.jpg",
        ".hidden/cat/0.jpg",
        "__MACOSX/cat/0.jpg",
    )


# Folders


def test_folder_tree_is_read_in_order_of_path(pets: Path) -> None:
    manifest = Manifest.from_folder(pets)
    assert manifest.table["image"].to_pylist() == [
        *(f"photo/cat/{i}.jpg" for i in range(5)),
        *(f"photo/dog/deep/er/{i}.PNG" for i in range(5)),
        *(f"sketch/dog/{i}.webp" for i in range(3)),
    ]
    assert manifest.classes == ("cat", "dog")
    assert manifest.domains == ("photo", "sketch")
    assert manifest.source == "pets/"
    assert manifest.label_index.tolist() == [0] * 5 + [1] * 8
    assert manifest.domain_index.tolist() == [0] * 10 + [1] * 3
    assert manifest.domain_names.tolist() == ["photo"] * 10 + ["sketch"] * 3
    assert manifest.image_source(0) == pets.resolve() / "photo/cat/0.jpg"
    assert manifest.image_name(10) == "sketch/dog/0.webp"
    assert manifest.problems() == []
    assert [len(manifest.rows(domain=d, split="val")) for d in manifest.domains] == [2, 1]


@pytest.mark.parametrize(
    ("paths", "facts"),
    [
        ([], ["data/", "jpg"]),
        (["photo/cat/notes.txt"], ["data/", "jpg, png"]),
        (["photo/1.jpg", "photo/cat/2.jpg"], ["photo/1.jpg", "photo/<class>/"]),
        (["1.jpg"], ["1.jpg", "<domain>/<class>/"]),
    ],
)
def test_folders_that_are_no_tree_say_why(
    tmp_path: Path, paths: list[str], facts: list[str]
) -> None:
    (tmp_path / "data").mkdir()
    with refused(ManifestError, *facts):
        Manifest.from_folder(plant(tmp_path / "data", *paths))


def test_missing_paths(tmp_path: Path) -> None:
    gone, file = tmp_path / "gone", table(tmp_path, "")
    for read in (Manifest.from_folder, Manifest.from_table, Manifest.open):
        with refused(ManifestError, gone):
            read(gone)
    with refused(ManifestError, file, "from_table"):
        Manifest.from_folder(file)


def test_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", "a/cat/1.jpg")
    try:
        (root / "a/cat/caf\udce9.jpg").write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    with refused(ManifestError, "data/", rb"a/cat/caf\xe9.jpg".decode()):
        Manifest.from_folder(root)


def test_empty_domain_folder_is_reported_and_survives_writing(pets: Path, tmp_path: Path) -> None:
    (pets / "cartoon" / "cat").mkdir(parents=True)
    manifest = Manifest.from_folder(pets)
    problem = "domain 'cartoon' has no images (add images or remove its folder)"
    assert manifest.domains == ("photo", "sketch")
    assert [*map(str, manifest.problems())] == [problem]
    manifest.write(tmp_path / "pets.parquet")
    assert [*map(str, Manifest.read(tmp_path / "pets.parquet").problems())] == [problem]
    assert manifest.without_domains("cartoon").problems() == []
    assert len(manifest.rows(domain="cartoon")) == 0


def test_links_that_leave_the_root(tmp_path: Path) -> None:
    outside = plant(tmp_path / "elsewhere", "1.jpg")
    root = plant(tmp_path / "data", "a/cat/1.jpg", "a/dog/1.jpg")
    (root / "a/cat/2.jpg").symlink_to(outside / "1.jpg")
    (root / "a/cat/3.jpg").symlink_to("1.jpg")
    (root / "a/cat/4.jpg").symlink_to("gone.jpg")
    (root / "b").mkdir()
    (root / "b/cat").symlink_to(outside)
    (root / "b/dog").symlink_to("../a/dog")
    (root / "b/dog/loop").symlink_to(root)
    manifest = Manifest.from_folder(root)
    assert [*map(str, manifest.problems())] == [
        "file 'a/cat/2.jpg' leads out of the root (replace the symbolic link by what it points to)",
        "file 'a/cat/4.jpg' is missing (restore the files or drop their rows)",
        "file 'b/cat/1.jpg' leads out of the root (replace the symbolic link by what it points to)",
    ]
    assert len(manifest) == 7


def test_a_link_to_itself_is_passed_over(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", "a/cat/1.jpg")
    for name in ("self", "a/self", "a/cat/self"):
        (root / name).symlink_to(root / name)
    assert Manifest.from_folder(root).table["image"].to_pylist() == ["a/cat/1.jpg"]


def test_folders_that_link_to_each_other_end(tmp_path: Path) -> None:
    """Nine of them can be walked in a million ways; each is walked once for each class folder."""
    names = "abcdefghi"
    root = plant(tmp_path / "data", *(f"{name}/cat/1.jpg" for name in names))
    for one in names:
        for two in names.replace(one, ""):
            (root / one / two).symlink_to(root / two)
    assert len(Manifest.from_folder(root)) < len(names) ** 3


# Tables


def test_csv_keeps_text_as_text_and_extra_columns(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "image,label,domain,split,year\na.jpg,007,2020-01-01,train,1999\nb.jpg,NA,NA,test,2001\n",
    )
    manifest = Manifest.from_table(path)
    assert manifest.classes == ("007", "NA")
    assert manifest.domains == ("2020-01-01", "NA")
    assert manifest.splits.tolist() == ["train", "test"]
    assert manifest.table["year"].to_pylist() == [1999, 2001]
    assert manifest.root == tmp_path.resolve()
    assert manifest.source == "photos.csv"
    assert Manifest.from_table(path, root=tmp_path / "x").root == tmp_path.resolve() / "x"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    rows = [{"image": "a.jpg", "label": "1", "domain": "2020-01-01", "split": "train"}]
    manifest = Manifest.from_table(table(tmp_path, json.dumps(rows[0]) + "\n", name))
    assert manifest.table.to_pylist() == rows
    numbers = '{"features": [1, 2.5], "label": 10, "domain": 3}\n'
    manifest = Manifest.from_table(table(tmp_path, numbers, name))
    assert (manifest.classes, manifest.domains) == (("10",), ("3",))
    assert manifest.features().tolist() == [[1.0, 2.5]]
    assert manifest.features().dtype == np.float32


def test_parquet_table_under_a_folder_that_looks_like_a_partition(tmp_path: Path) -> None:
    folder = tmp_path / "domain=x"
    folder.mkdir()
    words = pa.array(["s1", "s2"]).dictionary_encode()
    rows = pa.table({"image": ["1.jpg", "2.jpg"], "label": [1, 2], "domain": words})
    pq.write_table(rows, folder / "t.parquet")
    manifest = Manifest.open(folder / "t.parquet")
    assert (manifest.domains, manifest.classes) == (("s1", "s2"), ("1", "2"))


@pytest.mark.parametrize(
    ("header", "facts"),
    [
        ("image,Labels,domain", ["'label'", "image, Labels, domain"]),
        ("path,label,domain", ["'image'", "path, label, domain"]),
        ("image,label,label", ["two columns", "'label'"]),
    ],
)
def test_missing_columns(tmp_path: Path, header: str, facts: list[str]) -> None:
    with refused(ManifestError, "photos.csv", *facts):
        Manifest.from_table(table(tmp_path, header + "\n1,2,3\n"))


RAGGED = '{"features": [1], "label": "a", "domain": "b"}\n'


@pytest.mark.parametrize(
    ("name", "text", "facts"),
    [
        ("t.csv", "", ["Empty CSV file"]),
        ("t.parquet", "no", [".parquet table"]),
        ("t.xlsx", "x", [".csv, .tsv, .parquet, .jsonl, .ndjson"]),
        ("t.jsonl", '{"label": [1], "image": "a", "domain": "b"}', ["'label'", "int64", "text"]),
        ("t.csv", "features,label,domain\n1 2,a,b\n", ["'features'", "string", "numbers"]),
        ("t.jsonl", RAGGED + RAGGED.replace("[1]", "[1, 2]"), ["'features'", "1 and 2"]),
    ],
)
def test_tables_that_cannot_be_read(name: str, text: str, facts: list[str], tmp_path: Path) -> None:
    with refused(ManifestError, name, *facts):
        Manifest.open(table(tmp_path, text, name))


# Arrays


@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3, 5, 3)])
def test_image_arrays_become_png(shape: tuple[int, ...]) -> None:
    X = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    manifest = Manifest.from_arrays(X, [10, 2, 10, -1], ["a", "a", "b", "b"])
    assert manifest.classes == ("-1", "2", "10")
    assert manifest.label_index.tolist() == [2, 1, 2, 0]
    for row in range(4):
        encoded = manifest.image_source(row)
        assert isinstance(encoded, bytes)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encoded))), X[row])
    assert manifest.image_name(2) == "row 2"
    assert manifest.problems() == []
    assert not manifest.has_features
    with refused(ManifestError, "arrays"):
        manifest.features()


def test_feature_arrays() -> None:
    X = np.arange(12, dtype=np.float64).reshape(4, 3)
    manifest = Manifest.from_arrays(X, ["x", "y", "x", "y"], [1, 1, 2, 2], splits=["test"] * 4)
    assert manifest.has_features
    np.testing.assert_array_equal(manifest.select(np.array([3, 1])).features(), X[[3, 1]])
    np.testing.assert_array_equal(manifest.without_domains("1").features(), X[2:])
    assert manifest.without_domains("1", "2").features().shape == (0, 3)
    assert manifest.splits.tolist() == ["test"] * 4
    with refused(ManifestError, "row 1", "features()"):
        manifest.image_source(1)


@pytest.mark.parametrize(
    ("X", "y", "facts"),
    [
        (np.zeros((2, 3)), ["a"], ["X [2, 3], y [1], domains [2]"]),
        (np.zeros((2, 4, 4, 3)), ["a", "b"], ["float64 [2, 4, 4, 3]", "uint8"]),
        (np.zeros((0, 2)), [], ["domains [2]"]),
    ],
)
def test_arrays_that_do_not_fit(X: np.ndarray, y: list[str], facts: list[str]) -> None:
    with refused(ManifestError, *facts):
        Manifest.from_arrays(X, y, ["d", "d"])
    with refused(ManifestError, "no rows"):
        Manifest.from_arrays(np.zeros((0, 2)), [], [])


# Splits

names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4
)


@pytest.mark.slow
@quick
@given(st.dictionaries(names, st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 3))
def test_splits_depend_on_the_domain_alone(sizes: dict[str, int], seed: int) -> None:
    domains = [name for name, size in sizes.items() for _ in range(size)]
    X = np.zeros((len(domains), 1))
    whole = Manifest.from_arrays(X, [0] * len(domains), domains, val_share=0.3, seed=seed)
    for name, size in sizes.items():
        alone = Manifest.from_arrays(X[:size], [0] * size, [name] * size, val_share=0.3, seed=seed)
        held_out = whole.splits[whole.rows(domain=name)].tolist()
        assert held_out == alone.splits.tolist()
        assert held_out.count("val") == min(round(0.3 * size), size - 1)


def test_seed_changes_the_split() -> None:
    def split(seed: int) -> list[str]:
        return Manifest.from_arrays(
            np.zeros((40, 1)), [0] * 40, [0] * 40, seed=seed
        ).splits.tolist()

    assert split(0) == split(0)
    assert split(0) != split(1)
    assert split(0).count("val") == 8


def encoded(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.large_binary())


@pytest.mark.parametrize(
    ("columns", "same"),
    [
        ({"image": ["a", "b", "a", "c"]}, [[0, 2]]),
        ({"bytes": encoded(b"a", b"b", b"b", b"c")}, [[1, 2]]),
        # A path goes before content: the bytes of an image may be stored with one row only.
        (
            {"image": ["a", None, "a", None], "bytes": encoded(b"x", b"y", b"z", b"y")},
            [[0, 2], [1, 3]],
        ),
        # Two measurements may agree by chance; only a name says that they are of one image.
        ({"features": pa.array([[0.0], [1.0], [0.0], [0.0]])}, []),
        ({"features": pa.array([[0.0], [1.0], [0.0], [0.0]]), "image": list("abac")}, [[0, 2]]),
    ],
)
def test_rows_of_one_image_have_one_id(columns: dict[str, Any], same: list[list[int]]) -> None:
    table = pa.table({**columns, "label": list("wxyz"), "domain": ["d"] * 4, "split": ["val"] * 4})
    whole = Manifest(conform(table, "toy"), tuple("wxyz"), Path(), "toy")
    chunked = replace(whole, table=pa.concat_tables([whole.table[:1], whole.table[1:]]))
    for manifest in (whole, chunked):
        groups = [np.flatnonzero(manifest.image_ids == i).tolist() for i in manifest.image_ids]
        assert sorted({tuple(group) for group in groups if len(group) > 1}) == [*map(tuple, same)]
        first = [group[0] for group in groups]
        assert manifest.one_row_each(np.arange(4)).tolist() == sorted(set(first))


def test_rows_of_one_image_share_a_split(tmp_path: Path) -> None:
    rows = [f"{i}.jpg,{label},a" for label in ("cat", "dog") for i in range(20)]
    path = table(tmp_path, "\n".join(["image,label,domain", *rows]))
    # The other domain comes first and shares images: it must not renumber those of domain a.
    other = "\n".join(["image,label,domain", *(f"{19 - i}.jpg,cat,b" for i in range(20)), *rows])
    manifest = Manifest.from_table(path, val_share=0.5)
    assert manifest.splits[:20].tolist() == manifest.splits[20:].tolist()
    assert manifest.splits.tolist().count("val") == 20
    both = Manifest.from_table(table(tmp_path, other, "both.csv"), val_share=0.5)
    assert both.splits[20:].tolist() == manifest.splits.tolist()


@pytest.mark.parametrize("share", [1.0, -0.1, float("nan")])
def test_val_share_out_of_range(share: float) -> None:
    with refused(ConfigError, "val_share", share):
        Manifest.from_arrays(np.zeros((2, 1)), [0, 1], [0, 0], val_share=share)


# Writing, reading, digest


def test_round_trip_after_moving_both_elsewhere(pets: Path, tmp_path: Path) -> None:
    (pets.parent / "lists").mkdir()
    written = Manifest.from_folder(pets, seed=3)
    written.write(pets.parent / "lists" / "pets.parquet")
    moved = tmp_path / "a new" / "place"
    for name in ("pets", "lists"):
        shutil.move(tmp_path / name, moved / name)
    read = Manifest.open(moved / "lists" / "pets.parquet")
    assert read.table.equals(written.table)
    assert (read.classes, read.domains) == (written.classes, written.domains)
    assert read.digest() == written.digest()
    assert read.root == (moved / "pets").resolve()
    assert read.source == "pets.parquet"
    source = read.image_source(5)
    assert isinstance(source, Path)
    assert source.read_bytes() == b"photo/dog/deep/er/0.PNG"
    read.check()
    assert str(tmp_path).encode() not in (moved / "lists/pets.parquet").read_bytes()


def test_round_trip_of_arrays_and_class_order(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    written = Manifest.from_arrays(X, [9, 10, 9, 10, 9, 10], list("aabbcc"))
    written.write(tmp_path / "m.parquet")
    for read in (
        Manifest.read(tmp_path / "m.parquet"),
        Manifest.from_table(tmp_path / "m.parquet"),
    ):
        assert read.classes == ("9", "10")
        assert read.digest() == written.digest()
        np.testing.assert_array_equal(read.features(), X)
        assert read.root == tmp_path.resolve()


def test_read_and_write_refusals(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": ["a"], "label": ["b"], "domain": ["c"]}), path)
    with refused(ManifestError, "t.parquet", "Manifest.open"):
        Manifest.read(path)
    with refused(ManifestError, "'m.csv'", ".parquet"):
        Manifest.open(path).write(tmp_path / "m.csv")


rows = st.lists(
    st.tuples(names, st.sampled_from(["cat", "dog"]), names, st.sampled_from(["train", "val"])),
    min_size=2,
    max_size=6,
)


@quick
@given(rows, st.data())
def test_digest_sees_rows_and_order_but_not_root_extras_or_chunks(
    rows: list[tuple[str, str, str, str]], data: st.DataObject
) -> None:
    image, label, domain, split = (list(column) for column in zip(*rows, strict=True))
    columns = {"image": image, "label": label, "domain": domain, "split": split}
    manifest = of(columns)
    extra = pa.array(range(len(rows)))
    cut = data.draw(st.integers(0, len(rows)))
    pieces = pa.concat_tables([manifest.table.slice(0, cut), manifest.table.slice(cut)])
    same = Manifest(pieces.append_column("year", extra), manifest.classes, Path("/else"), "other")
    assert same.digest() == manifest.digest()
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = manifest.select(np.asarray(order))
    assert (shuffled.digest() == manifest.digest()) == ([rows[i] for i in order] == rows)
    assert of(columns, ("dog", "cat")).digest() != manifest.digest()


def test_digest_sees_every_core_column_and_where_names_end() -> None:
    base = {"image": ["ab", "c"], "bytes": [b"x", None], "role": ["train", "train"]}
    changes: list[dict[str, list[object]]] = [
        {},
        {"image": ["a", "bc"]},
        {"image": ["ab", None]},
        {"bytes": [b"y", None]},
        {"bytes": [None, b"x"]},
        {"role": ["val", "val"]},
        {"label": ["cat", "dog"]},
        {"domain": ["a", "b"]},
        {"split": ["train", "val"]},
        {"features": [[1.0], [2.0]]},
        {"features": [[1.0], [3.0]]},
    ]
    digests = set()
    for change in changes:
        columns = {**base, **change}
        if "features" in columns:
            columns["features"] = pa.array(columns["features"], pa.list_(pa.float32(), 1))
        digests.add(of(columns).digest())
    assert len(digests) == len(changes)


def test_digest_is_the_same_in_every_version() -> None:
    manifest = of({"image": ["a/1.jpg", "a/é.jpg"]})
    assert manifest.digest() == ("d644a6d896ea1095db1adc11e56ad0833b463f4aaaf1c6a9e6c1a66cbee34215")


# Selection


def test_selecting_domains_and_rows(pets: Path) -> None:
    manifest = Manifest.from_folder(pets)
    assert manifest.without_domains("photo").domains == ("sketch",)
    assert manifest.without_domains("photo").classes == ("cat", "dog")
    chosen = manifest.select(np.array([12, 0]))
    assert chosen.label_index.tolist() == [1, 0]
    assert chosen.image_name(0) == "sketch/dog/2.webp"
    assert len(chosen) == 2
    both = [*manifest.rows(split="train"), *manifest.rows(split="val")]
    assert sorted(both) == list(range(13))
    assert manifest.rows(split="test").tolist() == []


def test_unknown_names() -> None:
    manifest = Manifest.from_arrays(np.zeros((2, 1)), [0, 1], ["photo", "sketch"])
    for ask in (
        lambda: manifest.without_domains("photo", "skech"),
        lambda: manifest.rows(domain="skech"),
    ):
        with refused(UnknownName, "'skech'", "'sketch'"):
            ask()
    with refused(UnknownName, "'vall'", "'val'"):
        manifest.rows(split="vall")


def test_roles() -> None:
    domains = ["a", "a", "b", "c"]
    roles = ["train", "train", None, "test"]
    manifest = of({"image": list("1234"), "domain": domains, "role": roles})
    assert manifest.roles() == {"a": "train", "c": "test"}
    assert manifest.problems(check_files=False) == []
    assert of({"image": ["1"]}).roles() == {}


# Validation


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ({"image": ["1", "1"]}, ["image '1'", "2 times as cat", "'a'", "'train'"]),
        ({"label": ["dog", None, ""]}, ["2 rows without label", "first row 1"]),
        ({"domain": ["a", ""]}, ["1 row without domain", "first row 1"]),
        ({"label": ["cow", "cow"]}, ["'cow' of 2 rows", "class list"]),
        ({"domain": ["Site 1", "site_1"]}, ["'Site 1'", "'site_1'"]),
        ({"split": ["train", "validation"]}, ["'validation' of 1 row", "train, val or test"]),
        ({"role": ["source", "source"]}, ["role 'source'", "train, val or test"]),
        ({"role": ["train", None]}, ["domain 'a'", "none and train"]),
        ({"image": ["1", None]}, ["row 1 has no image"]),
        *(
            ({"image": ["a/../b.jpg", path]}, [f"'{path}'", "root"])
            for path in ("/etc/1.jpg", "../1.jpg", "a/../../1.jpg", "C:\\1.jpg", "..\\1.jpg")
        ),
        (
            {"features": pa.array([[1.0], [float("nan")]], pa.list_(pa.float32(), 1))},
            ["features of row 1"],
        ),
    ],
)
def test_each_problem_is_found(columns: dict[str, list[object]], facts: list[str]) -> None:
    rows = len(next(iter(columns.values())))
    filled = {"image": [f"{i}.jpg" for i in range(rows)], **columns}
    (problem,) = of(filled).problems(check_files=False)
    assert all(fact in str(problem) for fact in facts)


def test_all_problems_come_at_once_capped_by_kind(tmp_path: Path) -> None:
    rows = ["photo/0.jpg,Guitar,photo", *(f"photo/{i}.jpg,guitar,photo" for i in range(1, 7))]
    path = table(tmp_path, "\n".join(["image,label,domain", *rows, "../7.jpg,guitar,photo"]))
    plant(tmp_path, "photo/0.jpg")
    manifest = Manifest.from_table(path)
    assert len(manifest.problems()) == 8
    with refused(ManifestError, "8 problems", "'Guitar'", "'../7.jpg'", "3.jpg", "3 more") as told:
        manifest.check()
    assert "4.jpg" not in str(told.value)
    with refused(ManifestError, "a problem", "'Guitar'"):
        manifest.select(np.arange(7)).check(check_files=False)
    with refused(ManifestError, "no rows"):
        manifest.without_domains("photo").check()


def test_bytes_need_no_file() -> None:
    manifest = of({"image": ["gone.jpg"], "bytes": [b"encoded"]})
    assert manifest.problems() == []
    assert manifest.image_source(0) == b"encoded"
    assert manifest.image_name(0) == "gone.jpg"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Guitar", "guitar", True),
        ("ice cream", "Ice-Cream", True),
        ("ice_cream", "icecream", True),
        (" dog", "dog", True),
        ("e\u0301t\u00e9", "\u00e9t\u00e9", True),
        ("grade 1", "grade1", True),
        ("1", "-1", False),
        ("10-1", "101", False),
        ("v1-1", "v11", False),
        ("dog", "dogs", False),
    ],
)
def test_spellings(one: str, other: str, same: bool) -> None:
    assert (_spelling(one) == _spelling(other)) is same


def test_images_are_named_alike_one_by_one_and_together(tmp_path: Path) -> None:
    names = ["a.jpg", "./b.jpg", "c//d.jpg", "e/./f.jpg", "g.jpg"]
    lines = ["image,label,domain", *(f"{name},x,y" for name in names)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    manifest = Manifest.from_table(tmp_path / "rows.csv")
    rows = np.array([3, 0, 4, 2, 1])
    expected = [str(manifest.image_source(row)) for row in rows.tolist()]
    assert list(manifest.image_sources(rows)) == expected
    encoded = pa.array([b"x", None, b"y", None, None], pa.large_binary())
    held = replace(manifest, table=manifest.table.append_column("bytes", encoded))
    assert list(held.image_sources(rows)) == [expected[0], b"x", expected[2], b"y", expected[4]]
