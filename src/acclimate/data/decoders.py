"""Processes that decode images for us.

Threads do it with less ado. But every image takes a little work under the interpreter lock, and
beside a GPU so does every step of training: past a thousand images a second both wait for the lock
more than they work. A process is sent the numbers of some images, and leaves their pixels in memory
that it shares with us; where there is a pack, it looks for them there first, and keeps them there.
What it does not manage, for whatever reason, we decode ourselves.

They are copies of ourselves, as those of torch's DataLoader are: a new process would import torch
first, for longer than it takes to decode a small set. A copy has none of our threads, and whatever
lock one of them held stays locked in it; so it closes all of our files, never touches a GPU, makes
anew what decoding locks, tries itself before it is used, and is given up where it does not answer.
"""

import errno
import gc
import json
import mmap
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate.core.errors import ImageError
from acclimate.data import effort
from acclimate.data.pack import PackFiles
from acclimate.data.pixels import read_pixels, squashed

MOST = 32  # images that a process decodes at a time
LARGEST = 25_000_000  # pixels; larger images are for our threads, which count them together
FAILED, DECODED, KEPT = range(3)  # what became of an image
WAIT = 5.0  # seconds, for processes to end that have nothing to do any more
START, PATIENCE = 60.0, 600.0  # seconds, until one is ready, and for an answer: disks may stall


@dataclass(frozen=True)
class Listing:
    """The images that there are to decode, which a copy knows as we do, so that they are asked for
    by number. In few and large pieces: a copy that looked at an object for each of them would write
    to those, and come to hold them all once more."""

    paths: bytes
    ends: np.ndarray  # [n]: where in `paths` each one's path ends
    pack: PackFiles | None = None  # where they are found or put, by the same numbers

    @classmethod
    def at(cls, files: Sequence[str | None], pack: PackFiles | None = None) -> "Listing":
        """None: an image that is in no file, and not for processes."""
        paths = [b"" if file is None else os.fsencode(file) for file in files]
        return cls(b"".join(paths), np.cumsum([len(path) for path in paths], dtype=np.int64), pack)

    def file(self, image: int) -> Path:
        start = self.ends[image - 1] if image else 0
        return Path(os.fsdecode(self.paths[start : self.ends[image]]))

    def in_files(self) -> np.ndarray:
        """[n] bool"""
        return np.asarray(np.diff(self.ends, prepend=0) > 0)


@dataclass(frozen=True)
class Managed:
    """What a process made of some images: [n] bool, and their pixels until it is asked again."""

    good: np.ndarray
    kept: np.ndarray  # those that are in the pack now
    pixels: np.ndarray
    problem: OSError | None  # why others are not in it


class Decoder:
    """One process, at the other end of `line`. It ends when we hang up, or are no more."""

    def __init__(self, line: socket.socket, pixels: np.ndarray) -> None:
        self.line, self.pixels, self.lost, self.pid = line, pixels, False, 0
        line.settimeout(PATIENCE)
        self._answers = line.makefile("rb")

    def started(self) -> bool:
        """Wait until it can work."""
        self.pid, _ = self._answer() or (0, None)
        return not self.lost

    def _answer(self) -> Any:
        try:
            return json.loads(self._answers.readline())
        except (ValueError, OSError):  # cut short, or nothing at all, or not in time
            self.lost = True
            return None

    def ask(self, images: np.ndarray, *, keep: bool) -> None:
        """For at most MOST images, by number; without `keep` past the pack."""
        asked = json.dumps([images.tolist(), keep])
        with suppress(OSError):  # then there will be no answer
            self.line.sendall(f"{asked}\n".encode())

    def managed(self, count: int) -> Managed:
        """What became of those that it was asked for."""
        answer = None if self.lost else self._answer()
        found, problem = answer or ([FAILED] * count, None)
        codes = np.array(found)
        return Managed(
            codes != FAILED,
            codes == KEPT,
            self.pixels[: len(codes)],
            None if problem is None else OSError(*problem),
        )

    def close(self) -> None:
        self._answers.close()
        self.line.close()

    @property
    def closed(self) -> bool:
        return self.line.fileno() < 0


class Decoders:
    """Several of them, which start while we go on."""

    def __init__(self, count: int, size: int, max_pixels: int, images: Listing) -> None:
        most = min(max_pixels, LARGEST)
        self._count, self.in_files = count, images.in_files()
        self._team = _Team()
        shared = np.frombuffer(mmap.mmap(-1, count * MOST * 3 * size**2), np.uint8)
        pixels = shared.reshape(count, MOST, 3, size, size)
        lines = [socket.socketpair() for _ in range(count)]
        theirs = [line for _, line in lines]
        try:
            first = _forked(partial(_copies, theirs, pixels, most, images))
        finally:
            for line in theirs:
                line.close()
        decoders = [Decoder(line, part) for (line, _), part in zip(lines, pixels, strict=True)]
        self.end = weakref.finalize(self, _end, os.getpid(), first, decoders)
        threading.Thread(
            target=_await, args=(decoders, self._team), name="decoders", daemon=True
        ).start()

    def managed(self, images: np.ndarray, *, keep: bool) -> Generator[tuple[slice, Managed]]:
        """Some of the images after others, as they come: which, and what became of them. Those that
        nobody is there for do not come; where few are left of those that were started, none do.

        Whoever asks waits here for all processes: a thread for each of them would want the
        interpreter lock as often as there are answers, and so would those that it wakes.
        """
        team = self._team
        if 2 * team.size < self._count:
            return
        each = max(1, min(ceil(len(images) / self._count), MOST))
        waiting = deque(slice(start, start + each) for start in range(0, len(images), each))
        asked: dict[int, tuple[Decoder, slice]] = {}
        try:
            while waiting or asked:
                while waiting and (decoder := team.take()) is not None:
                    if decoder.closed:  # we have hung up
                        decoder.lost = True
                        team.give_back(decoder)
                        continue
                    part = waiting.popleft()
                    asked[decoder.line.fileno()] = decoder, part
                    decoder.ask(images[part], keep=keep)
                if not asked and not team.size:
                    return
                ready = team.heard(asked, bell=bool(waiting))
                if ready is None and not asked:
                    return  # others have them all, and do not give them back
                for file in list(asked) if ready is None else ready:
                    decoder, part = asked.pop(file)
                    decoder.lost |= ready is None
                    try:
                        yield part, decoder.managed(len(images[part]))
                    finally:
                        team.give_back(decoder)
        finally:
            for decoder, _ in asked.values():  # whose answers nobody wants any more
                decoder.lost = True
                team.give_back(decoder)


class _Team:
    """Those that can work: some are at it, and others wait. A bell rings when one is free."""

    def __init__(self) -> None:
        self.size = 0
        self.idle: deque[Decoder] = deque()
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell).atexit = False

    def join(self, decoder: Decoder) -> None:
        with self._lock:
            self.size += 1
            self.idle.append(decoder)
            self._ring()

    def take(self) -> Decoder | None:
        """One that has nothing to do."""
        with self._lock:
            found = self.idle.popleft() if self.idle else None
            # For others: who has heard the bell has silenced it. Nobody left is news to them, too.
            if self.idle or not self.size:
                self._ring()
            return found

    def give_back(self, decoder: Decoder) -> None:
        with self._lock:
            if decoder.lost:
                self.size -= 1
            else:
                self.idle.append(decoder)
            self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def heard(self, files: Iterable[int], *, bell: bool) -> list[int] | None:
        """Those of the files that have news, once there are any, or, with `bell`, once one is free;
        None where nothing is heard for as long as we wait."""
        news = select.poll()
        for file in (*files, self._bell) if bell else files:
            news.register(file, select.POLLIN)
        found = [file for file, _ in news.poll(1e3 * PATIENCE)]
        if self._bell in found:
            found.remove(self._bell)
            with suppress(BlockingIOError):  # another has silenced it
                os.eventfd_read(self._bell)
            return found
        return found or None


def possible() -> bool:
    """Elsewhere system libraries do not bear to be copied with a process."""
    return sys.platform == "linux"


def _await(decoders: Sequence[Decoder], team: _Team) -> None:
    """Those that do not hang, as they come."""
    until = time.monotonic() + START
    with selectors.DefaultSelector() as waiting, suppress(ValueError):  # we have hung up
        for decoder in decoders:
            waiting.register(decoder.line, selectors.EVENT_READ, decoder)
        while waiting.get_map() and time.monotonic() < until and not decoders[0].closed:
            for key, _ in waiting.select(0.5):
                waiting.unregister(key.fileobj)
                if key.data.started():
                    team.join(key.data)


def _end(owner: int, first: int, decoders: Sequence[Decoder]) -> None:
    if os.getpid() != owner:  # somebody has made a copy of us; they are not its own
        return
    for decoder in decoders:
        with suppress(OSError):
            decoder.line.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer has one
        decoder.close()
    with suppress(ChildProcessError):  # somebody else has waited for it
        until = time.monotonic() + WAIT
        while os.waitpid(first, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                for kill in (os.killpg, os.kill):
                    with suppress(ProcessLookupError):
                        kill(first, signal.SIGKILL)
                os.waitpid(first, 0)
                return
            time.sleep(0.002)


def _forked(work: Callable[[], None]) -> int:
    """A copy of ourselves that does that work, and no more."""
    # A handler of ours could lead a copy out of here, and do there what it is to do here.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which it has not
            pid = os.fork()
        if pid == 0:
            try:
                _without_handlers()
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                work()
            finally:
                os._exit(0)  # nothing of it is to be tidied up
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _without_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted hangs up


def _copies(
    lines: Sequence[socket.socket], pixels: np.ndarray, max_pixels: int, images: Listing
) -> None:
    """In the first copy, which makes the others and waits for them."""
    os.setpgid(0, 0)  # to be ended together
    gc.freeze()  # nor is anything of ours tidied up on the way
    effort.start_anew()
    torch.set_num_threads(1)
    made = 0
    with suppress(OSError):  # there may be no more processes
        for line, part in zip(lines, pixels, strict=True):
            _forked(partial(_work, line, part, max_pixels, images))
            made += 1
    _close_all_but([])  # not before: what libraries do in a copy may take files
    for _ in range(made):
        os.wait()


def _close_all_but(kept: Sequence[int]) -> None:
    """Nor is anything read or written where we do."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in {0, 1, 2}.difference(kept):  # where those are closed, others have their numbers
        os.dup2(nothing, standard)
    for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if file > 2 and file not in kept:
            with suppress(OSError):  # it was of this listing
                os.close(file)


def _work(line: socket.socket, pixels: np.ndarray, max_pixels: int, images: Listing) -> None:
    packed = [] if images.pack is None else [images.pack.records, images.pack.pixels]
    _close_all_but([line.fileno(), *packed])
    squashed(np.zeros((9, 9, 3), np.uint8), 8)  # what hangs is to hang before it is asked
    with line.makefile("rwb") as talk:

        def say(*answer: object) -> None:
            talk.write(f"{json.dumps(answer)}\n".encode())
            talk.flush()

        say(os.getpid(), None)
        for line_read in talk:
            asked, keep = json.loads(line_read)
            found, problem, pack = [], None, images.pack if keep else None
            for into, image in zip(pixels, asked, strict=False):
                if pack is not None and pack.find(image, into):
                    found.append(KEPT)
                    continue
                try:
                    into[:] = read_pixels(images.file(image), into.shape[-1], max_pixels=max_pixels)
                except ImageError:
                    found.append(FAILED)
                    continue
                try:
                    if pack is not None:
                        pack.put(image, into)
                    found.append(DECODED if pack is None else KEPT)
                except OSError as error:
                    found.append(DECODED)
                    problem = [error.errno or errno.EIO, error.strerror or str(error)]
            say(found, problem)
