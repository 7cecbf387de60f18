"""Images are decoded once for all runs: kept on disk, checked, shared, and given up for others."""

import errno
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.config import DataConfig
from acclimate.core.errors import WriteError
from acclimate.data import cache as packing
from acclimate.data.cache import Pack
from acclimate.data.manifest import Manifest
from acclimate.data.source import ImageSource, Quarantine, fits_on, pack_images
from fixtures.decoding import watch_decoding
from fixtures.errors import refused

SIDE, COUNT = 8, 12
NEEDED = COUNT * 3 * SIDE**2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packing, "LEAST", 1)
    return tmp_path / "cache" / "images"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        path = tmp_path / "data" / f"site{number % 2}" / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (10, 11, 3), np.uint8)).save(path)
    return tmp_path / "data"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is decoded, as it is decoded."""
    return watch_decoding(monkeypatch)


def opened(folder: Path, *, size: int = SIDE, gib: float = 1.0, cache: float = 1.0) -> ImageSource:
    manifest = Manifest.from_folder(folder)
    quarantine = Quarantine()
    config = DataConfig(pack_gib=gib, cache_gib=cache, workers=2)
    return ImageSource(manifest, size, config, quarantine)


def spoiled(folder: Path, row: int) -> Path:
    """An image that cannot be read from now on."""
    path = opened(folder).manifest.image_source(row)
    assert isinstance(path, Path)
    path.write_bytes(b"\xff\xd8\xff nothing")
    return path


def in_pack(source: ImageSource) -> Pack:
    assert source.pack is not None and source.held is None
    return source.pack


def in_memory(source: ImageSource) -> bool:
    return source.pack is None and source.held is not None


def everything(source: ImageSource) -> torch.Tensor:
    return source.take(np.arange(len(source.image)))[0]


def test_the_second_run_decodes_nothing(folder: Path, decoded: list[object]) -> None:
    first = everything(opened(folder))
    assert len(decoded) == COUNT
    second = opened(folder)
    assert in_pack(second)
    assert torch.equal(everything(second), first)
    assert torch.equal(everything(second), first)  # now without looking at the records
    assert len(decoded) == COUNT
    direct = opened(folder, gib=0.0, cache=0.0)
    assert direct.pack is None and direct.held is None
    assert torch.equal(everything(direct), first)


def test_what_was_half_done_is_finished(folder: Path, decoded: list[object]) -> None:
    opened(folder).take(np.array([3, 3, 7]))
    assert len(decoded) == 2
    everything(opened(folder))
    assert len(decoded) == COUNT
    assert len(set(decoded)) == COUNT


def test_another_order_of_rows_finds_the_same_images(folder: Path, decoded: list[object]) -> None:
    whole = everything(opened(folder))
    manifest = Manifest.from_folder(folder)
    turned = manifest.select(np.arange(COUNT)[::-1])
    quarantine = Quarantine()
    source = ImageSource(turned, SIDE, DataConfig(), quarantine)
    assert torch.equal(everything(source), whole.flip(0))
    assert len(decoded) == COUNT


def test_a_changed_file_is_decoded_again(folder: Path, decoded: list[object]) -> None:
    before = everything(opened(folder))
    changed = opened(folder).manifest.image_source(5)
    assert isinstance(changed, Path)
    Image.fromarray(np.full((9, 9, 3), 200, np.uint8)).save(changed)
    after = everything(opened(folder))
    assert decoded[COUNT:] == [changed]
    assert (after[5] == 200).all()
    others = [row for row in range(COUNT) if row != 5]
    assert torch.equal(after[others], before[others])


def test_a_damaged_pack_is_decoded_again(folder: Path, decoded: list[object], cache: Path) -> None:
    whole = everything(opened(folder))
    (images,) = cache.glob("*/images")
    entry = packing.HEAD + 3 * SIDE**2
    data = bytearray(images.read_bytes())
    data[2 * entry + packing.HEAD + 17] ^= 1  # one pixel of the third image
    data[6 * entry : 6 * entry + 20] = b"\0" * 20  # an image that was only half written
    images.write_bytes(data)
    assert torch.equal(everything(opened(folder)), whole)
    assert len(decoded) == COUNT + 2
    assert torch.equal(everything(opened(folder)), whole)
    assert len(decoded) == COUNT + 2


def test_sizes_have_packs_of_their_own(folder: Path, cache: Path) -> None:
    everything(opened(folder))
    assert everything(opened(folder, size=6)).shape == (COUNT, 3, 6, 6)
    assert len(list(cache.iterdir())) == 2


def test_a_full_disk_stops_the_pack_and_not_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(opened(folder, gib=0.0))
    real, written = os.pwrite, []

    def full(file: int, data: bytes, place: int) -> int:
        written.append(place)
        if len(written) > 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, place)

    monkeypatch.setattr(os, "pwrite", full)
    source = opened(folder)
    for _ in range(2):
        assert torch.equal(everything(source), whole)
    assert 0 < sum(in_pack(source).has(image) for image in range(COUNT)) < COUNT
    with refused(WriteError, "no space left"):
        quarantine = Quarantine()
        pack_images(Manifest.from_folder(folder), SIDE, DataConfig(), quarantine)


def test_rows_of_one_image_are_decoded_and_kept_once(
    folder: Path, decoded: list[object], tmp_path: Path
) -> None:
    names = [str(path) for path in sorted(folder.rglob("*.png"))[:3]]
    rows = [f"{names[i % 3]},{'ab'[i % 2]},site{i // 10}" for i in range(30)]
    (tmp_path / "long.csv").write_text("\n".join(["image,label,domain", *rows]))
    manifest = Manifest.from_table(tmp_path / "long.csv")
    for gib, cache in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)):
        decoded.clear()
        config = DataConfig(pack_gib=gib, cache_gib=cache)
        source = ImageSource(manifest, SIDE, config, Quarantine())
        stored = everything(source)
        assert len(decoded) == 3
        assert source.held is None or len(source.held) == 3
        for row in range(30):
            assert torch.equal(stored[row], stored[row % 3])
    assert not torch.equal(stored[0], stored[1])


def test_budgets(folder: Path) -> None:
    gib = NEEDED / 2**30
    assert in_pack(opened(folder, gib=gib))
    for short in (gib * 0.99, 0.0):
        assert in_memory(opened(folder, size=SIDE, gib=short))
    neither = opened(folder, gib=0.0, cache=gib * 0.99)
    assert neither.pack is None and neither.held is None


def test_what_was_made_to_be_kept_is_used_however_small(
    folder: Path, decoded: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by those who would make none, unless packs are not wanted at all."""
    monkeypatch.setattr(packing, "LEAST", NEEDED + 1)
    manifest, quarantine = Manifest.from_folder(folder), Quarantine()
    for make in (True, False):
        for size in (SIDE, SIDE - 1):
            source = ImageSource(manifest, size, DataConfig(), quarantine, make_pack=make)
            assert in_memory(source)
    whole = everything(source=opened(folder, gib=0.0))
    made = pack_images(manifest, SIDE, DataConfig(), quarantine)
    decoded.clear()
    for make in (True, False):
        source = ImageSource(manifest, SIDE, DataConfig(), quarantine, make_pack=make)
        assert in_pack(source).folder == made.folder
        assert torch.equal(everything(source), whole)
        source = ImageSource(manifest, SIDE - 1, DataConfig(), quarantine, make_pack=make)
        assert in_memory(source)
    assert not decoded
    assert in_memory(opened(folder, gib=0.0))


def test_a_disk_that_is_nearly_full_gets_no_pack(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 2 * NEEDED - 1

    monkeypatch.setattr(packing.shutil, "disk_usage", lambda path: Usage)
    assert in_memory(opened(folder))
    Usage.free += 1
    assert in_pack(opened(folder))


def test_the_one_opened_longest_ago_gives_way_unless_kept(folder: Path) -> None:
    def made(size: int) -> Path:
        source = opened(folder, size=size)
        everything(source)
        return in_pack(source).folder

    pack_images(Manifest.from_folder(folder), 5, DataConfig(), Quarantine())
    old, young = made(6), made(7)
    for age, path in ((200, old), (100, young)):
        os.utime(path / "about.json", (1e9 - age, 1e9 - age))
    block = (young / "images").stat().st_blocks * 512
    gib = (NEEDED + block) / 2**30  # for the new one and one other
    using = opened(folder, size=6)  # opened last: the other one goes
    before = everything(using)
    assert in_pack(opened(folder, gib=gib))
    assert old.exists() and not young.exists()
    everything(opened(folder, gib=gib))
    assert in_pack(opened(folder, size=7, gib=gib))
    assert not old.exists()
    assert torch.equal(everything(using), before), "its files live on"
    assert in_pack(opened(folder, size=5, gib=1e-12))  # made to be kept


def test_unreadable_images_are_listed_once(folder: Path) -> None:
    bad = spoiled(folder, 4)
    for _ in range(2):
        source = opened(folder)
        for _ in range(2):
            stored, good = source.take(np.arange(COUNT))
            assert np.flatnonzero(~good).tolist() == [4]
            assert not stored[4].any()
        assert [name for name, _ in source.quarantine.entries] == [str(bad.relative_to(folder))]


def _fill(folder: Path, ready: "multiprocessing.synchronize.Event", die: bool) -> None:
    source = opened(folder)
    ready.wait()
    if die:
        source.take(np.arange(5))
        os.kill(os.getpid(), signal.SIGKILL)
    everything(source)


@pytest.mark.slow
def test_processes_write_at_once_and_one_is_killed(folder: Path, decoded: list[object]) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    workers = [context.Process(target=_fill, args=(folder, ready, die)) for die in (0, 0, 1)]
    for worker in workers:
        worker.start()
    ready.set()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, -signal.SIGKILL]
    kept = everything(opened(folder))
    assert not decoded
    assert torch.equal(kept, everything(opened(folder, gib=0.0, cache=0.0)))


def test_images_stay_where_they_are_held(folder: Path, decoded: list[object]) -> None:
    spoiled(folder, 4)
    expected, good = opened(folder, gib=0.0, cache=0.0).take(np.arange(COUNT))
    decoded.clear()
    manifest, quarantine = Manifest.from_folder(folder), Quarantine()
    config = DataConfig(pack_gib=0.0, cache_gib=0.0)
    source = ImageSource(manifest, SIDE, config, quarantine, held_on=torch.device("cpu"))
    for rows in ([1, 2, 1, 4], list(range(COUNT)), [11, 0, 4]):
        stored, fine = source.take(np.array(rows))
        assert fine.tolist() == good[rows].tolist()
        assert torch.equal(stored, expected[rows])
    assert len(decoded) == COUNT  # the unreadable one was tried once too


@pytest.mark.parametrize(
    ("free", "share", "reserved", "most"),
    [(1000, 1.0, 3000, 250), (1000, 0.5, 2000, 125), (1000, 0.5, 3000, -1)],
)
def test_only_small_sets_go_to_a_gpu(
    free: int, share: float, reserved: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of what this process may still take."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 5000))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    gpu = torch.device("cuda", 0)
    assert fits_on(gpu, most, gib=1.0) == (most > 0)
    assert not fits_on(gpu, most + 1, gib=1.0)
    assert not fits_on(gpu, 100, gib=99 / 2**30)
    assert not fits_on(torch.device("cpu"), 1, gib=1.0)
