"""RotatedMNIST and ColoredMNIST: DomainBed's definitions, from files in the idx format."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from acclimate.build.idx import read_idx
from acclimate.core.errors import ManifestError, UnknownName
from acclimate.data.manifest import Manifest
from fixtures.builder_inputs import digits, idx
from fixtures.command_line import command
from fixtures.errors import refused


def built(tmp_path: Path, kind: str, root: Path | None = None) -> Manifest:
    out = tmp_path / f"{kind}.parquet"
    command("build", "idx", root or digits(tmp_path / "MNIST"), "--kind", kind, "--out", out)
    return Manifest.read(out)


def pixels(manifest: Manifest, row: int) -> np.ndarray:
    source = manifest.image_source(row)
    assert isinstance(source, bytes)
    return np.asarray(Image.open(io.BytesIO(source)))


def test_every_image_is_turned_in_one_domain(tmp_path: Path) -> None:
    plain, turned = built(tmp_path, "plain"), built(tmp_path, "rotated")
    assert plain.domains == ("plain",)
    assert turned.domains == ("0", "15", "30", "45", "60", "75")
    assert [len(turned.rows(domain=name)) for name in turned.domains] == [10, 10, 10, 10, 10, 9]
    names = plain.table["base_image"].to_pylist()
    assert sorted(names) == sorted(turned.table["base_image"].to_pylist())
    assert len(set(names)) == len(plain) == 59
    labels = {turned.table["base_image"][row].as_py(): turned.table["label"][row].as_py()
              for row in range(59)}  # fmt: skip
    assert [labels[name] for name in names] == plain.table["label"].to_pylist()


def test_angles_are_counter_clockwise_and_empty_corners_black(tmp_path: Path) -> None:
    bar = np.zeros((12, 28, 28))
    bar[:, 8:20, 13:15] = 200
    bar[:, 8:11, 15:20] = 200  # so that it is no mirror image of itself
    root = tmp_path / "one"
    for part in ("train", "t10k"):
        idx(root / f"{part}-images.idx3-ubyte", bar)
        idx(root / f"{part}-labels.idx1-ubyte", np.zeros(12))
    manifest = built(tmp_path, "rotated", root)
    for angle in manifest.domains:
        seen = pixels(manifest, int(manifest.rows(domain=angle)[0])).astype(float)
        wanted = ndimage.rotate(bar[0], float(angle), reshape=False, order=1)
        assert np.abs(seen - wanted).mean() < 2, angle
        assert seen[0, 0] == seen[-1, 0] == 0


def test_colours_tell_the_label_as_often_as_the_domain_says(tmp_path: Path) -> None:
    manifest = built(tmp_path, "coloured", digits(tmp_path / "MNIST", 4200))
    assert manifest.classes == ("0 to 4", "5 to 9")
    table = manifest.table.to_pydict()
    small = np.array(table["label"]) == "0 to 4"
    digit, green = np.array(table["digit"]), np.array(table["green"])
    assert np.mean(small == (digit < 5)) == pytest.approx(0.75, abs=0.03)
    for domain, share in {"+90%": 0.9, "+80%": 0.8, "-90%": 0.1}.items():
        rows = manifest.rows(domain=domain)
        assert len(rows) == 1400
        assert np.mean(green[rows] == small[rows]) == pytest.approx(share, abs=0.03)
        for row in rows[:5]:
            red, other, blue = pixels(manifest, int(row)).transpose(2, 0, 1)
            assert blue.max() == 0
            shown, dark = (other, red) if green[row] else (red, other)
            assert (shown.max() > 0, dark.max()) == (True, 0)


def test_what_is_no_idx_file_is_refused(tmp_path: Path) -> None:
    with refused(UnknownName, "turned", "rotated"):
        built(tmp_path, "turned")
    with refused(ManifestError, "train-images", tmp_path / "none"):
        built(tmp_path, "plain", tmp_path / "none")
    root = digits(tmp_path / "bad")
    labels = root / "raw" / "t10k-labels-idx1-ubyte.gz"
    idx(labels, np.zeros(7))
    with refused(ManifestError, root, "59 images", "58 labels"):
        built(tmp_path, "plain", root)
    for content in (b"", b"\x1f\x8b\x08", labels.read_bytes()[:-9]):
        labels.write_bytes(content)
        with refused(ManifestError, labels, "1 axes"):
            built(tmp_path, "plain", root)
    short = root / "raw" / "train-images-idx3-ubyte"
    short.write_bytes(short.read_bytes()[:-1])
    with refused(ManifestError, short, "3 axes"):
        read_idx(short, 3)
