"""What was made of images, on disk by the images' content: features, and decoded pixels.

Features lie in shards, safetensors with a digest, that only come to be or go. A pack of pixels:

FOLDER/KEY/    one set of images at one size, for every run and process that sees them so
  about.json   which, for people; its time of change tells when the pack was last opened
  images       [n]: identity of an image (32 bytes), a checksum of that and its pixels, the pixels

An image is written in its own place. It counts only if its identity agrees with the file it came
from, and the checksum with both. So any number of processes may write at once, the same to the same
place; one that is killed loses the image it was at; and what a failing disk makes of an image is
decoded again.
"""

import hashlib
import io
import json
import os
import shutil
import threading
import weakref
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.core.errors import ConfigError, DamagedFile
from acclimate.core.files import (
    BINARY,
    clear_temporary,
    locked,
    user_cache,
    write_error,
    write_json,
)
from acclimate.core.tensors import read_tensors, save_tensors
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import SIZE as IDENTITY
from acclimate.data.pictures import content_digests
from acclimate.records.folder import LOCK

GIB = 1 << 30
ENDING = ".safetensors"
IMAGES, FEATURES = "images", "features"


def cache_folder(beside: Path) -> Path:
    """Where features lie: the user's cache, else `beside`."""
    return user_cache("features") or beside / "features"


@dataclass(frozen=True)
class FeatureCache:
    """The features that one backbone gives at one size: `width` numbers per image, in shards."""

    folder: Path
    width: int

    def begin(self, about: Mapping[str, Any]) -> None:
        """Make the folder, and say in it what made the features."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self.folder, error) from error
        clear_temporary(self.folder)
        if not (self.folder / "about.json").exists():
            write_json(self.folder / "about.json", about)

    def fill(self, images: Sequence[bytes], into: Tensor, there: np.ndarray) -> None:
        """Put what is there of `images` into the rows of `into` [n, f], and mark it in `there` [n].

        A shard that does not hold what it held when it was written is removed.
        """
        places = {image: place for place, image in enumerate(images) if not there[place]}
        for path in sorted(self.folder.glob(f"*{ENDING}")) if places else ():
            try:
                with safe_open(path, framework="pt") as file:
                    held = [row.tobytes() for row in file.get_tensor(IMAGES).numpy()]
                if places.keys().isdisjoint(held):
                    continue
                features = read_tensors(path)[0][FEATURES]
                if features.shape != (len(held), self.width) or not features.isfinite().all():
                    raise DamagedFile(path)
            except (DamagedFile, SafetensorError, OSError):
                path.unlink(missing_ok=True)  # it may be gone: another process was faster
                continue
            for image, row in zip(held, features, strict=True):
                if image in places:
                    into[places[image]] = row
                    there[places[image]] = True

    def add(self, images: Sequence[bytes], features: Tensor) -> None:
        """Keep a shard: [n] identities and their features [n, f]."""
        whole = b"".join(images)
        known = torch.from_numpy(np.frombuffer(whole, np.uint8).reshape(-1, IDENTITY).copy())
        path = self.folder / f"{hashlib.sha256(whole).hexdigest()[:32]}{ENDING}"
        save_tensors(path, {IMAGES: known, FEATURES: features.to("cpu", torch.float32)})

    def alone(self, images: Sequence[bytes]) -> AbstractContextManager[None]:
        """Wait until no other process is extracting these images: what it does need not be done
        again. Who extracts others goes on beside it."""
        which = hashlib.sha256(b"".join(sorted(images))).hexdigest()[:16]
        path = self.folder / f"{LOCK}-{which}"
        return locked(path, "extracting features", ConfigError, wait=True)


FORMAT = 3  # of a pack: another layout, or way of decoding or resizing, is another number
HEAD = IDENTITY + 4  # bytes before an image's pixels: its identity, and a checksum of both
KEPT = "kept"  # the folder of packs that are never removed for others
LEAST = 64 << 20  # bytes of pixels below which a pack is not worth its file


@dataclass(eq=False)
class Pack:
    """The pack of some images, numbered as the caller numbers them."""

    folder: Path
    identities: Sequence[bytes]  # 32 bytes each
    slot: np.ndarray  # [n]: the place of each image in the file
    file: int  # a descriptor, which worker processes inherit
    image_bytes: int
    _checked: np.ndarray = field(init=False)  # [n]: read or written by this process

    def __post_init__(self) -> None:
        self._checked = np.zeros(len(self.slot), dtype=bool)
        weakref.finalize(self, os.close, self.file)

    def has(self, image: int) -> bool:
        """Return whether there is an entry of the image as its file is now."""
        identity = bytearray(IDENTITY)
        _read(self.file, [identity], self._place(image))
        return identity == self.identities[image]

    def find(self, image: int, into: np.ndarray) -> bool:
        """Read the image into `into` [3, size, size]; return False if it is not there intact."""
        head = bytearray(HEAD)
        try:
            read = _read(self.file, [head, into.data], self._place(image))
        except OSError:  # a failing disk: the image is decoded again
            return False
        if read < HEAD + self.image_bytes:
            return False
        if not self._checked[image]:
            self._checked[image] = head == _head(self.identities[image], into)
        return bool(self._checked[image])

    def put(self, image: int, pixels: np.ndarray) -> None:
        """Write the image; raises OSError if the disk does not take it."""
        place = self._place(image)
        # The head last: `has` takes it for a sign that the pixels are there.
        _write(self.file, pixels.tobytes(), place + HEAD)
        _write(self.file, _head(self.identities[image], pixels), place)
        self._checked[image] = True

    def _place(self, image: int) -> int:
        return int(self.slot[image]) * (HEAD + self.image_bytes)


POSITIONED = hasattr(os, "preadv")  # Windows has one position per file, which threads share
_SEEK = threading.Lock()


def _read(file: int, parts: Sequence[bytearray | memoryview], place: int) -> int:
    """Fill `parts` from `place` on; returns how many bytes there were."""
    if POSITIONED:
        return os.preadv(file, parts, place)
    with _SEEK, io.FileIO(file, "rb", closefd=False) as whole:
        whole.seek(place)
        return sum(whole.readinto(part) for part in parts)


def _write(file: int, data: bytes, place: int) -> None:
    while data:
        if POSITIONED:
            written = os.pwrite(file, data, place)
        else:
            with _SEEK:
                os.lseek(file, place, os.SEEK_SET)
                written = os.write(file, data)
        data, place = data[written:], place + written


def _head(identity: bytes, pixels: np.ndarray) -> bytes:
    return identity + zlib.crc32(pixels.data, zlib.crc32(identity)).to_bytes(4, "little")


def open_pack(
    manifest: Manifest, rows: np.ndarray, size: int, config: DataConfig, *, keep: bool, make: bool
) -> Pack | None:
    """Open the pack of the images that `rows` show, at `size`.

    Returns None if a pack is not worth it, or exceeds the budget or the disk. A pack that was made
    with `keep` is used whenever the budget is not 0, and is never removed for another; if the disk
    does not take it, that is an error. Without `make` only such a pack is used.
    """
    root, needed = user_cache("images"), len(rows) * 3 * size**2
    if root is None or not (keep or config.pack_gib):
        return None
    images = list(manifest.image_sources(rows))
    # A file keeps its name when it is changed.
    encoded = (os.fsencode(image) if isinstance(image, str) else image for image in images)
    names = [hashlib.sha256(one).digest() for one in encoded]
    order = sorted(range(len(names)), key=names.__getitem__)
    slot = np.empty(len(names), dtype=np.int64)
    slot[order] = np.arange(len(names))
    digest = hashlib.sha256(json.dumps([FORMAT, size, config.max_pixels]).encode())
    for place in order:
        digest.update(names[place])
    key = digest.hexdigest()[:32]
    permanent, folder = root / KEPT / key, root / key
    if keep or permanent.exists():
        folder = permanent
    elif not (make and needed >= LEAST and _make_room(root, folder, needed, config.pack_gib * GIB)):
        return None
    facts = {"data": manifest.source, "images": len(rows), "size": size}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "about.json", {**facts, "gib": round(needed / GIB, 3)})
        file = os.open(folder / "images", os.O_RDWR | os.O_CREAT | BINARY, 0o644)
    except OSError as error:
        if keep:  # whoever asks for it is to know
            raise write_error(folder, error) from None
        return None
    # Only now: without a pack, nobody has to know what is in the files.
    return Pack(folder, content_digests(images), slot, file, 3 * size**2)


def _make_room(root: Path, folder: Path, needed: int, budget: float) -> bool:
    """Remove the packs below `root` that were opened longest ago until `folder` fits the budget.

    Processes that have a removed pack open are not harmed: its file lives on until it is closed.
    """
    if needed > budget:
        return False
    with suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        others = [path.parent for path in root.glob("*/about.json") if path.parent != folder]
        sizes = {path: _bytes(path) for path in others}
        total = needed + sum(sizes.values())
        for path in sorted(sizes, key=lambda path: (path / "about.json").stat().st_mtime):
            if total <= budget:
                break
            shutil.rmtree(path, ignore_errors=True)
            total -= sizes[path]
        # Half of what is left stays free: a run has more to write than this.
        return needed - _bytes(folder) <= shutil.disk_usage(root).free / 2
    return False


def _bytes(folder: Path) -> int:
    """Size on disk: places of images that were never written take none."""
    try:
        facts = (folder / "images").stat()
        return int(getattr(facts, "st_blocks", facts.st_size / 512) * 512)
    except OSError:
        return 0
