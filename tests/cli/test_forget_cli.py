"""`acclimate forget`: the bytes of a site are gone from caches and folders, and those of others are
there; and `train --from`, which a site of a run's own needs."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acclimate.adapt.classifier import adapt
from acclimate.config import DataConfig
from acclimate.core.files import write_json
from acclimate.data.cache import FeatureCache
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import file_digests
from acclimate.data.source import Quarantine, pack_images
from acclimate.learn.model import Trained
from acclimate.runs.growth import config_from, line_of

SIDE = 8


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sites(tree: Path, tmp_path: Path) -> Path:
    """North and west, where one picture of north is in west, too."""
    for site in ("north", "west"):
        shutil.copytree(tree / site, tmp_path / "sites" / site)
    shared = next((tmp_path / "sites" / "north" / "red").iterdir())
    shutil.copy(shared, tmp_path / "sites" / "west" / "red" / "copy.jpg")
    return tmp_path / "sites"


class Kept:
    """What the caches hold of the images of a data set, and the bytes by which to find it."""

    def __init__(self, sites: Path, cache: Path) -> None:
        self.cache, self.manifest = cache, Manifest.open(sites)
        self.paths = list(map(str, self.manifest.image_sources(np.arange(len(self.manifest)))))
        contents = [Path(path).read_bytes() for path in self.paths]
        self.digests = [hashlib.sha256(content).digest() for content in contents]
        draw = torch.Generator().manual_seed(0)
        self.features = torch.rand(len(self.paths), 5, generator=draw)
        distinct = sorted({digest: row for row, digest in enumerate(self.digests)}.values())
        for name in ("one", "other"):  # two backbones, with shards of both sites and of one
            store = FeatureCache(cache / "features" / name, 5)
            store.begin({"backbone": name})
            for part in np.array_split(distinct, 5):
                store.add([self.digests[row] for row in part], self.features[part])
        pack = pack_images(self.manifest, SIDE, DataConfig(), Quarantine())
        self.pixels = np.zeros((len(self.paths), 3, SIDE, SIDE), np.uint8)
        for image, row in enumerate(pack_rows(self.manifest)):
            assert pack.find(image, self.pixels[row])
        file_digests(self.paths)

    def found(self) -> dict[str, set[int]]:
        """The rows of which features, pixels or digests are somewhere in the cache."""
        whole = b"".join(path.read_bytes() for path in self.cache.rglob("*") if path.is_file())
        kinds = {
            "features": [row.numpy().tobytes() for row in self.features],
            "pixels": [row.tobytes() for row in self.pixels],
            "digests": self.digests,
            "paths": [path.encode() for path in self.paths],
        }
        return {
            kind: {row for row, content in enumerate(contents) if content in whole}
            for kind, contents in kinds.items()
        }


def pack_rows(manifest: Manifest) -> np.ndarray:
    """A row of each image, in the order of a pack's numbers."""
    from acclimate.data.source import numbered

    return numbered(manifest.image_ids)[0]


@pytest.mark.slow
def test_the_bytes_of_a_site_are_gone(
    cli: Any, run: Path, sites: Path, cache: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(run, tmp_path / "runs" / "sites"))
    kept = Kept(sites, cache)
    every, west = set(range(len(kept.paths))), set(kept.manifest.rows(domain="west").tolist())
    shared = {row for row in west if kept.digests.count(kept.digests[row]) > 1}
    before = kept.found()
    assert before["paths"] == before["digests"] == before["pixels"] == every
    trained = Trained.load(run)
    state = adapt(trained, [kept.paths[row] for row in sorted(west)]).state
    assert state is not None
    own = {
        tmp_path / "runs" / "west.safetensors": state.save,
        tmp_path / "states" / "west.safetensors": state.save,
        tmp_path / "runs" / "west.json": lambda path: write_json(path, {"kind": "watch of a site"}),
    }
    for path, write in own.items():
        path.parent.mkdir(exist_ok=True)
        write(path)
    (tmp_path / "runs" / "west.npz").write_text("mine")
    others = [tmp_path / "states" / "north.safetensors", tmp_path / "states" / "west.csv"]
    for path in others:
        state.save(path)

    flags = ["--data", sites, "--states", tmp_path / "states", "--json"]
    code, out, _ = cli("forget", run, "west", *flags)
    facts = json.loads(out)
    assert code == 0
    assert (facts["images"], facts["shared"]) == (len(west), 1)
    assert (facts["features"], facts["pixels"]) == (2 * (len(west) - 1), len(west) - 1)
    assert sorted(facts["removed"]) == sorted(map(str, own))
    assert not any(path.exists() for path in own)
    assert all(path.exists() for path in [*others, tmp_path / "runs" / "west.npz"])
    # `west` is a test domain of this run.
    (note,) = facts["notes"]
    assert f"--from {run} --without west" in note

    left, gone = kept.found(), west - shared
    assert left["features"] == before["features"] - gone
    assert left["pixels"] == every - gone
    assert left["digests"] == every - gone  # of the shared one in the pack and the features
    assert left["paths"] == every - west
    fresh = FeatureCache(cache / "features" / "one", 5)
    into, there = torch.zeros(len(kept.paths), 5), np.zeros(len(kept.paths), dtype=bool)
    fresh.fill(kept.digests, into, there)
    assert set(np.flatnonzero(there).tolist()) >= before["features"] - gone - shared
    assert not there[sorted(gone)].any()


def test_a_site_that_nobody_knows(cli: Any, run: Path, tmp_path: Path, cache: Path) -> None:
    code, out, err = cli("forget", run, "weft")
    assert (code, out) == (1, "")
    assert "'weft'" in err
    code, out, _ = cli("forget", run, "north")
    assert code == 0
    assert "--without north" in out
    assert "--data" in out


@pytest.mark.slow
def test_a_run_goes_on_with_a_site_and_without_one(
    cli: Any, run: Path, tree: Path, tmp_path: Path
) -> None:
    code, out, _ = cli(
        "train", tree, "--from", run, "--without", "north", "--out", tmp_path / "less", "--json"
    )
    facts = json.loads(out)
    assert code == 0
    assert facts["grown"]["sites_gone"] == ["north"]
    assert Trained.load(tmp_path / "less").config.model.weights == ""
    code, out, _ = cli("train", tree, "--from", tmp_path / "less", "--out", tmp_path / "more")
    assert code == 0
    assert "sites added: north" in out
    assert "before" in out
    assert Trained.load(tmp_path / "more").config.model.weights.endswith("model.safetensors")
    # Weights that learned from a site are those of every run that started from them.
    code, out, _ = cli("forget", tmp_path / "more", "south")
    assert (code, "the weights have learned" in out) == (0, True)
    third = ["train", tree, "--from", tmp_path / "more", "--out", tmp_path / "third", "--dry-run"]
    assert cli(*third)[0] == 0
    assert line_of(tmp_path / "more")[1] == ""
    assert config_from(tmp_path / "more", {}, ["south"]).model.weights == ""
    code, _, err = cli("train", tree, "--from", run, "--preset", "rehearsed")
    assert (code, "--preset" in err) == (1, True)
