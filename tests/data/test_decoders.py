"""Processes that decode beside a GPU: the same pixels, the same quarantine, and none left over."""

import errno
import gc
import io
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import csv
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.data import decoders, effort, source
from acclimate.data.manifest import Manifest
from acclimate.data.pack import Pack
from acclimate.data.quarantine import Quarantine
from acclimate.data.source import ImageSource
from fixtures.decoding import watch_decoding

pytestmark = pytest.mark.skipif(not decoders.possible(), reason="memory cannot be shared here")
PER_SITE = 12
COLD = DataConfig(cache_gib=0.0, pack_gib=0.0, workers=2)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    rng = np.random.default_rng(0)
    for site in ("here", "there"):
        for number in range(PER_SITE):
            path = tmp_path / "data" / site / "dog" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (40 + number, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    (tmp_path / "data" / "here" / "dog" / "3.jpg").write_bytes(b"\xff\xd8\xffno image")
    Image.new("RGBA", (30, 30), (9, 8, 7, 6)).save(tmp_path / "data" / "there" / "dog" / "odd.png")
    return Manifest.open(tmp_path / "data")


@pytest.fixture
def opened(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ImageSource]]:
    """A source whose processes have started."""
    monkeypatch.setattr(source, "LEAST_IMAGES", 2)
    monkeypatch.setattr(source, "LEAST_CORES", 1)
    made: list[ImageSource] = []

    def make(config: DataConfig = COLD, **settings: bool) -> ImageSource:
        found = ImageSource(
            manifest, 32, config, Quarantine.lenient(len(manifest)), processes=True, **settings
        )
        found.take(np.arange(2))
        wait_for(lambda: started(found) == 2)
        made.append(found)
        return found

    yield make
    made.clear()


def started(images: ImageSource) -> int:
    assert images.decoders is not None
    return len(images.decoders._team.idle)


def wait_for(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("waited for a minute")


def processes(images: ImageSource) -> list[int]:
    assert images.decoders is not None
    return [one.pid for one in images.decoders._team.idle]


@contextmanager
def copies(count: int, size: int = 8, file: str = "/nowhere") -> Iterator[decoders.Decoders]:
    """So many that are ready, for one image."""
    made = decoders.Decoders(count, size, 10**6, decoders.Listing.at([file]))
    try:
        wait_for(lambda: len(made._team.idle) == count)
        yield made
    finally:
        made.end()


def gone(pids: Sequence[int | str]) -> bool:
    """But for what a parent that does not wait for them leaves in the list."""
    states = [Path(f"/proc/{pid}/stat") for pid in pids]
    return all(not file.exists() or file.read_text().split()[2] == "Z" for file in states)


def reasons(images: ImageSource) -> list[tuple[str, str]]:
    return [(Path(name).name, why) for name, why in images.quarantine.entries]


def test_pixels_and_quarantine_are_those_of_threads(
    manifest: Manifest, opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_threads = ImageSource(manifest, 32, COLD, Quarantine.lenient(len(manifest)))
    assert not by_threads.processes
    usual, usual_good = by_threads.take(np.arange(len(manifest)))
    images = opened()
    here = watch_decoding(monkeypatch)
    pixels, good = images.take(np.arange(len(manifest)))
    assert (pixels == usual).all() and (good == usual_good).all()
    assert usual[0].float().std() > 10  # there is something to compare
    assert good.sum() == len(manifest) - 1
    assert reasons(images) == reasons(by_threads)
    assert len(here) == 1, "only what processes cannot read is read by ourselves"


def test_images_are_known_by_number() -> None:
    files = [None, "/data/a dog.jpg", "/data/\udcff.jpg", None, "b"]
    images = decoders.Listing.at(files)
    assert images.in_files().tolist() == [False, True, True, False, True]
    assert [str(images.file(place)) for place in (1, 2, 4)] == [files[1], files[2], files[4]]
    assert not decoders.Listing.at([]).in_files().any()


def test_images_that_are_in_no_file_are_for_threads(
    opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = opened()
    assert images.decoders is not None
    images.decoders.in_files[7] = False
    here = watch_decoding(monkeypatch)
    _, good = images.take_images(np.array([7, 8]))
    assert good.all() and here == [images.manifest.image_source(int(images.first[7]))]


def test_what_processes_decode_is_kept(opened: Callable[..., ImageSource]) -> None:
    images = opened(DataConfig(cache_gib=1.0, pack_gib=0.0, workers=2))
    rows = np.arange(len(images.first))
    assert images.kept is not None
    images.kept.pixels[~images.kept.have] = 77  # as if another thread had read it before
    first, good = images.take(rows)
    assert (images.kept.have == good).all()
    assert (images.kept.pixels[~good] == 77).all(), "what processes do not manage is left alone"
    assert good.sum() == len(rows) - 1
    assert (images.kept.pixels[good] == first[good]).all()
    some = rows[good][::3]  # in another order, some being kept
    images.kept.have[some] = False
    images.kept.pixels[some] = 0
    assert (images.take(rows[::-1].copy())[0].flip(0) == first).all()
    assert (images.kept.pixels[good] == first[good]).all()


def test_a_process_that_dies_costs_nothing(
    manifest: Manifest, opened: Callable[..., ImageSource]
) -> None:
    usual = decoded_by_threads(manifest)
    images = opened()
    one, other = processes(images)
    os.kill(one, signal.SIGKILL)
    pixels, _ = images.take(np.arange(len(manifest)))
    assert (pixels == usual).all()
    os.kill(other, signal.SIGKILL)
    pixels, _ = images.take(np.arange(len(manifest)))
    assert (pixels == usual).all()
    assert started(images) == 0


def test_large_images_are_left_to_our_own_threads(
    opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose pixels in flight are counted together."""
    monkeypatch.setattr(decoders, "LARGEST", 45 * 50)
    images = opened()
    here = watch_decoding(monkeypatch)
    _, good = images.take(np.arange(len(images.first)))
    assert good.sum() == len(good) - 1
    # Of each site those of 46 to 51 rows, and the one that nobody can read.
    assert len(here) == 2 * 6 + 1


def test_threads_that_ask_at_once_share_them(
    manifest: Manifest, opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds all at work waits for one, rather than to decode by itself."""
    usual, images = decoded_by_threads(manifest), opened()
    images.unreadable[5] = True  # which nobody is asked for
    here = watch_decoding(monkeypatch)
    orders = [np.random.default_rng(seed).permutation(len(manifest)) for seed in range(24)]
    with ThreadPoolExecutor(3) as pool:
        for rows, (pixels, _) in zip(orders, pool.map(images.take, orders), strict=True):
            assert (pixels == usual[rows]).all()
    assert not here and started(images) == 2


def test_who_loses_interest_leaves_no_answers_to_others(manifest: Manifest) -> None:
    files = decoders.Listing.at(manifest.image_files(np.arange(len(manifest))))
    made = decoders.Decoders(2, 32, 10**6, files)
    try:
        wait_for(lambda: len(made._team.idle) == 2)
        asking = made.managed(np.arange(5), keep=False)
        next(asking)
        assert len(made._team.idle) == 0
        asking.close()
        assert len(made._team.idle) == made._team.size == 1
        usual = decoded_by_threads(manifest)
        for part, found in made.managed(np.arange(5), keep=False):
            assert (found.pixels == usual[:5][part].numpy()).all()
    finally:
        made.end()
    assert list(made.managed(np.arange(5), keep=False)) == [], "nobody is there any more"


def test_where_few_are_left_threads_do_it_all(
    manifest: Manifest, opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = opened()
    assert images.decoders is not None
    images.decoders._count = 3  # as if a third had died
    here = watch_decoding(monkeypatch)
    images.take(np.arange(len(manifest)))
    assert len(here) == 1
    images.decoders._team.size = 1
    images.take(np.arange(len(manifest)))
    assert len(here) == len(manifest), "all but the one that is known not to be readable"


class Slow:
    """Stands for a process: it answers when it is told to."""

    def __init__(self) -> None:
        self.line, self.theirs = socket.socketpair()
        self.lost, self.closed, self.asked = False, False, list[int]()

    def ask(self, images: np.ndarray, *, keep: bool) -> None:
        self.asked.extend(images.tolist())

    def answer(self) -> None:
        self.theirs.send(b"x")

    def managed(self, count: int) -> str:
        return "lost" if self.lost else self.line.recv(1).decode()

    def close(self) -> None:
        self.line.close()
        self.theirs.close()


@pytest.fixture
def slow() -> Iterator[tuple[decoders.Decoders, Slow, Slow]]:
    """Two of them."""
    made = object.__new__(decoders.Decoders)
    made._count, made._team = 2, decoders._Team()
    both = Slow(), Slow()
    for one in both:
        made._team.join(one)  # type: ignore[arg-type]
    yield made, *both
    for one in both:
        one.close()


def test_all_that_do_not_answer_in_time_are_given_up_at_once(
    slow: tuple[decoders.Decoders, Slow, Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "PATIENCE", 0.05)
    made, first, second = slow
    assert [found for _, found in made.managed(np.arange(2), keep=False)] == ["lost", "lost"]
    assert first.lost and second.lost and made._team.size == 0


def test_a_bell_rings_on_for_others(
    slow: tuple[decoders.Decoders, Slow, Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has heard it takes one of two."""
    monkeypatch.setattr(decoders, "PATIENCE", 0.05)
    team = slow[0]._team
    assert team.heard([], bell=True) == [] and team.heard([], bell=True) is None
    assert team.take() is not None
    assert team.heard([], bell=True) == []
    assert team.take() is not None and team.take() is None
    assert team.heard([], bell=True) is None


def test_all_who_wait_hear_that_nobody_is_left(
    slow: tuple[decoders.Decoders, Slow, Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "PATIENCE", 0.05)
    team = slow[0]._team
    for one in slow[1:]:
        assert team.take() is one  # type: ignore[comparison-overlap]
        one.lost = True
        team.give_back(one)  # type: ignore[arg-type]
    for _ in range(3):
        assert team.heard([], bell=True) == [] and team.take() is None
    assert not team.size


def test_who_waits_for_one_is_told_of_others(
    slow: tuple[decoders.Decoders, Slow, Slow],
) -> None:
    """One has asked both, and another comes: it gets the first that is free, and, while that one
    works, the second."""
    made, first, second = slow
    team = made._team
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(lambda: list(made.managed(np.arange(2), keep=False)))
        wait_for(lambda: bool(first.asked and second.asked))
        other = pool.submit(lambda: list(made.managed(np.arange(10, 12), keep=False)))
        first.answer()
        wait_for(lambda: first.asked == [0, 10])
        second.answer()
        wait_for(lambda: second.asked == [1, 11])
        assert len(one.result(60)) == 2 and not other.done()
        first.answer()
        second.answer()
        assert len(other.result(60)) == 2
    assert len(team.idle) == 2


PACKED = DataConfig(cache_gib=0.0, pack_gib=1.0, workers=2)


def packed(manifest: Manifest) -> Pack:
    """The pack of its images as it is on disk."""
    source = ImageSource(manifest, 32, PACKED, Quarantine.lenient(len(manifest)), keep=True)
    assert isinstance(source.kept, Pack)
    return source.kept


def test_with_everything_kept_none_are_started(
    manifest: Manifest, opened: Callable[..., ImageSource]
) -> None:
    images = opened(PACKED, keep=True)
    images.take(np.arange(len(manifest)))
    quarantine = Quarantine.lenient(len(manifest))
    again = ImageSource(manifest, 32, PACKED, quarantine, keep=True, processes=True)
    assert not again.processes, "one is lacking, which can never be kept"


def test_processes_put_images_into_a_pack_and_find_them_there(
    manifest: Manifest, opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = opened(PACKED, keep=True)
    here = watch_decoding(monkeypatch)
    rows = np.arange(len(manifest))[::-1]  # in any order
    pixels, good = images.take(rows)
    assert len(here) == 1 and good.sum() == len(rows) - 1
    assert isinstance(images.kept, Pack)
    assert images.kept.have.sum() == len(rows) - 1 and images.kept.problem is None
    found = packed(manifest)
    for image, fine in zip(images.image[rows], good, strict=True):
        assert found.find(int(image)) == fine
    places = images.image[rows][good]
    assert (found.pixels[found.slot[places]] == pixels[good]).all()
    # What is there is not decoded: painted over in the pack, it comes as it was painted.
    image = int(places[0])
    painted = np.full((3, 32, 32), 7, np.uint8)
    found.put(image, painted)
    images.kept.have[image] = False
    assert (images.take_images(np.array([image]))[0][0].numpy() == painted).all()
    # Nor is it looked at any more once it has failed.
    images.kept.problem, images.kept.have[image] = OSError("full"), False
    assert (images.take_images(np.array([image]))[0][0] == pixels[good][0]).all()
    assert not images.kept.have[image] and found.find(image)


@contextmanager
def opened_by(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, mode: int
) -> Iterator[tuple[ImageSource, Pack]]:
    """A source whose processes have the files of its pack in `mode` alone."""
    monkeypatch.setattr(source, "LEAST_IMAGES", 2)
    monkeypatch.setattr(source, "LEAST_CORES", 1)
    quarantine = Quarantine.lenient(len(manifest))
    images = ImageSource(manifest, 32, PACKED, quarantine, keep=True, processes=True)
    pack = images.kept
    assert isinstance(pack, Pack)
    records, pixels = (os.open(pack.folder / name, mode) for name in ("records", "pixels"))
    pack._files = (records, pixels, pack._files[2])
    images.get_ready()
    wait_for(lambda: started(images) == 2)
    yield images, pack
    os.close(records)
    os.close(pixels)


def test_a_pack_that_takes_no_more_stops_nothing(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_by(manifest, monkeypatch, os.O_RDONLY) as (images, pack):
        here = watch_decoding(monkeypatch)
        pixels, good = images.take(np.arange(len(manifest)))
        assert good.sum() == len(manifest) - 1 and len(here) == 1
        assert (pixels == decoded_by_threads(manifest)).all()
        assert not pack.have.any()
        assert pack.problem is not None and pack.problem.errno == errno.EBADF


def decoded_by_threads(manifest: Manifest) -> Tensor:
    images = ImageSource(manifest, 32, COLD, Quarantine.lenient(len(manifest)))
    return images.take(np.arange(len(manifest)))[0]


def test_what_a_pack_cannot_give_is_decoded(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose files cannot be read: rather than with what the shared memory held before."""
    with opened_by(manifest, monkeypatch, os.O_WRONLY) as (images, pack):
        here = watch_decoding(monkeypatch)
        for _ in range(2):
            pack.have[:] = False
            pixels, good = images.take(np.arange(len(manifest)))
            assert (pixels == decoded_by_threads(manifest)).all()
            assert good.sum() == len(manifest) - 1
        assert len(here) == 1 + 2 * len(manifest)  # the unreadable one, and the reference's own


def test_locks_that_others_held_are_open_in_a_copy(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, done = threading.Event(), threading.Event()

    def decode() -> None:  # some thread is at it just now
        with effort._BUDGET._changed:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=decode)
    thread.start()
    held.wait(60)
    try:
        file = next(path for path in manifest.image_files(np.arange(5)) if path)
        with copies(1, 32, file) as made:
            monkeypatch.setattr(decoders, "PATIENCE", 10)
            ((_, found),) = made.managed(np.arange(1), keep=False)
            assert found.good.all() and len(made._team.idle) == 1
    finally:
        done.set()
        thread.join()


def test_handlers_of_ours_run_here_alone(tmp_path: Path) -> None:
    usual = signal.signal(signal.SIGUSR1, lambda *told: (tmp_path / "ran").touch())
    try:
        with copies(1) as made:
            (copy,) = made._team.idle
            os.kill(copy.pid, signal.SIGUSR1)
            wait_for(lambda: gone([copy.pid]))
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert not (tmp_path / "ran").exists()


def test_they_can_be_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    for _ in range(30):
        decoders.Decoders(2, 8, 10**6, decoders.Listing.at([])).end()
    wait_for(lambda: not any(thread.name == "decoders" for thread in threading.enumerate()))
    assert not failed


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_copy_that_somebody_else_made_does_not_end_them() -> None:
    with copies(1) as made:
        copy = os.fork()
        if copy == 0:
            made.end()
            os._exit(0)
        os.waitpid(copy, 0)
        ((_, found),) = made.managed(np.arange(1), keep=False)
        assert not found.good.any() and len(made._team.idle) == 1, "it cannot read it, and says so"


def test_without_standard_files_a_pack_is_still_written(manifest: Manifest, tmp_path: Path) -> None:
    """Then its own files may have their numbers."""
    code = (
        "import os\n"
        "os.close(0); os.close(1)\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from acclimate.config import DataConfig\n"
        "from acclimate.data import source\n"
        "from acclimate.data.manifest import Manifest\n"
        "from acclimate.data.quarantine import Quarantine\n"
        "source.LEAST_IMAGES = source.LEAST_CORES = 1\n"
        f"manifest = Manifest.open(Path({str(tmp_path / 'data')!r}))\n"
        "config = DataConfig(cache_gib=0.0, pack_gib=1.0, workers=2)\n"
        "quarantine = Quarantine.lenient(len(manifest))\n"
        "images = source.ImageSource(\n"
        "    manifest, 32, config, quarantine, keep=True, processes=True)\n"
        "images.get_ready()\n"
        "import time\n"
        "while len(images.decoders._team.idle) < 2: time.sleep(0.05)\n"
        "rows = np.arange(len(manifest))\n"
        "first, good = images.take(rows)\n"
        "assert images.kept.have.sum() == good.sum() == len(rows) - 1\n"
        "assert (images.take(rows)[0] == first).all() and first.float().std() > 10\n"
    )
    environment = {**os.environ, "ACCLIMATE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def test_libraries_that_see_to_copies_find_their_files() -> None:
    """pyarrow closes pipes of its own in every copy, and ends it where they are closed already."""
    csv.read_csv(io.BytesIO(b"a,b\n1,2\n"))
    with copies(2) as made:
        assert len(made._team.idle) == 2


def test_copies_hold_none_of_our_files() -> None:
    reader, writer = os.pipe()
    with copies(2):
        os.close(writer)
        ready, _, _ = select.select([reader], [], [], 10)
        assert ready and os.read(reader, 1) == b"", "somebody else could write to it"
    os.close(reader)


def test_a_process_that_hangs_is_given_up(
    manifest: Manifest, opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = opened()
    pids = processes(images)
    monkeypatch.setattr(decoders, "PATIENCE", 0.5)
    monkeypatch.setattr(decoders, "WAIT", 0.5)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    pixels, _ = images.take(np.arange(len(manifest)))
    assert (pixels == decoded_by_threads(manifest)).all()
    assert started(images) == 0 and images.decoders is not None
    images.decoders.end()
    wait_for(lambda: gone(pids))


def test_they_end_with_their_source(opened: Callable[..., ImageSource]) -> None:
    images = opened()
    pids = processes(images)
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert images.decoders is not None
    end = images.decoders.end
    del images
    gc.collect()
    end()
    wait_for(lambda: gone(pids))


def test_they_end_with_a_killed_parent() -> None:
    code = (
        "from acclimate.data.decoders import Decoders, Listing\n"
        "import time\n"
        "made = Decoders(2, 8, 10**6, Listing.at([]))\n"
        "while len(made._team.idle) < 2: time.sleep(0.05)\n"
        "print(*(one.pid for one in made._team.idle), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pids = parent.stdout.readline().split()
        assert len(pids) == 2 and all(Path("/proc", pid).exists() for pid in pids)
        parent.kill()
    wait_for(lambda: gone(pids))


def test_without_processes_threads_go_on(
    manifest: Manifest, opened: Callable[..., ImageSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **settings: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(decoders.socket, "socketpair", refused)
    images = ImageSource(manifest, 32, COLD, Quarantine.lenient(len(manifest)), processes=True)
    _, good = images.take(np.arange(len(manifest)))
    assert good.sum() == len(manifest) - 1 and images.decoders is None


def test_few_images_or_cores_start_none(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def processes_for(images: int, cores: int) -> bool:
        monkeypatch.setattr(source, "LEAST_IMAGES", images)
        monkeypatch.setattr(source, "LEAST_CORES", cores)
        quarantine = Quarantine.lenient(len(manifest))
        return ImageSource(manifest, 32, COLD, quarantine, processes=True).processes

    count = len(manifest)
    assert processes_for(count, 1)
    assert not processes_for(count + 1, 1)
    assert not processes_for(count, 10_000)
