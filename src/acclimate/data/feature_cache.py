"""What runs share on disk: where it lies, how an image is identified, and cached features.

Features are extracted once, for every run that freezes the same backbone:

FOLDER/KEY/             one backbone, by the content of its weights, at one size of images
  about.json            which, for people
  CHECKSUM.safetensors  some images: who they are [n, 32] and their features [n, f], float32

A shard is written whole or not at all, is named by its content and never changed: any number of
processes may write at once, and one that is killed loses the shard it was at.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from acclimate.core.errors import ConfigError
from acclimate.core.files import clear_temporary, parse_metadata, write_json
from acclimate.core.layout import LOCK
from acclimate.core.tensors import save_tensors

VARIABLE = "ACCLIMATE_CACHE"
MIB, GIB = 1 << 20, 1 << 30
ENDING = ".safetensors"
IMAGES, FEATURES, CHECKSUM = "images", "features", "sha256"


def user_cache(kind: str) -> Path | None:
    """The folder for `kind`: in $ACCLIMATE_CACHE, else in the user's cache; None without a home
    that can be written to."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser() / kind
    with suppress(OSError, RuntimeError):
        usual = Path.home() / ".cache" / "acclimate" / kind
        usual.mkdir(parents=True, exist_ok=True)
        if os.access(usual, os.W_OK):
            return usual
    return None


def image_identity(image: str | bytes) -> bytes:
    """32 bytes: of an encoded image by its content, of a file by its absolute path, size and time
    of change."""
    if isinstance(image, bytes):
        return hashlib.sha256(b"content:" + image).digest()
    try:
        facts = os.stat(image)  # noqa: PTH116
        known = f"{facts.st_size}:{facts.st_mtime_ns}"
    except (OSError, ValueError):
        known = "none"  # whoever reads it will say why it cannot be
    return hashlib.sha256(f"file:{known}:".encode() + os.fsencode(image)).digest()


def cache_folder(beside: Path) -> Path:
    """Where features lie: the user's cache, else `beside`."""
    return user_cache("features") or beside / "features"


@dataclass(frozen=True)
class FeatureCache:
    """The features that one backbone gives at one size: `width` numbers per image."""

    folder: Path
    width: int

    def begin(self, about: Mapping[str, Any], images: int) -> None:
        """Make the folder, and refuse one on a disk without room for so many `images` more."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"features cannot be kept in {self.folder} ({error.strerror}); set {VARIABLE} to a "
                f"folder that can be written to"
            ) from error
        clear_temporary(self.folder)
        needed, free = images * self.width * 4, shutil.disk_usage(self.folder).free
        if needed > free:
            raise ConfigError(
                f"features of {images} images take {needed / MIB:,.0f} MiB, and {self.folder} has "
                f"{free / MIB:,.0f} MiB left; set {VARIABLE} to a folder on a larger disk"
            )
        if not (self.folder / "about.json").exists():
            write_json(self.folder / "about.json", about)

    def fill(self, wanted: Sequence[bytes], into: Tensor, found: np.ndarray) -> None:
        """Put what is there of `wanted` into the rows of `into` [n, f], and mark it in `found` [n].

        A shard that does not hold what it held when it was written is removed.
        """
        places = {image: place for place, image in enumerate(wanted) if not found[place]}
        for path in sorted(self.folder.glob(f"*{ENDING}")) if places else ():
            try:
                held = self._shard(path, places)
            except (SafetensorError, KeyError, TypeError, ValueError):
                path.unlink(missing_ok=True)
                continue
            except FileNotFoundError:  # damaged, and another process was faster to see it
                continue
            for image, row in held:
                into[places[image]] = row
                found[places[image]] = True

    def count(self, wanted: Sequence[bytes]) -> int:
        """How many of `wanted` are there, by their names alone."""
        missing = set(wanted)
        for path in self.folder.glob(f"*{ENDING}"):
            with suppress(SafetensorError, KeyError, OSError), safe_open(path, "pt") as file:
                missing -= {row.tobytes() for row in file.get_tensor(IMAGES).numpy()}
        return len(set(wanted)) - len(missing)

    def add(self, images: Sequence[bytes], features: Tensor) -> None:
        """Keep a shard: [n] identities and their features [n, f]."""
        known = torch.from_numpy(np.frombuffer(b"".join(images), np.uint8).reshape(-1, 32).copy())
        rows = features.to("cpu", torch.float32).contiguous()
        checksum = _checksum(known, rows)
        tensors = {IMAGES: known, FEATURES: rows}
        save_tensors(self.folder / f"{checksum[:32]}{ENDING}", tensors, {CHECKSUM: checksum})

    @contextmanager
    def alone(self, images: Sequence[bytes]) -> Iterator[None]:
        """Wait until no other process is extracting these images: what it does need not be done
        again. Who extracts others goes on beside it.

        Where there are no locks the worst is that work is done twice.
        """
        import fcntl  # which Windows does not have

        which = hashlib.sha256(b"".join(sorted(images))).hexdigest()[:16]
        with (self.folder / f"{LOCK}-{which}").open("a") as lock:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield  # closing the file, or dying, lets go of the lock

    def _shard(self, path: Path, places: Mapping[bytes, int]) -> list[tuple[bytes, Tensor]]:
        """Those of its images that are in `places`, and their features, checked."""
        with safe_open(path, framework="pt") as file:
            known = file.get_tensor(IMAGES)
            images = [row.tobytes() for row in known.numpy()]
            if not any(image in places for image in images):
                return []
            features, stored = file.get_tensor(FEATURES), parse_metadata(file.metadata())[CHECKSUM]
        fits = features.shape == (len(images), self.width) and features.dtype == torch.float32
        if not fits or _checksum(known, features) != stored or not features.isfinite().all():
            raise ValueError
        return [
            (image, row) for image, row in zip(images, features, strict=True) if image in places
        ]


def _checksum(images: Tensor, features: Tensor) -> str:
    digest = hashlib.sha256(images.numpy().tobytes())
    digest.update(features.numpy().tobytes())
    return digest.hexdigest()
