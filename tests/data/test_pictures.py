"""Which rows show one picture, wherever it lies, and which belong to one group."""

import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.data import pictures
from acclimate.data.batches import EpisodeSampler
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import OWN, Seen, content_digests, file_digests, numbers
from fixtures.errors import refused


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The files of which the content is read, with a cache of their own."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    read, original = [], pictures._read_digest

    def watched(path: str) -> bytes | None:
        read.append(path)
        return original(path)

    monkeypatch.setattr(pictures, "_read_digest", watched)
    return read


def test_files_are_known_by_content_and_read_once(tmp_path: Path, reads: list[str]) -> None:
    names = [str(tmp_path / name) for name in ("a", "b", "c", "empty", "missing", "pipe")]
    for name, text in zip(names, ("one", "two", "one", ""), strict=False):
        Path(name).write_text(text)
    os.mkfifo(names[5])
    digests = file_digests(names)
    assert digests[0] == digests[2] != digests[1]
    assert digests[0] == content_digests([b"one"])[0]
    assert digests[3:] == [None, None, None]
    assert sorted(reads) == names[:3]
    assert file_digests(names) == digests and len(reads) == 3
    stamp = Path(names[0]).stat().st_mtime_ns
    Path(names[0]).write_text("ten")  # of the same size, and made to look as old
    os.utime(names[0], ns=(stamp, stamp))
    assert file_digests(names)[0] == content_digests([b"ten"])[0]


@pytest.mark.parametrize("damage", [b"no database", b""])
def test_a_damaged_cache_is_done_without(tmp_path: Path, reads: list[str], damage: bytes) -> None:
    (tmp_path / "a").write_text("one")
    digests = file_digests([str(tmp_path / "a")])
    (store,) = (tmp_path / "cache").rglob("*.sqlite")
    store.write_bytes(damage)
    assert file_digests([str(tmp_path / "a")]) == digests
    assert len(reads) == 2


def test_a_cache_with_nonsense_in_it(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "a").write_text("one")
    digests = file_digests([str(tmp_path / "a")])
    (store,) = (tmp_path / "cache").rglob("*.sqlite")
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE files SET digest = x'00'")
    assert file_digests([str(tmp_path / "a")]) == digests


def test_one_picture_in_files_and_tables(tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree, tmp_path / "sites")
    shutil.copy(tree / "north/red/00.jpg", tmp_path / "sites/south/blue/copy.jpg")
    manifest = Manifest.from_folder(tmp_path / "sites")
    names = manifest.table["image"].to_pylist()
    one, two = names.index("north/red/00.jpg"), names.index("south/blue/copy.jpg")
    assert np.flatnonzero(manifest.picture_ids == manifest.picture_ids[one]).tolist() == [one, two]
    assert manifest.shared_pictures() == 1
    assert len(np.unique(manifest.picture_ids)) == len(names) - 1
    some = manifest.select(np.array([two, 5, one]))
    assert some.picture_keys.tolist() == manifest.picture_keys[[two, 5, one]].tolist()
    encoded = pa.array([(tree / "north/red/00.jpg").read_bytes()], pa.large_binary())
    table = pa.table({"bytes": encoded, "label": ["red"], "domain": ["x"], "split": ["train"]})
    other = replace(manifest, table=table)
    assert other.picture_keys[0] == manifest.picture_keys[one]


def test_what_an_image_was_made_from_goes_before_its_content() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (4, 8, 8), dtype=np.uint8)
    manifest = Manifest.from_arrays(images, list("abab"), list("xxyy"))
    assert len(np.unique(manifest.picture_ids)) == 4
    base = pa.array(["one", "two", "one", None])
    painted = replace(manifest, table=manifest.table.append_column("base_image", base))
    assert painted.picture_ids.tolist() == [0, 1, 0, 3]


def test_features_are_pictures_of_their_own_unless_named(features: Manifest) -> None:
    assert features.picture_ids.tolist() == list(range(len(features)))
    assert (features.picture_keys == OWN).all()
    assert (
        not Seen.of(features.picture_keys, features.group_keys)
        .among(features.picture_keys, features.group_keys)
        .any()
    )


def test_seen_goes_by_pictures_and_groups() -> None:
    seen = Seen.of(np.array([5, 7, OWN]), np.array([OWN, 3, OWN]))
    shown = seen.among(np.array([5, 6, OWN, 6]), np.array([OWN, OWN, OWN, 3]))
    assert shown.tolist() == [True, False, False, True]
    assert numbers(np.array([9, OWN, 9, OWN])).tolist() == [0, 1, 0, 3]


def test_a_group_is_on_one_side_of_every_split(tree: Path) -> None:
    """Three images are a patient, named in the path; a copy ties two patients together."""
    sides = set()
    for seed in range(6):
        manifest = Manifest.from_folder(tree, val_share=0.4, seed=seed, group=r"/(\w+/\d)\d")
        groups = manifest.table["group"].to_pylist()
        assert groups[0] == "blue/0"
        for group in set(groups):
            rows = [row for row, own in enumerate(groups) if own == group]
            (side,) = {manifest.splits[row] for row in rows}
            sides.add(side)
    assert sides == {"train", "val"}
    assert len(np.unique(manifest.unit_ids)) == len(set(groups))


def test_patterns_that_find_no_group(tree: Path) -> None:
    with refused(ConfigError, "(", "--group"):
        Manifest.from_folder(tree, group="(")
    with refused(ManifestError, "patient", "--group"):
        Manifest.from_folder(tree, group="patient")


def test_support_and_query_share_no_picture() -> None:
    """Every picture has two rows, under two labels."""
    rows, shown = [np.arange(24), np.arange(24, 48)], np.arange(48) // 2
    options = {"per_domain": 8, "domains_per_step": 2, "support": 0.5, "seed": 0}
    shared = 0
    for step in range(30):
        plain = EpisodeSampler(rows, **options).rows(step)[0]
        apart = EpisodeSampler(rows, **options, pictures=shown).rows(step)[0]
        for part in (apart[:8], apart[8:]):
            assert not set(shown[part[:4]]) & set(shown[part[4:]])
        shared += bool(set(shown[plain[:4]]) & set(shown[plain[4:8]]))
    assert shared > 10  # by row alone they would


def test_digits_of_training_validation_and_unseen_sensors_are_different_ones() -> None:
    digits = build_digits(DigitsSettings(train_domains=5, test_domains=3, train_images=50))
    table = digits.table.to_pydict()
    shown: dict[str, set[str]] = {"train": set(), "val": set(), "test": set()}
    for role, split, digit in zip(table["role"], table["split"], table["base_image"], strict=True):
        shown[split if role == "train" else "test"].add(digit)
    assert not shown["train"] & shown["val"] and not shown["test"] & (shown["train"] | shown["val"])
    assert digits.splits.tolist().count("val") == 5 * 10
