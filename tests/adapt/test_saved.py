"""Models that travel: a folder with weights, card, licence and lines that run it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acclimate import Adapted, AdaptiveClassifier, Manifest
from acclimate.core.errors import AcclimateError, RunError
from acclimate.core.files import write_document
from fixtures.errors import refused
from fixtures.settings import TINY

FILES = {"MODEL_CARD.md", "checksums.json", "model.json", "model.safetensors", "predict.py"}


@pytest.fixture(scope="module")
def model(tree: Path) -> AdaptiveClassifier:
    """Fitted in a temporary folder, which is gone."""
    return AdaptiveClassifier(algorithm="da-erm", settings=TINY, device="cpu").fit(tree)


@pytest.mark.slow
def test_a_site_travels(model: AdaptiveClassifier, tree: Path, tmp_path: Path) -> None:
    site = model.adapt(tree / "west" / "red")
    folder = site.save(tmp_path / "west")
    assert {path.name for path in folder.iterdir()} == {*FILES, "site.safetensors"}
    images = sorted((tree / "west" / "blue").iterdir())
    again = Adapted.load(folder, device="cpu")
    np.testing.assert_array_equal(again.predict_proba(images), site.predict_proba(images))
    assert again.method == "embedding"

    moved = folder.rename(tmp_path / "elsewhere")
    command = [sys.executable, str(moved / "predict.py"), str(tree / "west" / "blue")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == site.predict(images)
    assert len((moved / "predict.py").read_text().splitlines()) == 6  # a comment, and five

    card = (moved / "MODEL_CARD.md").read_text()
    for fact in (
        "# da-erm\n\n- Input: images (16 px)\n",
        "- Output: one of 2 classes, and no other: blue, red\n",
        "- Licence of the weights that it started from: none: no pretrained weights",
        "- Trained on the domains: east, north, south, west\n",
        "- Adapted to one domain: by embedding, from 12 images of it\n",
    ):
        assert fact in card


def test_labels_that_are_those_of_no_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    domains = np.repeat(["a", "b", "c"], 12)
    model = AdaptiveClassifier(algorithm="erm", settings=TINY, device="cpu")
    folder = model.fit(rng.normal(size=(36, 3)), np.tile([7, 8], 18), domains).save(tmp_path / "m")
    assert AdaptiveClassifier.load(folder, device="cpu").classes_.tolist() == [7, 8]
    for values, kind in (
        ([7, 9], "int64"), ([7], "int64"), ([[7, 8]], "int64"), ([7, 8], "<U99999999"),
        ([7, 8], "M8[s]"), (["a", 8], "int64"), ([7, 10**400], "int64"), (7, "int64"), ([7, 8], 3),
    ):  # fmt: skip
        write_document(folder / "labels.json", {"values": values, "dtype": kind})
        with refused(AcclimateError, "labels.json"):
            AdaptiveClassifier.load(folder, device="cpu")


def test_what_belongs_to_a_site_is_missed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    domains = np.repeat(["a", "b", "c"], 12)
    model = AdaptiveClassifier(
        algorithm="da-erm", settings=TINY, device="cpu", out=tmp_path / "run"
    )
    model.fit(rng.normal(size=(36, 3)), np.tile([7, 8], 18), domains)
    site = model.adapt(rng.normal(size=(20, 3))).save(tmp_path / "site")
    other = model.adapt(1 + rng.normal(size=(20, 3))).save(tmp_path / "other")
    loads = {site: Adapted.load, tmp_path / "run": AdaptiveClassifier.load}
    for folder, load in loads.items():
        for name in ("labels.json", "site.safetensors", "checksums.json"):
            path = folder / name
            if not path.exists():
                continue
            load(folder, device="cpu")
            whole = path.read_bytes()
            path.unlink()
            with refused(RunError, folder):
                load(folder, device="cpu")
            path.write_bytes(whole)
    (site / "site.safetensors").write_bytes((other / "site.safetensors").read_bytes())
    with refused(RunError, site / "site.safetensors"):
        Adapted.load(site, device="cpu")


def test_nothing_else_is_overwritten(
    model: AdaptiveClassifier, features: Manifest, tmp_path: Path
) -> None:
    other = AdaptiveClassifier(algorithm="da-erm", settings=TINY, device="cpu").fit(features)
    other.save(tmp_path / "other")
    assert {path.name for path in model.save(tmp_path / "own").iterdir()} == FILES
    model.save(tmp_path / "own")  # the same may be saved again
    for name in ("photos/one.jpg", "run/run.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    for name in ("other", "photos", "photos/one.jpg", "run"):
        with refused(RunError, tmp_path / name):
            model.save(tmp_path / name)
