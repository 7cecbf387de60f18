"""Which rows a step uses, and that processes, restarts and bad images change nothing else."""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.core.distributed import World
from acclimate.core.errors import ManifestError, TooManyUnreadable
from acclimate.data import source as sources
from acclimate.data.batches import Batch, DomainSampler, EpisodeSampler, Loader, support_size
from acclimate.data.manifest import Manifest
from acclimate.data.source import (
    FeatureSource,
    ImageSource,
    Quarantine,
    open_source,
    pack_images,
    readable,
    to_float,
)
from fixtures.decoding import watch_decoding
from fixtures.errors import refused
from fixtures.gpu import on_gpu

CPU = torch.device("cpu")


def domains_of(*sizes: int) -> list[np.ndarray]:
    """Rows 0.. shared out; interleaved numbers, so that no domain is a plain range."""
    numbers = np.random.default_rng(0).permutation(sum(sizes))
    return [np.sort(part) for part in np.split(numbers, np.cumsum(sizes)[:-1])]


def domain_sampler(*sizes: int, per_domain: int = 4, slots: int = 99) -> DomainSampler:
    return DomainSampler(domains_of(*sizes), per_domain=per_domain, domains_per_step=slots, seed=3)


def episodes(
    *sizes: int, per_domain: int = 4, slots: int = 2, support: float = 0.5
) -> EpisodeSampler:
    return EpisodeSampler(
        domains_of(*sizes), per_domain=per_domain, domains_per_step=slots, support=support, seed=3
    )


@pytest.mark.parametrize(
    "build", [lambda: domain_sampler(9, 5, 7, slots=2), lambda: episodes(9, 5, 7)]
)
def test_a_step_is_a_pure_function_of_its_number(
    build: Callable[[], DomainSampler | EpisodeSampler],
) -> None:
    """Whatever was asked for before."""
    one, two = build(), build()
    forwards = [one.rows(step) for step in range(40)]
    backwards = [two.rows(step) for step in reversed(range(40))]
    for (rows, numbers), (again, same) in zip(forwards, reversed(backwards), strict=True):
        assert np.array_equal(rows, again)
        assert np.array_equal(numbers, same)
    assert len({rows.tobytes() for rows, _ in forwards}) == 40


def test_domains_are_seen_equally_often_over_whole_rounds() -> None:
    sampler = domain_sampler(*[6] * 7, slots=3)
    for start in (0, 7, 70):  # seven steps are three rounds
        numbers = np.concatenate([sampler.rows(start + step)[1] for step in range(7)])
        assert Counter(numbers.tolist()) == dict.fromkeys(range(7), 3 * 4)
    orders = {tuple(sampler.rows(step)[1][::4]) for step in range(0, 70, 7)}
    assert len(orders) > 1  # rounds are shuffled


@pytest.mark.parametrize("sizes", [(12, 8, 20), (10, 7, 3), (1, 2, 41)])
def test_every_row_comes_once_per_epoch(sizes: tuple[int, ...]) -> None:
    sampler = domain_sampler(*sizes)
    steps = [sampler.rows(step) for step in range(60)]
    for number, domain in enumerate(sampler.domains):
        drawn = np.concatenate([rows[numbers == number] for rows, numbers in steps])
        assert len(drawn) == 60 * 4  # every domain is in every batch
        epochs = [drawn[i : i + len(domain)] for i in range(0, len(drawn), len(domain))]
        whole = [epoch for epoch in epochs if len(epoch) == len(domain)]
        assert all(np.array_equal(np.sort(epoch), domain) for epoch in whole)
        if len(domain) > 5:
            assert len({epoch.tobytes() for epoch in whole}) == len(whole)


def test_a_seed_keeps_its_rows() -> None:
    """Some as they have always been: within an epoch, across the end of one, and across two."""
    sampler = domain_sampler(3, 9, 5, slots=2)
    known = {
        0: ([16, 13, 0, 5, 10, 2, 3, 2], [1, 1, 1, 1, 0, 0, 0, 0]),
        1: ([1, 8, 15, 14, 4, 11, 7, 12], [2, 2, 2, 2, 1, 1, 1, 1]),
        7: ([2, 3, 10, 2, 14, 9, 1, 15], [0, 0, 0, 0, 2, 2, 2, 2]),
    }
    for step, expected in known.items():
        rows, numbers = sampler.rows(step)
        assert (rows.tolist(), numbers.tolist()) == expected
        assert rows.dtype == numbers.dtype == np.int64


def test_a_domain_smaller_than_its_share_repeats_evenly() -> None:
    rows, numbers = domain_sampler(3, 50, per_domain=8).rows(0)
    assert sorted(Counter(rows[numbers == 0].tolist()).values()) == [2, 3, 3]
    assert len(set(rows[numbers == 1].tolist())) == 8


def test_more_slots_than_domains() -> None:
    rows, numbers = domain_sampler(5, 5, slots=64).rows(0)
    assert len(rows) == 8
    assert set(numbers.tolist()) == {0, 1}


@pytest.mark.parametrize("support", [0.0, 0.25, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("sizes", [(40, 30, 20), (2, 3, 5), (2, 2, 2), (9, 10, 11)])
def test_support_and_query_are_disjoint(sizes: tuple[int, ...], support: float) -> None:
    sampler = episodes(*sizes, per_domain=10, support=support)
    cut = {0.0: 1, 0.25: 2, 0.5: 5, 0.8: 8, 1.0: 9}[support]
    for step in range(30):
        rows, numbers = sampler.rows(step)
        assert numbers[::10].tolist() == numbers[9::10].tolist()  # domain by domain
        assert len(set(numbers[::10].tolist())) == 2  # distinct domains
        for part, number in zip(rows.reshape(2, 10), numbers[::10], strict=True):
            first, second = set(part[:cut]), set(part[cut:])
            assert not first & second
            assert first | second <= set(sampler.domains[number])
            if sizes[number] >= 10:
                assert len(first | second) == 10
            else:
                assert first | second == set(sampler.domains[number])  # nothing goes unused


def test_episodes_reach_every_domain_and_row() -> None:
    sampler = episodes(20, 20, 20, 20)
    drawn = [sampler.rows(step) for step in range(300)]
    assert set(np.concatenate([rows for rows, _ in drawn]).tolist()) == set(range(80))
    share = Counter(np.concatenate([numbers[::4] for _, numbers in drawn]).tolist())
    assert all(abs(count - 150) < 45 for count in share.values())


@pytest.mark.parametrize(
    ("count", "share", "size"),
    [(32, 0.5, 16), (80, 0.8, 64), (2, 0.5, 1), (2, 0.9, 1), (3, 0.0, 1), (10, 1.0, 9)],
)
def test_support_sizes(count: int, share: float, size: int) -> None:
    assert support_size(count, share) == size


SIDE = 16


def picture(row: int) -> np.ndarray:
    """One that tells its row, and shows crops, flips and colour changes."""
    rng = np.random.default_rng(row)
    return rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Domains a (6 images), b (4) and c (4); each image of a class of its own."""
    root = tmp_path / "data"
    for row, name in enumerate(["a/0/0", "a/1/1", "a/2/2", "a/3/3", "a/4/4", "a/5/5"]):
        save(root, name, row)
    for domain, start in (("b", 6), ("c", 10)):
        for row in range(start, start + 4):
            save(root, f"{domain}/{row - start}/{row}", row)
    return root


def save(root: Path, name: str, row: int) -> None:
    path = root / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(row)).save(path)


def open_images(
    root: Path, *, cache: float = 4.0, max_share: float = 1.0, log: Path | None = None
) -> ImageSource:
    manifest = Manifest.from_folder(root, val_share=0.0)
    quarantine = Quarantine(log, total=len(manifest), max_share=max_share)
    source = open_source(manifest, SIDE, DataConfig(cache_gib=cache, workers=2), quarantine)
    assert isinstance(source, ImageSource)
    return source


def loader(
    source: ImageSource | FeatureSource,
    manifest: Manifest,
    *,
    world: World | None = None,
    augmented: bool = False,
    episodic: bool = False,
) -> Loader:
    rows = [manifest.rows(domain=name) for name in manifest.domains]
    sampler = (
        EpisodeSampler(rows, per_domain=4, domains_per_step=2, support=0.5, seed=0)
        if episodic
        else DomainSampler(rows, per_domain=4, domains_per_step=3, seed=0)
    )
    return Loader(source, sampler, rows, world or World(), seed=0, augmented=augmented)


def same(one: Batch, two: Batch) -> bool:
    return (
        torch.equal(one.x, two.x)
        and torch.equal(one.y, two.y)
        and torch.equal(one.domain, two.domain)
    )


def test_a_batch_holds_what_the_sampler_chose(folder: Path) -> None:
    source = open_images(folder)
    loading = loader(source, source.manifest)
    rows, numbers = loading.sampler.rows(2)
    batch = loading.batch(2)
    pixels = np.stack([picture(row) for row in rows]).transpose(0, 3, 1, 2)
    assert torch.equal(batch.x, torch.from_numpy(pixels).float() / 255)
    assert batch.x.dtype == torch.float32
    assert batch.y.tolist() == source.manifest.label_index[rows].tolist()
    assert batch.domain.tolist() == numbers.tolist()
    assert batch.mu is None


@pytest.mark.parametrize("augmented", [False, True])
def test_a_resumed_run_sees_the_same_batches(folder: Path, augmented: bool) -> None:
    source = open_images(folder)
    whole = list(loader(source, source.manifest, augmented=augmented).batches(0, 7))
    other = open_images(folder, cache=0.0)
    rest = list(loader(other, other.manifest, augmented=augmented).batches(4, 7))
    assert (len(whole), len(rest)) == (7, 3)
    assert all(same(one, two) for one, two in zip(whole[4:], rest, strict=True))
    assert not same(whole[4], whole[5])
    assert list(loader(source, source.manifest).batches(3, 3)) == []


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("episodic", [False, True])
def test_two_processes_share_the_batch_of_one(
    folder: Path, augmented: bool, episodic: bool
) -> None:
    source, how = open_images(folder), {"augmented": augmented, "episodic": episodic}
    for step in range(3):
        whole = loader(source, source.manifest, **how).batch(step)
        for rank in range(2):
            part = loader(source, source.manifest, world=World(rank, 2), **how).batch(step)
            assert torch.equal(part.x, whole.x[rank::2])
            assert torch.equal(part.y, whole.y[rank::2])
            assert torch.equal(part.domain, whole.domain[rank::2])
            assert torch.equal(World(rank, 2).whole(part.domain), whole.domain)


def test_which_rows_are_whose_stays_with_the_host(folder: Path) -> None:
    source = open_images(folder)
    elsewhere = World(device=torch.device("meta"))
    batch = loader(source, source.manifest, world=elsewhere).batch(0)
    assert (batch.x.device.type, batch.y.device.type) == ("meta", "meta")
    assert torch.equal(batch.domain, loader(source, source.manifest).batch(0).domain)


def test_augmentation_changes_images_and_differs_by_step(folder: Path) -> None:
    source = open_images(folder)
    plain = loader(source, source.manifest).batch(0)
    augmented = loader(source, source.manifest, augmented=True)
    assert (augmented.batch(0).x != plain.x).flatten(1).any(1).all()
    assert torch.equal(augmented.batch(0).y, plain.y)
    assert torch.equal(augmented.batch(0).x, augmented.batch(0).x)


def spoil(root: Path, *names: str) -> None:
    for name in names:
        (root / f"{name}.png").write_bytes(b"not an image")


@pytest.mark.parametrize("cache", [0.0, 4.0])
def test_an_unreadable_image_gives_way_to_the_next(
    folder: Path, tmp_path: Path, cache: float
) -> None:
    spoil(folder, "a/1/1", "a/2/2", "b/3/9")  # for b the next one is the first again
    log = tmp_path / "quarantine.jsonl"
    source = open_images(folder, cache=cache, log=log)
    loading = loader(source, source.manifest)
    stands_for = {1: 3, 2: 3, 9: 6}
    for step in range(6):
        rows, numbers = loading.sampler.rows(step)
        used = np.array([stands_for.get(row, row) for row in rows])
        batch = loading.batch(step)
        pixels = np.stack([picture(row) for row in used]).transpose(0, 3, 1, 2)
        assert torch.equal(batch.x, torch.from_numpy(pixels).float() / 255)
        assert batch.y.tolist() == source.manifest.label_index[used].tolist()
        assert batch.domain.tolist() == numbers.tolist()
    assert sorted(source.quarantine.entries) == [
        (f"{name}.png", source.quarantine.entries[0][1]) for name in ("a/1/1", "a/2/2", "b/3/9")
    ]
    assert len(log.read_text().splitlines()) == 3  # each once, however often it was met


@pytest.mark.parametrize("cache", [0.0, 4.0])
def test_a_domain_without_any_readable_image(folder: Path, cache: float) -> None:
    spoil(folder, *(f"c/{k}/{10 + k}" for k in range(4)))
    source = open_images(folder, cache=cache)
    with refused(ManifestError, "quarantine.jsonl"):
        list(loader(source, source.manifest).batches(0, 1))


def test_too_many_unreadable_images_stop_the_loader(folder: Path) -> None:
    spoil(folder, "a/1/1", "a/2/2", "b/3/9")
    source = open_images(folder, max_share=0.1)
    with refused(TooManyUnreadable, 14, 10):
        list(loader(source, source.manifest).batches(0, 5))


@on_gpu
def test_batches_for_a_gpu_are_those_of_their_steps(folder: Path) -> None:
    gpu = torch.device("cuda", 0)
    source = open_images(folder)
    loading = loader(source, source.manifest, world=World(device=gpu), augmented=True)
    for step, batch in enumerate(loading.batches(0, 60)):
        assert batch.x.device == gpu
        assert same(batch, loading.batch(step))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes even for a few images."""
    monkeypatch.setattr(sources, "LEAST_IMAGES", 1)
    monkeypatch.setattr(sources, "LEAST_CORES", 1)


def decoded_by_workers(root: Path, cache: float, log: Path | None = None) -> ImageSource:
    manifest = Manifest.from_folder(root, val_share=0.0)
    quarantine = Quarantine(log, total=len(manifest), max_share=1.0)
    config = DataConfig(cache_gib=cache, pack_gib=0.0, workers=2)
    return ImageSource(manifest, SIDE, config, quarantine, processes=True)


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("cache", [0.0, 4.0])
def test_worker_processes_change_nothing(
    folder: Path, tmp_path: Path, cache: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither batches, nor which images are listed as unreadable, nor the global random state."""
    spoil(folder, "a/1/1", "a/2/2", "b/3/9")
    usual = open_images(folder, cache=cache)
    expected = list(loader(usual, usual.manifest, augmented=True).batches(0, 12))
    log = tmp_path / "quarantine.jsonl"
    source = decoded_by_workers(folder, cache, log)
    here = watch_decoding(monkeypatch)
    state = torch.get_rng_state()
    batches = list(loader(source, source.manifest, augmented=True).batches(0, 12))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(same(one, two) for one, two in zip(batches, expected, strict=True))
    assert source.quarantine.entries == usual.quarantine.entries
    assert len(log.read_text().splitlines()) == 3
    assert len(here) <= 3 * 12, "but for those that stand in for others"
    for one, two in zip(
        readable(source, np.arange(14)), readable(usual, np.arange(14)), strict=True
    ):
        assert np.array_equal(one[0], two[0]) and torch.equal(one[1], two[1])


@pytest.mark.usefixtures("workers")
def test_worker_processes_end_with_their_loader(folder: Path) -> None:
    source = decoded_by_workers(folder, 0.0)
    batches = loader(source, source.manifest).batches(0, 10**6)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("workers")
def test_workers_fill_a_pack(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    manifest = Manifest.from_folder(folder)
    here = watch_decoding(monkeypatch)
    config = DataConfig(workers=2)
    pack_images(manifest, SIDE, config, Quarantine())
    source = ImageSource(manifest, SIDE, config, Quarantine())
    stored, good = source.take(np.arange(14))
    assert good.all() and not here, "they were decoded elsewhere"
    assert torch.equal(stored, open_images(folder).take(np.arange(14))[0])


def test_workers_are_for_many_images_and_cores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Watched(torch.utils.data.DataLoader[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            started.append(options["num_workers"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(sources, "DataLoader", Watched)
    for images, cores, rows in ((14, 1, 14), (15, 1, 14), (14, 10_000, 14), (14, 1, 13)):
        monkeypatch.setattr(sources, "LEAST_IMAGES", images)
        monkeypatch.setattr(sources, "LEAST_CORES", cores)
        list(readable(decoded_by_workers(folder, 0.0), np.arange(rows)))
    assert started == [2, 0, 0, 0]


@on_gpu
@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("cache", [0.0, 4.0])
def test_batches_for_a_gpu_are_right_while_processes_decode(folder: Path, cache: float) -> None:
    """Copies of this process are made while the GPU may fetch from memory that both have."""
    gpu = torch.device("cuda", 0)
    usual = open_images(folder)
    expected = loader(usual, usual.manifest)
    config = DataConfig(cache_gib=cache, pack_gib=0.0, workers=2)
    for _ in range(3):
        quarantine = Quarantine()
        source = open_source(usual.manifest, SIDE, config, quarantine, gpu)
        assert isinstance(source, ImageSource) and (source.held is not None) == bool(cache)
        loading = loader(source, usual.manifest, world=World(device=gpu))
        for step, batch in enumerate(loading.batches(0, 40)):
            other = expected.batch(step)
            # A GPU divides by 255 as it multiplies, which rounds otherwise.
            assert torch.equal(batch.x.mul(255).round().cpu(), other.x.mul(255).round())
            assert torch.equal(batch.y.cpu(), other.y)


def test_sources_with_and_without_cache_agree(folder: Path) -> None:
    spoil(folder, "a/1/1")
    cached, direct = open_images(folder), open_images(folder, cache=0.0)
    assert cached.held is not None
    assert direct.held is None
    rows = np.array([3, 1, 0, 3, 9, 1])
    for _ in range(2):
        (one, good), (two, fine) = cached.take(rows), direct.take(rows)
        assert good.tolist() == fine.tolist() == [True, False, True, True, True, False]
        assert one.dtype == two.dtype == torch.uint8
        assert torch.equal(one[torch.from_numpy(good)], two[torch.from_numpy(fine)])
        one.zero_()  # what is handed out is a copy
    assert len(cached.quarantine) == len(direct.quarantine) == 1
    assert cached.take(np.array([], dtype=np.int64))[0].shape == (0, 3, SIDE, SIDE)
    assert direct.take(np.array([], dtype=np.int64))[0].shape == (0, 3, SIDE, SIDE)


def test_features_are_taken_as_they_are() -> None:
    X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    manifest = Manifest.from_arrays(X, list("ab") * 6, ["x"] * 6 + ["y"] * 6)
    quarantine = Quarantine(total=12, max_share=0.0)
    source = open_source(manifest, 0, DataConfig(), quarantine)
    assert isinstance(source, FeatureSource)
    rows = np.array([5, 0, 5])
    taken, good = source.take(rows)
    assert torch.equal(to_float(taken, CPU), torch.from_numpy(X[rows]))
    assert good.tolist() == [True] * 3
    loading = loader(source, manifest)
    chosen, _ = loading.sampler.rows(1)
    assert torch.equal(loading.batch(1).x, torch.from_numpy(X[chosen]))


def test_pixels_become_numbers_in_0_to_1() -> None:
    stored = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(2, 3, 4, 4)
    x: Tensor = to_float(stored, CPU)
    assert x[1, :, 0, 0].tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert x.is_contiguous(memory_format=torch.channels_last)
