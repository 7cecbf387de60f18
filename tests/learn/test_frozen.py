"""Frozen features: extracted once, kept on disk, and the same as what images give."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from acclimate.config import DataConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ConfigError, TooManyUnreadable, WriteError
from acclimate.data.cache import FeatureCache, cache_folder
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import content_digests
from acclimate.data.source import FeatureSource, Quarantine, open_source, pack_images, to_float
from acclimate.learn.frozen import Extraction
from acclimate.learn.models import Backbone, build_backbone
from fixtures.decoding import watch_decoding
from fixtures.errors import refused

SIDE = 16


@pytest.fixture
def extractor() -> Backbone:
    torch.manual_seed(0)
    return build_backbone("small-cnn").requires_grad_(False).eval()


@pytest.fixture
def passes(extractor: Backbone) -> list[int]:
    """Images in each pass through the extractor."""
    seen: list[int] = []
    extractor.register_forward_hook(lambda module, given, out: seen.append(len(out)))
    return seen


@pytest.fixture
def manifest(tree: Path) -> Manifest:
    return Manifest.from_folder(tree)


def extract(
    extractor: Backbone,
    manifest: Manifest,
    folder: Path,
    *,
    rows: np.ndarray | None = None,
    quarantine: Quarantine | None = None,
    config: DataConfig | None = None,
    watch: Callable[[str, int, int, str], None] = lambda *told: None,
) -> FeatureSource:
    return Extraction(extractor, "small-cnn", SIDE).extract(
        manifest,
        np.arange(len(manifest)) if rows is None else rows,
        config or DataConfig(),
        Quarantine(max_share=0.0) if quarantine is None else quarantine,
        beside=folder,
        world=World(),
        watch=watch,
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def shards(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.safetensors"))


def test_features_are_what_images_give(
    extractor: Backbone, manifest: Manifest, tmp_path: Path
) -> None:
    found = extract(extractor, manifest, tmp_path)
    rows = np.array([3, 90, 3, 41])
    features, good = found.take(rows)
    images, _ = open_source(manifest, SIDE, DataConfig(), Quarantine(max_share=0.0)).take(rows)
    wanted = extractor(to_float(images, torch.device("cpu")))
    assert good.all()
    torch.testing.assert_close(features, wanted)
    assert not features.is_inference() and found.labels is manifest.label_index


def test_a_second_extraction_reads_what_the_first_left(
    extractor: Backbone, passes: list[int], manifest: Manifest, tmp_path: Path, cache: Path
) -> None:
    told: list[tuple[object, ...]] = []
    first = extract(extractor, manifest, tmp_path, watch=lambda *step: told.append(step))
    assert sum(passes) == 96 and told == [("features", 96, 96, "")] * 2
    second = extract(extractor, manifest, tmp_path)
    assert sum(passes) == 96
    assert torch.equal(first.features, second.features)
    some = extract(extractor, manifest, tmp_path, rows=np.arange(10, 14))
    assert some.take(np.array([9, 10, 13, 14]))[1].tolist() == [False, True, True, False]
    with torch.no_grad():
        extractor.body[0].bias += 1  # other weights have features of their own
    extract(extractor, manifest, tmp_path)
    assert sum(passes) == 192 and len({path.parent for path in shards(cache)}) == 2
    about = json.loads((shards(cache)[0].parent / "about.json").read_text())
    facts = {"backbone": "small-cnn", "size": SIDE, "features": 128}
    assert about == {**facts, "engine": "torch"}


def test_a_file_that_changed_is_another_image(tree: Path, tmp_path: Path) -> None:
    image = tmp_path / "one.jpg"
    image.write_bytes((tree / "north" / "red" / "00.jpg").read_bytes())
    before = content_digests([str(image)])
    assert content_digests([str(image)]) == before
    image.write_bytes((tree / "north" / "red" / "01.jpg").read_bytes() + b" ")
    assert content_digests([str(image)]) != before


def test_the_same_photographs_in_another_folder_are_not_extracted_again(
    extractor: Backbone, passes: list[int], tree: Path, tmp_path: Path
) -> None:
    extract(extractor, Manifest.from_folder(tree), tmp_path)
    images = sum(passes)
    shutil.copytree(tree, tmp_path / "elsewhere")
    extract(extractor, Manifest.from_folder(tmp_path / "elsewhere"), tmp_path)
    assert images and sum(passes) == images


def test_rows_of_one_image_share_its_features(
    extractor: Backbone, passes: list[int], manifest: Manifest, tmp_path: Path
) -> None:
    repeated = manifest.select(np.tile(np.arange(5), 40))
    found = extract(extractor, repeated, tmp_path)
    assert sum(passes) == 5 and found.features.shape == (5, 128)
    encoded = [manifest.image_source(row).read_bytes() for row in range(3)] * 2
    columns = {"bytes": pa.array(encoded, pa.large_binary())}
    columns |= {name: repeated.table[name][:6] for name in ("label", "domain", "split")}
    extract(extractor, replace(repeated, table=pa.table(columns)), tmp_path)
    assert sum(passes) == 5  # what a file or a table holds is one image


def test_a_damaged_shard_is_extracted_again(
    extractor: Backbone, passes: list[int], manifest: Manifest, tmp_path: Path, cache: Path
) -> None:
    first = extract(extractor, manifest, tmp_path)
    (path,) = shards(cache)
    whole = path.read_bytes()
    for broken in (whole[:-4] + b"\0\0\0\7", whole[:50], b""):
        path.write_bytes(broken)
        again = extract(extractor, manifest, tmp_path)
        assert torch.equal(again.features, first.features)
        assert path.read_bytes() == whole
    assert sum(passes) == 4 * 96


def test_an_interrupted_extraction_goes_on(
    extractor: Backbone,
    passes: list[int],
    manifest: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("acclimate.learn.frozen.SHARD", 40)

    def stop(phase: str, done: int, total: int, note: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(extractor, manifest, tmp_path, watch=stop)
    assert sum(passes) == 40
    resumed = extract(extractor, manifest, tmp_path)
    assert sum(passes) == 96
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "elsewhere"))
    whole = extract(extractor, manifest, tmp_path)
    assert torch.equal(resumed.features, whole.features)


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, two = (FeatureCache(tmp_path / "key", 2) for _ in range(2))
    one.begin({})
    images = [bytes([n]) * 32 for n in range(3)]
    one.add(images[:2], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    two.add(images[1:], torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    two.add(images[1:], torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    found, into = np.zeros(3, dtype=bool), torch.zeros(3, 2)
    one.fill(images, into, found)
    assert found.all() and into.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert len(list((tmp_path / "key").glob("*.safetensors"))) == 2


def test_who_extracts_the_same_images_waits_and_others_do_not(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, 2)
    one, two = [b"a" * 32, b"b" * 32], [b"c" * 32]
    came: list[str] = []

    def work(images: list[bytes], name: str) -> None:
        with cache.alone(images):
            came.append(name)

    with cache.alone(one):
        others = threading.Thread(target=work, args=(two, "others"))
        others.start()
        others.join(10)
        same = threading.Thread(target=work, args=(one[::-1], "the same"))
        same.start()
        same.join(0.2)
        assert came == ["others"]
    same.join(10)
    assert came == ["others", "the same"]


def test_unreadable_images_are_quarantined(extractor: Backbone, tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sites"
    for row, source in enumerate(sorted((tree / "north" / "red").iterdir())):
        path = folder / "north" / "red" / source.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if row == 2 else source.read_bytes())
    manifest = Manifest.from_folder(folder)
    quarantine = Quarantine(total=12, max_share=0.1)
    found = extract(extractor, manifest, tmp_path, quarantine=quarantine)
    assert quarantine.entries == [
        ("north/red/02.jpg", "not a JPEG, PNG, WebP, BMP, TIFF or GIF image")
    ]
    assert found.take(np.arange(4))[1].tolist() == [True, True, False, True]
    with pytest.raises(TooManyUnreadable):
        strict = Quarantine(total=12, max_share=0.0)
        extract(extractor, manifest, tmp_path, quarantine=strict)


def test_features_that_do_not_fit_are_refused(
    extractor: Backbone, manifest: Manifest, tmp_path: Path
) -> None:
    with refused(ConfigError, 96, "data.cache_gib", 1e-05, "model.freeze"):
        extract(extractor, manifest, tmp_path, config=DataConfig(cache_gib=0.00001))
    (tmp_path / "file").touch()
    with refused(WriteError, tmp_path / "file" / "key", "not a directory"):
        FeatureCache(tmp_path / "file" / "key", 4).begin({})


def test_a_pack_that_was_made_is_used(
    extractor: Backbone, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = watch_decoding(monkeypatch)
    pack_images(manifest, SIDE, DataConfig(), Quarantine())
    assert len(decoded) == 96
    decoded.clear()
    extract(extractor, manifest, tmp_path)
    assert not decoded


def test_where_features_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder(tmp_path / "run") == cache
    monkeypatch.delenv("ACCLIMATE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(tmp_path / "run") == tmp_path / ".cache" / "acclimate" / "features"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert cache_folder(tmp_path / "run") == tmp_path / "run" / "features"
