"""Decoded images on disk, for every run and process that sees the same images at the same size.

FOLDER/KEY/    one set of images at one size
  about.json   which, for people
  records      [n, 36]: who an image is (32 bytes), and a checksum of that and of its pixels
  pixels       [n, 3, size, size], uint8, mapped into memory by whoever reads it

An image is written in its own place, its record after it, and counts only where the record agrees
with the file it came from and with the pixels. So any number of processes may write at once, the
same to the same place; one that is killed loses the image it was at; and what a failing disk makes
of an image is decoded again.
"""

import fcntl
import hashlib
import json
import os
import shutil
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.core.files import write_error, write_json
from acclimate.core.layout import LOCK
from acclimate.core.sealed import parse_json
from acclimate.data.pixels import VECTORISED
from acclimate.data.user_cache import GIB, image_identity

FORMAT = 2  # of the pixels: another way of decoding or resizing is another number
RECORD, IDENTITY = 36, 32  # bytes
LEAST = 64 << 20  # bytes of pixels below which a pack is not worth its files


@dataclass(frozen=True)
class PackFiles:
    """The open files of a pack, for whoever reads and writes the images that the caller numbers."""

    records: int
    pixels: int
    slot: np.ndarray  # [n]: the place of each image in the files
    identities: bytes  # [n, 32]

    def find(self, image: int, into: np.ndarray) -> bool:
        """Whether that image is there as it was written; then `into` [3, size, size] has it."""
        record = self.record(image)
        if record is None:
            return False
        with suppress(OSError):  # of a failing disk: then it is decoded again
            read = os.preadv(self.pixels, [into.data], int(self.slot[image]) * into.nbytes)
            return read == into.nbytes and record == _record(self.identity(image), into)
        return False

    def record(self, image: int) -> bytes | None:
        """What was written down of that image, if it was the last in its place."""
        with suppress(OSError):
            found = os.pread(self.records, RECORD, int(self.slot[image]) * RECORD)
            return found if found[:IDENTITY] == self.identity(image) else None
        return None

    def put(self, image: int, pixels: np.ndarray) -> None:
        slot = int(self.slot[image])
        _write(self.pixels, pixels.tobytes(), slot * pixels.nbytes)
        _write(self.records, _record(self.identity(image), pixels), slot * RECORD)

    def identity(self, image: int) -> bytes:
        return self.identities[image * IDENTITY : (image + 1) * IDENTITY]


@dataclass(eq=False)
class Pack:
    """The pack of some images, numbered as the caller numbers them.

    `have` are those of which this process knows that they are there: it has checked or put them.
    """

    folder: Path
    identities: bytes  # [n, 32]
    slot: np.ndarray  # [n]: the place of each image in the files
    pixels: Tensor  # [n, 3, size, size], mapped
    _files: tuple[int, int, int]  # records, pixels, and the lock that says the pack is in use
    have: np.ndarray = field(init=False)
    recorded: np.ndarray = field(init=False)  # [n]: those that had a record when it was opened,
    _sums: np.ndarray = field(init=False)  # and the checksum in it
    close: Callable[[], object] = field(init=False)
    problem: OSError | None = field(init=False, default=None)  # since which nothing is kept

    def __post_init__(self) -> None:
        self.have = np.zeros(len(self.slot), dtype=bool)
        self.recorded, self._sums = self._records()
        self.close = weakref.finalize(self, _close, self._files)

    @property
    def files(self) -> PackFiles:
        return PackFiles(*self._files[:2], self.slot, self.identities)

    def _records(self) -> tuple[np.ndarray, np.ndarray]:
        whole, records = len(self.slot) * RECORD, b""
        with suppress(OSError):
            records = os.pread(self._files[0], whole, 0)
        if len(records) < whole:  # cut short since, or not to be read
            records = bytes(whole)
        there = np.frombuffer(records, np.uint8).reshape(-1, RECORD)[self.slot]
        own = np.frombuffer(self.identities, np.uint8).reshape(-1, IDENTITY)
        sums = np.ascontiguousarray(there[:, IDENTITY:]).view("<u4")[:, 0]
        return (there[:, :IDENTITY] == own).all(1), sums

    def lacking(self) -> int:
        """How many images had no record, whatever their pixels are like."""
        return int((~self.recorded).sum())

    def find(self, image: int) -> bool:
        """Whether it is there as it was written, of the file that is there now."""
        files = self.files
        identity, pixels = files.identity(image), self.pixels.numpy()[self.slot[image]]
        if not (self.recorded[image] and _checksum(identity, pixels) == self._sums[image]):
            record = files.record(image)  # somebody else may have put it since
            if record is None or record != _record(identity, pixels):
                return False
        self.have[image] = True
        return True

    def put(self, image: int, pixels: np.ndarray) -> None:
        """Keep it, if the disk has room: work goes on without."""
        if self.problem is not None:
            return
        try:
            self.files.put(image, pixels)
        except OSError as error:
            self.problem = error
            return
        self.have[image] = True


def open_pack(
    root: Path,
    images: Iterable[str | bytes],
    count: int,
    size: int,
    *,
    max_pixels: int,
    budget: float,
    about: str,
    keep: bool = False,
    make: bool = True,
) -> Pack | None:
    """The pack of `count` images (absolute paths, or encoded) at `size`; None where it is not worth
    it, exceeds `budget` bytes or the disk, or where there can be none.

    What was made with `keep` is used as long as there is a budget at all, however large it is, and
    never makes room for another; a disk that does not take it is an error. Without `make` only such
    a one is used.
    """
    needed = count * 3 * size**2
    make = make and needed >= LEAST
    if not keep and (budget <= 0 or not (make or _any_kept(root))):
        return None
    identities, names = _identified(images)
    order = sorted(range(len(names)), key=names.__getitem__)
    slot = np.empty(len(names), dtype=np.int64)
    slot[order] = np.arange(len(names))
    digest = hashlib.sha256(json.dumps([FORMAT, VECTORISED, size, max_pixels]).encode())
    for place in order:
        digest.update(names[place])
    folder = root / digest.hexdigest()[:32]
    known = _about(folder)
    if not (keep or known.get("keep")) and not (make and _room(root, folder, needed, budget)):
        return None
    said = {"data": about, "images": count, "size": size, "gib": round(needed / GIB, 3)}
    files: list[int] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, length in (("records", count * RECORD), ("pixels", needed), (LOCK, 0)):
            files.append(os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644))
            if os.fstat(files[-1]).st_size != length:  # all who open it want the same
                os.ftruncate(files[-1], length)
        with suppress(OSError):  # without locks a pack may be removed while it is read, which is
            fcntl.flock(files[2], fcntl.LOCK_SH)  # safe: its files live on until they are closed
        write_json(folder / "about.json", {**said, "keep": keep or bool(known.get("keep"))})
        mapped = np.memmap(folder / "pixels", np.uint8, "r+", shape=(count, 3, size, size))
    except (OSError, ValueError) as error:
        _close(files)
        if keep and isinstance(error, OSError):  # who asks for it is to know
            raise write_error(folder, error) from None
        return None
    records, pixels, lock = files
    mapping = torch.from_numpy(mapped)
    return Pack(folder, b"".join(identities), slot, mapping, (records, pixels, lock))


def _identified(images: Iterable[str | bytes]) -> tuple[list[bytes], list[bytes]]:
    """Who each image is, and its name, which a file keeps when it is changed."""
    identities, names = [], []
    for image in images:
        identities.append(image_identity(image))
        if isinstance(image, str):
            names.append(hashlib.sha256(os.fsencode(image)).digest())
        else:
            names.append(identities[-1])
    return identities, names


def _room(root: Path, folder: Path, needed: int, budget: float) -> bool:
    """Make room for `folder` among the packs below `root`, by removing those that have not been
    used for longest and are not in use."""
    if needed > budget:
        return False
    with suppress(OSError):
        there = _bytes(folder)
        root.mkdir(parents=True, exist_ok=True)
        others = [path.parent for path in root.glob("*/about.json") if path.parent != folder]
        sizes = {path: _bytes(path) for path in others if not _about(path).get("keep")}
        total = needed + sum(sizes.values())
        for path in sorted(sizes, key=lambda path: (path / "about.json").stat().st_mtime):
            if total <= budget:
                break
            if _removed(path):
                total -= sizes[path]
        # Half of what is left stays free: a run has more to write than this.
        return total <= budget and needed - there <= shutil.disk_usage(root).free / 2
    return False


def _removed(folder: Path) -> bool:
    try:
        with (folder / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            return True
    except OSError:
        return False  # in use


def _about(folder: Path) -> dict[str, Any]:
    try:
        found = parse_json((folder / "about.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _bytes(folder: Path) -> int:
    """On the disk: places of images that were never written take none."""
    try:
        return (folder / "pixels").stat().st_blocks * 512
    except OSError:
        return 0


def _any_kept(root: Path) -> bool:
    return root.is_dir() and any(_about(folder).get("keep") for folder in root.iterdir())


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _record(identity: bytes, pixels: np.ndarray) -> bytes:
    return identity + _checksum(identity, pixels).to_bytes(4, "little")


def _checksum(identity: bytes, pixels: np.ndarray) -> int:
    return zlib.crc32(pixels.data, zlib.crc32(identity))


def _write(file: int, data: bytes, place: int) -> None:
    # Not through the mapping: there a full disk is a signal that kills, and here an error.
    while data:
        done = os.pwrite(file, data, place)
        data, place = data[done:], place + done
