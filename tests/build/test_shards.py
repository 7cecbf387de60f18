"""Shards of WebDataset and of Hugging Face: what is taken from them, and what is refused."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acclimate.build import shards as module
from acclimate.core.errors import ManifestError, NotAFile
from acclimate.data.manifest import Manifest
from acclimate.data.readers import encode_image
from fixtures.builder_inputs import archive
from fixtures.builder_inputs import shards as two_shards
from fixtures.command_line import command
from fixtures.errors import refused

PICTURES = [encode_image(np.full((4, 4, 3), 10 * i, dtype=np.uint8)) for i in range(12)]


def built(tmp_path: Path, *files: object) -> Manifest:
    out = tmp_path / "out.parquet"
    command("build", "shards", *files, "--out", out)
    return Manifest.read(out)


def rows(manifest: Manifest, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in manifest.table.select(columns).to_pylist()]


def test_samples_of_archives_become_rows(tree: Path, tmp_path: Path) -> None:
    manifest = built(tmp_path, *two_shards(tree, tmp_path))
    folder = Manifest.from_folder(tree)
    assert manifest.domains == folder.domains and manifest.classes == folder.classes
    sources = {manifest.image_source(row): row for row in range(len(manifest))}
    assert len(sources) == len(folder)
    for row in range(len(folder)):
        source = folder.image_source(row)
        assert isinstance(source, Path)
        own = sources[source.read_bytes()]
        assert manifest.table["domain"][own] == folder.table["domain"][row]
        assert manifest.table["label"][own] == folder.table["label"][row]


def test_a_label_in_cls_counts_and_splits_in_json_are_kept(tmp_path: Path) -> None:
    def facts(**values: object) -> bytes:
        return json.dumps({"domain": "x", **values}).encode()

    path = archive(
        tmp_path / "a.tar",
        {
            "deep/1.json": facts(label="wrong", split="train", group=7, other=[1]),
            "deep/1.JPG": PICTURES[0],
            "deep/1.cls": b"right\n",
            "./2.png": PICTURES[1],
            "./2.json": facts(label=3, split="test", group=None),
            "./2.seg.png": b"not taken",
            "readme": b"not taken",
        },
    )
    manifest = built(tmp_path, path)
    assert rows(manifest, "label", "split", "group", "sample") == [
        ("right", "train", "7", "deep/1"),
        ("3", "test", None, "./2"),
    ]


def member(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def test_hostile_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tarfile.TarInfo()
    large.size = 5000
    monkeypatch.setattr(module, "MOST", 4096)
    hostile: dict[str, bytes | tarfile.TarInfo] = {
        "link.jpg": member(tarfile.SYMTYPE, "/etc/passwd"),
        "hard.jpg": member(tarfile.LNKTYPE, "/etc/passwd"),
        "device.jpg": member(tarfile.CHRTYPE),
        "pipe.jpg": member(tarfile.FIFOTYPE),
        "/abs.jpg": b"x",
        "a/../../up.jpg": b"x",
        "large.jpg": large,
    }
    for name, content in hostile.items():
        path = archive(tmp_path / "a.tar", {"1.jpg": PICTURES[0], name: content})
        with refused(ManifestError, path, name):
            built(tmp_path, path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar"}


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", {"1.jpg": PICTURES[0], "1.png": PICTURES[1]})
    with refused(ManifestError, path, "'/1'", "two images"):
        built(tmp_path, path)
    for broken in (b"\xff", b"[1]", b"{", b"[" * 100_000):
        ending = "cls" if broken == b"\xff" else "json"
        path = archive(tmp_path / "a.tar", {"1.jpg": PICTURES[0], f"1.{ending}": broken})
        with refused(ManifestError, path):
            built(tmp_path, path)
    whole = archive(tmp_path / "a.tar", {"1.jpg": PICTURES[0] * 9}).read_bytes()
    for content in (whole[:600], b"", b"no archive" * 100):
        path.write_bytes(content)
        with refused(ManifestError):
            built(tmp_path, path)
    with refused(NotAFile, tmp_path):
        built(tmp_path, tmp_path)
    path = archive(tmp_path / "a.tar", {"1.jpg": PICTURES[0], "1.cls": b"dog"})
    with refused(ManifestError, "'domain'", "a.tar"):
        built(tmp_path, path)


def hub_parquet(path: Path, labels: list[int], start: int, **columns: list[Any]) -> Path:
    images = [{"bytes": PICTURES[start + n], "path": "same.png"} for n in range(len(labels))]
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        "site": {"dtype": "string", "_type": "Value"},
    }
    table = pa.table({"image": images, "label": labels, **columns})
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_parquet_of_the_hub_has_names_of_classes_and_splits(tmp_path: Path) -> None:
    train = hub_parquet(tmp_path / "train-00000-of-00001.parquet", [0, 1, 1], 0,
                        site=["a", "b", "a"], width=[4, 4, 4])  # fmt: skip
    val = hub_parquet(tmp_path / "validation-00000-of-00001.parquet", [1], 3, site=["a"], width=[4])
    manifest = built(tmp_path, train, val, "--domain-column", "site")
    assert rows(manifest, "label", "domain", "split", "width") == [
        ("cat", "a", "train", 4), ("dog", "b", "train", 4), ("dog", "a", "train", 4),
        ("dog", "a", "val", 4),
    ]  # fmt: skip
    assert manifest.image_source(3) == PICTURES[3]
    unlabelled = hub_parquet(tmp_path / "x.parquet", [0, -1], 0, site=["a", "b"])
    with refused(ManifestError, "without label", "row 1"):
        built(tmp_path, unlabelled, "--domain-column", "site")
    with refused(ManifestError, "'domain'", "site"):
        built(tmp_path, unlabelled)
    outside = hub_parquet(tmp_path / "y.parquet", [0, 2], 0, site=["a", "b"])
    with refused(ManifestError, outside):
        built(tmp_path, outside, "--domain-column", "site")


def test_plain_parquet_with_bytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"bytes": PICTURES[:4], "label": list("xyxy"), "domain": list("ppqq")}
    pq.write_table(pa.table(columns), path)
    assert rows(built(tmp_path, path), "label", "domain") == list(zip("xyxy", "ppqq", strict=True))
    other = pq.write_table(pa.table({**columns, "label": [1, 2, 1, 2]}), tmp_path / "b.parquet")
    assert other is None
    with refused(ManifestError, "b.parquet"):
        built(tmp_path, path, tmp_path / "b.parquet")
    path.write_bytes(b"PAR1 no table")
    with refused(ManifestError, path):
        built(tmp_path, path)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Any]:
    """A store in memory, with a shard of each kind in it."""
    store = fsspec.filesystem("memory")
    facts = json.dumps({"domain": "far"}).encode()
    members = {"1.jpg": PICTURES[0], "1.cls": b"cat", "1.json": facts}
    store.pipe("/bucket/a.tar", archive(tmp_path / "a.tar", members).read_bytes())
    parquet = hub_parquet(tmp_path / "p.parquet", [1], 1, domain=["farther"])
    store.pipe("/bucket/b.parquet", parquet.read_bytes())
    yield store
    store.rm("/bucket", recursive=True)


def test_addresses_are_opened_by_fsspec(bucket: Any, tmp_path: Path) -> None:
    manifest = built(tmp_path, "memory://bucket/a.tar", "memory://bucket/b.parquet")
    assert rows(manifest, "label", "domain") == [("cat", "far"), ("dog", "farther")]
    with refused(ManifestError, "memory://bucket/none.tar"):
        built(tmp_path, "memory://bucket/none.tar")
    with refused(ManifestError, "nowhere://bucket/a.tar"):
        built(tmp_path, "nowhere://bucket/a.tar")


def test_a_store_without_its_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with refused(ManifestError, "s3://bucket/a.tar", "acclimate[remote]"):
        built(tmp_path, "s3://bucket/a.tar")
