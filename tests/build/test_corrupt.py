"""Corruptions: stronger with severity, the same pictures in every domain, in the same splits."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from acclimate.build.corrupt import CORRUPTIONS, corrupted
from acclimate.core.errors import AcclimateError, ConfigError, ManifestError, UnknownName
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.sites import five_sites


def photograph(side: int) -> np.ndarray:
    """Coloured shapes of many sizes, neither black nor white, in uint8."""
    rng = np.random.default_rng(side)
    layers = [ndimage.gaussian_filter(rng.normal(size=(side, side, 3)), (s, s, 0)) for s in (1, 4)]
    whole = sum(layer / layer.std() for layer in layers)
    return np.clip(128 + 35 * np.asarray(whole), 0, 255).astype(np.uint8)


def change(image: np.ndarray, kind: str, severity: int) -> float:
    made = corrupted(image, kind, severity, stream(0, kind))
    assert (made.shape, made.dtype) == (image.shape, np.uint8)
    return float(np.mean((made.astype(float) - image) ** 2))


@pytest.mark.parametrize("side", [24, 160])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_change_grows_with_severity(kind: str, side: int) -> None:
    image = photograph(side)
    changes = [change(image, kind, severity) for severity in range(1, 6)]
    assert changes == sorted(changes), changes
    assert len(set(changes)) == 5
    assert 1 < changes[0] < 1500 and changes[-1] > 40


def test_noise_is_as_strong_as_its_table_says() -> None:
    grey = np.full((64, 64, 3), 128, dtype=np.uint8)
    assert change(grey, "gaussian-noise", 2) ** 0.5 == pytest.approx(25.5, rel=0.05)  # 0.1
    assert change(grey, "shot-noise", 1) ** 0.5 == pytest.approx(255 * (0.5 / 80) ** 0.5, rel=0.05)
    made = corrupted(grey, "impulse-noise", 3, stream(0, "salt"))
    assert np.mean(made != 128) == pytest.approx(0.1, abs=0.01)
    assert set(np.unique(made)) == {0, 128, 255}


def test_blurs_spread_a_point_and_keep_its_light() -> None:
    point = np.zeros((224, 224, 3), dtype=np.uint8)
    point[100:116, 100:116] = 255
    for kind in ("defocus-blur", "motion-blur"):
        made = corrupted(point, kind, 3, stream(0, kind)).astype(float)
        assert made.sum() == pytest.approx(point.sum(dtype=float), rel=0.01)
    wide, tall = (np.ptp(np.flatnonzero(made.sum((axis, 2)))) for axis in (0, 1))
    assert wide > 15 + 10  # a stroke of 15 pixels, at most 45 degrees from the horizontal
    assert wide >= tall - 1


def test_colours_move_as_they_are_told() -> None:
    image = photograph(32)
    grey = image.mean(2, keepdims=True)
    more = corrupted(image, "saturate", 1, stream(0)).astype(float)
    inside = (more > 0) & (more < 255)
    assert np.allclose((more - grey)[inside], 1.5 * (image - grey)[inside], atol=0.6)
    less = corrupted(image, "contrast", 5, stream(0)).astype(float)
    assert less.std((0, 1)) == pytest.approx(0.1 * image.std((0, 1)), rel=0.05)
    assert less.mean() == pytest.approx(image.mean(), abs=0.3)
    assert change(image // 2, "brightness", 2) ** 0.5 == pytest.approx(0.16 * 255, rel=0.02)


def test_every_domain_shows_the_same_pictures_in_the_same_splits(
    tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    given = ("build", "corrupt", tree, "--kinds", "jpeg,gaussian-noise", "--severities", "1,5")
    command(*given, "--out", out)
    base, made = Manifest.open(tree), Manifest.read(out)
    kinds = ("gaussian-noise", "jpeg")
    assert made.domains == ("clean", *(f"{kind}-{s}" for kind in kinds for s in (1, 5)))
    columns = ["base_image", "label", "split", "base_domain"]
    own = base.table.select(["image", "label", "split", "domain"]).to_pylist()
    rows = [tuple(row.values()) for row in own]
    for domain in made.domains:
        table = made.table.take(made.rows(domain=domain)).select(columns).to_pylist()
        assert [tuple(row.values()) for row in table] == rows
    assert made.shared_pictures() == len(base)
    clean = made.image_source(int(made.rows(domain="clean")[0]))
    assert isinstance(clean, bytes)
    decoded = np.asarray(Image.open(io.BytesIO(clean)))
    assert np.array_equal(decoded, np.asarray(Image.open(tree / base.image_name(0))))
    # Made from it again, a picture is known by the same name.
    command("build", "corrupt", out, "--kinds", "contrast", "--severities", "2", "--out",
            tmp_path / "twice.parquet")  # fmt: skip
    twice = Manifest.read(tmp_path / "twice.parquet")
    assert set(twice.picture_keys) == set(made.picture_keys)


def test_a_folder_of_classes_is_one_domain_with_splits(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    command(
        "build", "corrupt", tree / "north", "--kinds", "jpeg", "--severities", "1", "--out", out
    )
    made = Manifest.read(out)
    assert set(made.table["base_domain"].to_pylist()) == {"north"}
    for domain in ("clean", "jpeg-1"):
        assert len(made.rows(domain=domain, split="val")) == 5  # of 24 pictures
    command("build", "corrupt", tree / "north", "--kinds", "jpeg", "--severities", "1,1",
            "--out", out)  # fmt: skip
    assert Manifest.read(out).domains == ("clean", "jpeg-1")


def test_what_cannot_be_corrupted_is_refused(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    with refused(UnknownName, "fog", "contrast"):
        command("build", "corrupt", tree, "--kinds", "jpeg,fog", "--out", out)
    for severity in ("6", "0", "high", ""):
        with refused(ConfigError, f"'{severity}'", "1 to 5"):
            command("build", "corrupt", tree, "--severities", severity, "--out", out)
    five_sites().write(tmp_path / "features.parquet")
    with refused(ManifestError, "features.parquet"):
        command("build", "corrupt", tmp_path / "features.parquet", "--out", out)
    broken = tmp_path / "broken" / "north" / "red"
    broken.mkdir(parents=True)
    (broken / "a.jpg").write_bytes(b"no image")
    with refused(AcclimateError, "north/red/a.jpg"):
        command("build", "corrupt", tmp_path / "broken", "--out", out)
    assert not out.exists()
