"""Labels that are one number, names too large for numbers, folders that nobody made, and what
libraries say about pictures on their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acclimate.core.errors import ManifestError
from acclimate.data.inspection import several_labels
from acclimate.data.manifest import Manifest
from acclimate.data.readers import find_images
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.pictures import write_sites
from fuzz.mutations import mutated
from fuzz.pictures import PICTURES


def table(path: Path, labels: pa.Array, domains: list[str] | None = None) -> Path:
    images = [f"{number}.png" for number in range(len(labels))]
    columns = {"image": images, "label": labels, "domain": domains or ["a"] * len(labels)}
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("names", [("01", "1"), ("1", "1.0"), ("007", "7", "7."), ("0", "00")])
def test_one_number_in_several_spellings(tmp_path: Path, names: tuple[str, ...]) -> None:
    data = Manifest.open(table(tmp_path / "a.parquet", pa.array(names)))
    with refused(ManifestError, "spelt", *(f"'{name}'" for name in names)):
        data.check(check_files=False)


def test_numbers_that_differ_are_labels_that_differ(tmp_path: Path) -> None:
    names = ("1", "10", "1.5", "15", "-1", "1-5", "100")
    Manifest.open(table(tmp_path / "a.parquet", pa.array(names))).check(check_files=False)


def test_numbers_too_large_to_be_exact(tmp_path: Path) -> None:
    large = 2**53 + 1
    exact = Manifest.open(table(tmp_path / "a.parquet", pa.array([large, large - 1])))
    assert exact.classes == (str(large - 1), str(large))
    for values in ([float(large), 1.0], [-float(large), None], [np.inf, 1.0]):
        path = table(tmp_path / "b.parquet", pa.array(values, pa.float64()))
        with refused(ManifestError, "label", "2^53"):
            Manifest.open(path)
    table(tmp_path / "c.parquet", pa.array([1.0, 2.0, None], pa.float64()))
    assert len(Manifest.open(tmp_path / "c.parquet").classes) == 2
    with refused(ManifestError, "2^53"):
        Manifest.from_arrays(np.zeros((2, 1)), np.array([float(large), 1.0]), ["a", "b"])


def test_folders_of_a_file_station_are_no_sites(tmp_path: Path) -> None:
    tree = write_sites(tmp_path / "tree", 2, ".png")
    whole = Manifest.open(tree)
    for place in (tree, tree / "north", tree / "north" / "red"):
        for name in ("@eaDir", "#recycle"):
            shutil.copytree(tree / "east" / "red", place / name / "more")
    again = Manifest.open(tree)
    assert (again.domains, again.classes) == (whole.domains, whole.classes)
    assert again.digest() == whole.digest()
    assert len(find_images([tree])) == len(whole)


def test_a_site_whose_name_begins_with_a_backslash(tmp_path: Path) -> None:
    tree = write_sites(tmp_path / "tree", 2, ".png")
    (tree / "north").rename(tree / "\\north")
    with refused(ManifestError, "\\north", "backslash"):
        Manifest.open(tree).check()


def test_an_image_under_two_labels_is_told(tmp_path: Path) -> None:
    rows = [("a", "cat"), ("a", "dog"), ("b", "cat"), ("a", "cat")]
    images = ["x.png", "x.png", "x.png", "y.png"]
    columns = {"image": images, "domain": [r[0] for r in rows], "label": [r[1] for r in rows]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert several_labels(Manifest.open(tmp_path / "t.parquet")) == ["x.png: cat and dog in a"]
    out = command("inspect", tmp_path / "t.parquet", "--read", "0")
    assert "several labels: x.png: cat and dog in a" in out
    features = Manifest.from_arrays(np.zeros((2, 1)), ["c", "d"], ["a", "a"])
    assert several_labels(features) == []


def inspected(*arguments: object) -> "subprocess.CompletedProcess[str]":
    task = [sys.executable, "-m", "acclimate", "inspect", *map(str, arguments)]
    return subprocess.run(task, capture_output=True, text=True, timeout=300, check=False)


def test_decoders_keep_what_they_think_to_themselves(tmp_path: Path) -> None:
    """libtiff writes on the process's own stream, Pillow warns and logs."""
    (tmp_path / "a" / "x").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, whole in PICTURES.items():
        if name.startswith(("tif", "jpg")):
            for number in range(25):
                path = tmp_path / "a" / "x" / f"{name} {number}.{name.split()[0]}"
                path.write_bytes(mutated(whole, rng))
    done = inspected(tmp_path, "--read", "-1")
    assert done.returncode == 0
    progress = ("reading", "comparing")
    assert [line for line in done.stderr.splitlines() if not line.startswith(progress)] == []


def test_warnings_steer_no_terminal(tmp_path: Path) -> None:
    tree = write_sites(tmp_path / "tree", 2, ".png")
    (tree / "north").rename(tree / "\x1b[31mnorth\x07")
    done = inspected(tree, "--plots", tmp_path / "plots")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout + done.stderr
