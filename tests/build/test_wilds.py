"""WILDS' folders as its download leaves them: its domains, its official splits, its counts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acclimate.build.wilds import RELEASES
from acclimate.core.errors import ManifestError, UnknownName
from acclimate.data.manifest import Manifest
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.wilds_folders import FMOW, MAKE, camelyon17, iwildcam, rxrx1


def built(tmp_path: Path, name: str, root: Path | None = None) -> tuple[Manifest, dict[str, Any]]:
    out = tmp_path / "out.parquet"
    root = root or MAKE[name](tmp_path / f"{name}_v1.0")
    said = json.loads(command("build", "wilds", root, "--data", name, "--out", out, "--json"))
    return Manifest.read(out), said


def parts(manifest: Manifest, *columns: str) -> set[tuple[str, ...]]:
    return {tuple(row.values()) for row in manifest.table.select(columns).to_pylist()}


def test_camelyon17_has_three_hospitals_to_train_on(tmp_path: Path) -> None:
    manifest, _ = built(tmp_path, "camelyon17")
    assert parts(manifest, "domain", "role", "split", "official_split") == {
        *((f"hospital-{own}", "train", "train", "train") for own in (0, 3, 4)),
        *((f"hospital-{own}", "train", "val", "id_val") for own in (0, 3, 4)),
        ("hospital-1", "val", "val", "val"),
        ("hospital-2", "test", "test", "test"),
    }
    assert manifest.classes == ("normal", "tumor")
    row = manifest.table.slice(5, 1).to_pylist()[0]  # patient 024 keeps its zero
    assert row["image"] == "patches/patient_024_node_1/patch_patient_024_node_1_x_96_y_32.png"
    assert (row["label"], row["slide"]) == ("tumor", "10")
    assert row["licence"] == RELEASES["camelyon17"].licence


def test_iwildcam_keeps_bursts_together_and_names_animals(tmp_path: Path) -> None:
    manifest, _ = built(tmp_path, "iwildcam", iwildcam(tmp_path / "elsewhere"))
    assert parts(manifest, "domain", "role", "split", "official_split", "group") == {
        ("location-3", "train", "train", "train", "sequence-0"),
        ("location-3", "train", "val", "id_val", "sequence-1"),
        ("location-3", "train", "test", "id_test", "sequence-2"),
        ("location-5", "val", "val", "val", "sequence-3"),
        ("location-6", "test", "test", "test", "sequence-4"),
    }
    assert manifest.classes == ("empty", "panthera onca")
    assert manifest.image_name(0) == "train/train-0.jpg"


def test_fmow_trains_on_years_before_2013_and_numbers_images_by_their_row(tmp_path: Path) -> None:
    manifest, said = built(tmp_path, "fmow")
    wanted = [(place, one[3]) for place, one in enumerate(FMOW) if one[3]]
    assert manifest.table["official_split"].to_pylist() == [part for _, part in wanted]
    assert manifest.table["image"].to_pylist() == [f"images/rgb_img_{n}.png" for n, _ in wanted]
    assert said["left_out"] == len(FMOW) - len(wanted)
    assert manifest.roles() == {
        "Africa-2002": "train", "Africa-2015": "val", "Africa-2016": "test", "Europe-2012": "train",
        "Europe-2013": "val", "Other-2017": "test",
    }  # fmt: skip
    assert manifest.groups()["Europe-2012"] == "Europe"


def test_rxrx1_tests_training_experiments_on_their_second_site(tmp_path: Path) -> None:
    manifest, _ = built(tmp_path, "rxrx1", rxrx1(tmp_path / "x" / "rxrx1_v1.0").parent)
    assert parts(manifest, "domain", "role", "split", "official_split", "cell_type") == {
        ("HEPG2-01", "train", "train", "train", "HEPG2"),
        ("HEPG2-01", "train", "test", "id_test", "HEPG2"),
        ("RPE-02", "train", "train", "train", "RPE"),
        ("RPE-02", "train", "test", "id_test", "RPE"),
        ("U2OS-03", "val", "val", "val", "U2OS"),
        ("HUVEC-04", "test", "test", "test", "HUVEC"),
    }
    assert manifest.image_name(0) == "images/HEPG2-01/Plate1/B02_s1.png"


@pytest.mark.parametrize(
    ("name", "images"),
    [("camelyon17", 455954), ("iwildcam", 203029), ("fmow", 141696), ("rxrx1", 125510)],
)
def test_published_splits_add_up_to_the_published_totals(name: str, images: int) -> None:
    assert sum(RELEASES[name].splits.values()) == images


def test_as_expected_or_every_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": 6, "id_val": 6, "val": 4, "test": 4}
    small = replace(RELEASES["camelyon17"], splits=splits)
    monkeypatch.setitem(RELEASES, "camelyon17", small)
    root, out = camelyon17(tmp_path / "x"), tmp_path / "out.parquet"
    given = ("build", "wilds", root, "--data", "camelyon17", "--out", out)
    assert "\nas expected\n" in command(*given)
    other = replace(small, splits={**splits, "train": 7, "val": 3, "id_test": 2}, classes=3)
    monkeypatch.setitem(RELEASES, "camelyon17", other)
    assert json.loads(command(*given, "--json"))["differences"] == [
        "split 'train' has 6 images, 1 fewer than expected",
        "split 'val' has 4 images, 1 more than expected",
        "split 'id_test' is missing: 2 images expected",
        "2 classes instead of 3",
    ]
    assert "warning: split 'train' has 6 images" in command(*given)


def test_another_layout_is_refused_with_its_first_difference(tmp_path: Path) -> None:
    with refused(UnknownName, "camelyon", "camelyon17"):
        built(tmp_path, "camelyon", tmp_path)
    with refused(ManifestError, tmp_path / "none", "country_code_mapping.csv"):
        built(tmp_path, "fmow", tmp_path / "none")
    with refused(ManifestError, tmp_path, "'metadata.csv'"):
        built(tmp_path, "rxrx1", tmp_path)
    root = iwildcam(tmp_path / "x")
    with refused(ManifestError, "metadata.csv", "'patient'", "location_remapped"):
        built(tmp_path, "camelyon17", root)
    (root / "train" / "val-1.jpg").unlink()
    with refused(ManifestError, "train/val-1.jpg"):
        built(tmp_path, "iwildcam", root)
    table = (root / "metadata.csv").read_text()
    (root / "metadata.csv").write_text(table.replace(",id_val,", ",cis_val,"))
    with refused(UnknownName, "train/id_val-0.jpg", "cis_val", "id_val"):
        built(tmp_path, "iwildcam", root)
    (root / "metadata.csv").write_text(table.splitlines()[0] + "\n")
    with refused(ManifestError, "x/", "official split"):
        built(tmp_path, "iwildcam", root)
    assert not (tmp_path / "out.parquet").exists()
