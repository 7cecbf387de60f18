"""Processes that decode images for us.

Threads do it with less ado. But every image takes a little work under the interpreter lock, and
beside a GPU so does every step of training: past a thousand images a second both wait for the lock
more than they work. A process is sent the paths of some images, and leaves their pixels in memory
that it shares with us; where there is a pack, it looks for them there first, and keeps them there.
What it does not manage, for whatever reason, we decode ourselves.

They are copies of one process, which imports what they need once, and has neither threads of ours
nor a GPU that a copy could be harmed by.
"""

import errno
import json
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate.core.errors import ImageError
from acclimate.data.pack import PackFiles
from acclimate.data.pixels import read_pixels

MOST = 16  # images that a process decodes at a time
LARGEST = 25_000_000  # pixels; larger images are for our threads, which count them together
FAILED, DECODED, KEPT = range(3)  # what became of an image
WAIT = 5  # seconds, for processes to end that have nothing to do any more


@dataclass(frozen=True)
class Wanted:
    """An image: its file, and where there is a pack its place and identity in it."""

    file: str
    slot: int | None = None
    identity: bytes = b""


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
        self._answers = line.makefile("rb")

    def started(self) -> bool:
        """Wait until it can work."""
        self.pid, _ = self._answer() or (0, None)
        return not self.lost

    def _answer(self) -> Any:
        try:
            return json.loads(self._answers.readline())
        except (ValueError, OSError):  # cut short, or nothing at all
            self.lost = True
            return None

    def decoded(self, wanted: Sequence[Wanted]) -> Managed:
        """Of at most MOST images."""
        asked = json.dumps([(one.file, one.slot, one.identity.hex()) for one in wanted])
        with suppress(OSError):  # then there will be no answer
            self.line.sendall(f"{asked}\n".encode())
        found, problem = self._answer() or ([FAILED] * len(wanted), None)
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


class Decoders:
    """Several of them, which start while we go on."""

    def __init__(
        self, count: int, size: int, max_pixels: int, files: PackFiles | None = None
    ) -> None:
        """`files` are those of a pack."""
        most = min(max_pixels, LARGEST)
        self._free: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
        lines = [socket.socketpair() for _ in range(count)]
        theirs = [line.fileno() for _, line in lines]
        packed = [] if files is None else [files.records, files.pixels]
        memory = os.memfd_create("acclimate-images")
        try:
            os.ftruncate(memory, count * MOST * 3 * size**2)
            pixels = _mapped(memory, count, size)
            # They find what we found, wherever that came from and in no other place, and are to
            # start no threads.
            found = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109
            own = {"PYTHONPATH": found, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    __spec__.name,
                    json.dumps([memory, size, most, theirs, packed]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[memory, *theirs, *packed],
                env={**os.environ, **own, "CUDA_VISIBLE_DEVICES": ""},
            )
        finally:
            os.close(memory)
            for _, line in lines:
                line.close()
        decoders = [Decoder(line, part) for (line, _), part in zip(lines, pixels, strict=True)]
        self.end = weakref.finalize(self, _end, process, decoders)
        threading.Thread(
            target=_await, args=(decoders, self._free), name="decoders", daemon=True
        ).start()

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


def _mapped(memory: int, count: int, size: int) -> np.ndarray:
    mapped = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
    return mapped.reshape(count, MOST, 3, size, size)


def _await(decoders: Sequence[Decoder], free: "queue.SimpleQueue[Decoder]") -> None:
    for decoder in decoders:
        if decoder.started():
            free.put(decoder)


def _end(process: "subprocess.Popen[bytes]", decoders: Sequence[Decoder]) -> None:
    for decoder in decoders:
        with suppress(OSError):
            decoder.line.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer has one
        decoder.close()
    if not any(decoder.pid for decoder in decoders):  # it is still importing, and has no copies
        process.kill()
    try:
        process.wait(WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _copies(
    memory: int, size: int, max_pixels: int, lines: Sequence[int], packed: Sequence[int]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted hangs up
    torch.set_num_threads(1)
    mapped = _mapped(memory, len(lines), size)
    pack = PackFiles(*packed) if packed else None
    for number, line in enumerate(lines):
        if os.fork() == 0:
            for other in lines[number + 1 :]:
                os.close(other)
            try:
                _work(line, mapped[number], max_pixels, pack)
            finally:
                os._exit(0)  # nothing of it is to be tidied up
        os.close(line)
    for _ in lines:
        os.wait()


def _work(line: int, pixels: np.ndarray, max_pixels: int, pack: PackFiles | None) -> None:
    with socket.socket(fileno=line) as ours, ours.makefile("rwb") as talk:

        def say(*answer: object) -> None:
            talk.write(f"{json.dumps(answer)}\n".encode())
            talk.flush()

        say(os.getpid(), None)
        for asked in talk:
            found, problem = [], None
            for into, (file, slot, name) in zip(pixels, json.loads(asked), strict=False):
                own, identity = None if slot is None else pack, bytes.fromhex(name)
                if own is not None and own.find(slot, identity, into):
                    found.append(KEPT)
                    continue
                try:
                    into[:] = read_pixels(Path(file), into.shape[-1], max_pixels=max_pixels)
                except ImageError:
                    found.append(FAILED)
                    continue
                try:
                    if own is not None:
                        own.put(slot, identity, into)
                    found.append(DECODED if own is None else KEPT)
                except OSError as error:
                    found.append(DECODED)
                    problem = [error.errno or errno.EIO, error.strerror or str(error)]
            say(found, problem)


if __name__ == "__main__":
    _copies(*json.loads(sys.argv[1]))
