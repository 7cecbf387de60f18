"""Processes that decode images for us.

Threads do it with less ado. But every image takes a little work under the interpreter lock, and
beside a GPU so does every step of training: past a thousand images a second both wait for the lock
more than they work. A process is sent the paths of some images, and leaves their pixels in memory
that it shares with us. What it does not manage, for whatever reason, we decode ourselves.
"""

import json
import mmap
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
import torch

from acclimate.core.errors import ImageError
from acclimate.data.effort import IN_FLIGHT
from acclimate.data.pixels import read_pixels

MOST = 16  # images that a process decodes at a time


class Decoder:
    """One process. It ends with us, and when it is told no more."""

    def __init__(self, size: int, max_pixels: int) -> None:
        self.lost = False
        shape = (MOST, 3, size, size)
        memory = os.memfd_create("acclimate-images")
        try:
            os.ftruncate(memory, MOST * 3 * size**2)
            self.pixels = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(shape)
            # A process finds what we found, wherever that came from, and has no use for a GPU.
            found = os.pathsep.join(filter(None, sys.path))
            own = {"PYTHONPATH": found, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            self.process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(memory), str(size), str(max_pixels)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[memory],
                env={**os.environ, **own},
            )
        finally:
            os.close(memory)

    def answer(self) -> list[bool]:
        """What it says next; nothing, once it is lost. Its first answer comes when it can work."""
        assert self.process.stdout is not None
        try:
            found: list[bool] = json.loads(self.process.stdout.readline())
        except ValueError:  # cut short, or nothing at all
            self.lost = True
            return []
        return found

    def __call__(self, paths: Sequence[Path]) -> list[bool]:
        """Which of `paths`, at most MOST, are in `pixels` now, each at its place."""
        assert self.process.stdin is not None
        asked = json.dumps([os.fspath(path) for path in paths])
        with suppress(OSError):  # then there will be no answer
            self.process.stdin.write(f"{asked}\n".encode())
            self.process.stdin.flush()
        return self.answer() or [False] * len(paths)


class Decoders:
    """Several of them, which start while we go on."""

    def __init__(self, count: int, size: int, max_pixels: int) -> None:
        # Together they may hold as many pixels as our own threads; larger images are for those.
        most = min(max_pixels, IN_FLIGHT // count)
        self._free: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
        started: list[Decoder] = []
        self._closed = weakref.finalize(self, _end, started)
        arguments = (count, size, most, started, self._free)
        threading.Thread(target=_start, args=arguments, name="decoders", daemon=True).start()

    @contextmanager
    def one(self) -> Iterator[Decoder | None]:
        """One that has nothing else to do, while there is one."""
        try:
            decoder = self._free.get_nowait()
        except queue.Empty:
            yield None
            return
        try:
            yield decoder
        finally:
            if not decoder.lost:
                self._free.put(decoder)


def possible() -> bool:
    return hasattr(os, "memfd_create")


def _start(
    count: int,
    size: int,
    max_pixels: int,
    started: list[Decoder],
    free: "queue.SimpleQueue[Decoder]",
) -> None:
    with suppress(OSError):  # no more processes, or no more memory to share: fewer will do
        started.extend(Decoder(size, max_pixels) for _ in range(count))
    for decoder in list(started):
        if decoder.answer():
            free.put(decoder)


def _end(started: Sequence[Decoder]) -> None:
    for decoder in started:
        decoder.process.kill()
    for decoder in started:
        with suppress(OSError):  # what was not sent any more
            decoder.process.communicate()


def _work(memory: int, size: int, max_pixels: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted ends us
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    pixels = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(MOST, 3, size, size)
    _say(answers, [True])
    for line in sys.stdin:
        found = []
        for place, path in enumerate(json.loads(line)):
            try:
                pixels[place] = read_pixels(Path(path), size, max_pixels=max_pixels)
            except ImageError:
                found.append(False)
            else:
                found.append(True)
        _say(answers, found)


def _say(answers: IO[str], found: list[bool]) -> None:
    answers.write(f"{json.dumps(found)}\n")
    answers.flush()


if __name__ == "__main__":
    _work(*map(int, sys.argv[1:]))
