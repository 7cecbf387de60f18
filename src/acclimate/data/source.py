"""Images in, stored rows out: decoded by a DataLoader, and held in memory if all of them fit.

Rows come from a manifest, or from what a user hands over; training, scoring, adaptation and
prediction all read them here.
"""

import json
import sys
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from acclimate.config import DataConfig
from acclimate.core.distributed import cores, local_processes
from acclimate.core.errors import ConfigError, ImageError, TooManyUnreadable
from acclimate.core.files import CACHE, append_line, user_cache, write_error, write_text
from acclimate.core.progress import Watch, unwatched
from acclimate.data.cache import GIB, Pack, open_pack
from acclimate.data.columns import require_finite
from acclimate.data.images import read_pixels
from acclimate.data.manifest import Manifest
from acclimate.data.readers import find_images
from acclimate.records.folder import read_quarantine


class Quarantine:
    """Unreadable images, each with its reason; an error once they are more than `max_share` of
    `total` images. Where the total is not given, `max_share` 1 allows all and 0 none.

    A list left at `path` by an earlier start of the same run is continued. One that is already
    over the limit belongs to a run that stopped there: it is begun anew, so that mended files
    are tried again and others are counted again.
    """

    def __init__(
        self, path: Path | None = None, *, total: int | None = None, max_share: float = 1.0
    ) -> None:
        self._path, self._total, self._max_share = path, total, max_share
        self._reasons: dict[str, str] = {} if path is None else read_quarantine(path)
        if path is not None and path.exists():
            if self._too_many():
                self._reasons = {}
            if not self._reasons or not path.read_bytes().endswith(b"\n"):
                # The next line must not be joined to one that was torn.
                write_text(path, "".join(_line(*entry) + "\n" for entry in self.entries))

    def add(self, image: str, reason: str) -> None:
        """Record `image` once; raise `TooManyUnreadable` when the share is over the limit."""
        if image not in self._reasons:
            self._reasons[image] = reason
            if self._path is not None:
                append_line(self._path, _line(image, reason))
        self._check(image)

    def refresh(self) -> None:
        """Take in what other processes of the run listed at the same path, and check the limit."""
        if self._path is not None:
            self._reasons = read_quarantine(self._path)
        self._check(next(iter(self._reasons), ""))

    @property
    def entries(self) -> list[tuple[str, str]]:
        """(image, reason) in the order of discovery."""
        return list(self._reasons.items())

    def as_dicts(self) -> list[dict[str, str]]:
        return [{"image": image, "reason": reason} for image, reason in self.entries]

    def __len__(self) -> int:
        return len(self._reasons)

    def _too_many(self) -> bool:
        # Divided rather than multiplied: 0.29 * 100 is a little less than 29.
        share = len(self._reasons) / max(self._total or 1, 1)
        return self._max_share < 1 and share > self._max_share

    def _check(self, image: str) -> None:
        if not self._too_many():
            return
        problem = f"{image}: {self._reasons[image]}"
        if self._total is None:
            raise ImageError(problem)
        listed = "" if self._path is None else f"; all are listed in {self._path}"
        raise TooManyUnreadable(
            f"{len(self._reasons)} of {self._total} images cannot be read, more than the "
            f"allowed {100 * self._max_share:.4g} %, for example {problem}{listed}; mend the "
            f"files or raise data.max_unreadable"
        )


def _line(image: str, reason: str) -> str:
    # ASCII with escapes: file names may hold bytes that are no UTF-8, or line separators.
    return json.dumps({"image": image, "reason": reason})


SHARE = 0.25  # of a GPU's free memory that images may take


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to `device` without waiting for the copy."""
    return tensor.to(device, non_blocking=True)


def fits_on(device: torch.device | None, bytes_: int, gib: float) -> bool:
    """Return whether images of so many bytes may stay on a GPU, of which `gib` are allowed: by what
    other processes leave, and by this one's own limit."""
    if device is None or device.type != "cuda" or bytes_ > gib * GIB:
        return False
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return bytes_ <= SHARE * min(free, allowed - torch.cuda.memory_reserved(device))


EVALUATION_BATCH = 256  # rows that a network sees at a time where nothing is learned
PART = 8192  # rows whose features are looked at together: some hundred megabytes as float64
# From so many images and cores on, worker processes are worth their start.
LEAST_IMAGES, LEAST_CORES = 2000, 4
MOST_PROCESSES = 16
MOST_THREADS = 8  # more of them wait for the interpreter lock


Stored = tuple[Tensor, np.ndarray]  # rows as stored, and which of them could be read


class Source(ABC):
    """Rows of uint8 images or float features, as stored; what cannot be read is left blank."""

    labels: np.ndarray
    image: np.ndarray  # [rows]: the number of the image that each shows

    @abstractmethod
    def take(self, rows: np.ndarray) -> Stored: ...

    def stream(self, parts: Iterable[np.ndarray], among: np.ndarray) -> Generator[Stored]:
        """`take` of each of `parts`, whose rows are `among` these, read ahead of time."""
        yield from map(self.take, parts)


@dataclass(frozen=True)
class Unlabelled:
    """Images that a user hands over, in the place of a manifest; they are named by place."""

    images: Sequence[Any]

    @classmethod
    def of(cls, images: Any) -> "Unlabelled":
        """One path (file or folder) means what is below it, one image is one image, and anything
        else is a sequence of images."""
        if isinstance(images, str | Path):
            return cls(find_images([images]))
        shape = tuple(getattr(images, "shape", ()))
        colours_first = isinstance(images, Tensor) and len(shape) == 3 and shape[0] == 3
        colours_last = len(shape) == 3 and shape[-1] == 3
        if isinstance(images, Image.Image) or len(shape) == 2 or colours_first or colours_last:
            return cls([images])
        return cls(images if isinstance(images, Sequence) else list(images))

    @property
    def label_index(self) -> np.ndarray:
        return np.zeros(0, dtype=np.int64)

    @property
    def image_ids(self) -> np.ndarray:
        return np.arange(len(self.images))

    def image_source(self, row: int) -> Any:
        return self.images[row]

    def image_name(self, row: int) -> str:
        image = self.images[row]
        return str(image) if isinstance(image, str | Path) else f"image {row}"


class FeatureSource(Source):
    """Feature vectors, all in memory. Rows that show the same image share a vector."""

    def __init__(
        self,
        labels: np.ndarray,
        features: Tensor,  # [images, f]
        image: np.ndarray | None = None,  # [rows]: the image of each, -1 where there is none
        good: np.ndarray | None = None,  # [images]: which could be read
    ) -> None:
        self.labels, self.features = labels, features
        self.image = np.arange(len(features)) if image is None else image
        self.good = np.ones(len(features), dtype=bool) if good is None else good

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        return cls(manifest.label_index, torch.from_numpy(manifest.features()))

    @classmethod
    def unlabelled(cls, features: Any, width: int) -> Self:
        """Rows that a user hands over, for a model that takes `width` features."""
        try:
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite
                rows = np.asarray(features, dtype=np.float32)
        except (TypeError, ValueError):
            raise ConfigError(
                f"this model takes arrays of features [n, {width}], not images"
            ) from None
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ConfigError(f"this model takes features [n, {width}], not shape {rows.shape}")
        require_finite(rows)
        return cls(np.zeros(0, dtype=np.int64), torch.from_numpy(rows))

    def take(self, rows: np.ndarray) -> Stored:
        image = self.image[rows]
        return self.features[torch.from_numpy(image)], (image >= 0) & self.good[image]


Decoded = tuple[Tensor, dict[int, str]]  # uint8 [n, 3, size, size], zeros where there is a reason


class ImageSource(Source, Dataset[Decoded]):
    """Images, decoded once each if all of them may stay in memory or on a GPU (`held`).

    Training and evaluation share what is held. As a `Dataset` it decodes images by number: with
    threads in this process or, beside a GPU (`processes`), alone in each of a DataLoader's workers,
    since threads would hold up whoever asks the GPU for work.
    """

    def __init__(
        self,
        manifest: Manifest | Unlabelled,
        size: int,
        config: DataConfig,
        quarantine: Quarantine,
        *,
        held_on: torch.device | None = None,
        keep: bool = False,
        make_pack: bool = True,
        processes: bool = False,
    ) -> None:
        """`held_on` is a GPU that has room for all images. With `keep` there is a pack on disk that
        stays, whatever the budgets; without `make_pack` only one that was made so is used."""
        self.manifest, self.size, self.config, self.quarantine = manifest, size, config, quarantine
        self.labels = manifest.label_index
        self.first, self.image = numbered(manifest.image_ids)
        self.unreadable = np.zeros(len(self.first), dtype=bool)
        self.there = np.zeros(len(self.first), dtype=bool)  # [images]: which are held
        available = max(cores() // local_processes(), 1)
        self._able = processes and available >= LEAST_CORES and sys.platform == "linux"
        # Some cores are left to those for whom processes decode.
        self._processes = config.workers or max(min(available * 3 // 4, MOST_PROCESSES), 1)
        self._threads = ThreadPoolExecutor(config.workers or min(available, MOST_THREADS), "decode")
        self.pack: Pack | None = None
        if isinstance(manifest, Manifest):
            self.pack = open_pack(manifest, self.first, size, config, keep=keep, make=make_pack)
        self.held: Tensor | None = None  # [images, 3, size, size], uint8
        fits = 3 * size**2 * len(self.first) <= config.cache_gib * GIB
        if held_on is not None or (self.pack is None and fits):
            shape = (len(self.first), 3, size, size)
            self.held = torch.empty(shape, dtype=torch.uint8, device=held_on)

    def __getitem__(self, images: np.ndarray) -> Decoded:
        pixels = np.zeros((len(images), 3, self.size, self.size), dtype=np.uint8)

        def read(place: int) -> str | None:
            return self._read(int(images[place]), pixels[place])

        each = self._threads.map if get_worker_info() is None else map
        reasons = enumerate(each(read, range(len(images))))
        failures = {place: reason for place, reason in reasons if reason is not None}
        return torch.from_numpy(pixels), failures

    def _read(self, image: int, into: np.ndarray) -> str | None:
        """Fill `into` from the pack or the file, or return why the image cannot be read."""
        if self.pack is not None and self.pack.find(image, into):
            return None
        source = self.manifest.image_source(int(self.first[image]))
        try:
            np.copyto(into, read_pixels(source, self.size, max_pixels=self.config.max_pixels))
        except ImageError as error:
            into.fill(0)  # a damaged image of the pack may be in it
            return str(error)
        if self.pack is not None:
            with suppress(OSError):  # a full disk: work goes on without
                self.pack.put(image, into)
        return None

    def take(self, rows: np.ndarray) -> Stored:
        """Return rows as stored, zeros for unreadable ones, and which are readable."""
        missing = self._missing(rows)
        return self._gather(rows, missing, self[missing])

    def stream(self, parts: Iterable[np.ndarray], among: np.ndarray) -> Generator[Stored]:
        pending: deque[tuple[np.ndarray, np.ndarray]] = deque()

        def missing() -> Iterator[np.ndarray]:
            for rows in parts:  # as far ahead as the DataLoader asks for
                pending.append((rows, self._missing(rows)))
                yield pending[-1][1]

        enough = self._able and len(self._missing(among)) >= LEAST_IMAGES
        processes = self._processes if enough else 0
        loader = DataLoader(
            self,
            batch_size=None,
            sampler=missing(),
            num_workers=processes,
            collate_fn=lambda decoded: decoded,
            pin_memory=self._able and torch.cuda.is_available(),
            generator=torch.Generator(),  # its seed is not to be drawn from the run's numbers
            # A copy of this process has the manifest and torch already.
            multiprocessing_context="fork" if processes else None,
        )
        with warnings.catch_warnings():  # Python 3.12 warns of threads, which a copy does not have
            warnings.simplefilter("ignore", DeprecationWarning)
            decoding = iter(loader)
        for decoded in decoding:
            yield self._gather(*pending.popleft(), decoded)

    def _missing(self, rows: np.ndarray) -> np.ndarray:
        """The images to decode for `rows`, each once, in order of appearance."""
        images = self.image[rows]
        images = images[~(self.there | self.unreadable)[images]]
        return np.asarray(images[numbered(images)[0]])

    def _gather(self, rows: np.ndarray, missing: np.ndarray, decoded: Decoded) -> Stored:
        """Rows as stored, from what is held and from the `missing` images, which were decoded."""
        pixels, failures = decoded
        for place, reason in failures.items():
            self.unreadable[missing[place]] = True
            self.quarantine.add(self.manifest.image_name(int(self.first[missing[place]])), reason)
        images = self.image[rows]
        good = ~self.unreadable[images]
        if self.held is None and np.array_equal(missing, images):
            return pixels, good  # which may be pinned memory, and need no copy
        if self.held is None:
            stored = torch.zeros((len(rows), *pixels.shape[1:]), dtype=torch.uint8)
            order = {image: place for place, image in enumerate(missing.tolist())}
            read = [order[image] for image in images[good].tolist()]
            stored[torch.from_numpy(good)] = pixels[read]
            return stored, good
        device = self.held.device
        if len(missing):
            places = sent(torch.from_numpy(missing), device)
            self.held.index_copy_(0, places, sent(pixels, device))
            self.there[missing] = True
        stored = self.held.index_select(0, sent(torch.from_numpy(images), device))
        return stored, good


def numbered(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images in the order of their first rows: that row of each, and the image of every row."""
    _, first, code = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return first[order], place[code]


def in_parts(rows: np.ndarray) -> list[np.ndarray]:
    """Split rows: all at once might be more than there is memory for."""
    return np.split(rows, range(PART, len(rows), PART))


def open_source(
    manifest: Manifest | Unlabelled,
    size: int,
    config: DataConfig,
    quarantine: Quarantine,
    device: torch.device | None = None,
) -> FeatureSource | ImageSource:
    """`device` is where all rows will be wanted: a GPU then holds a small set whole."""
    if isinstance(manifest, Manifest) and manifest.has_features:
        return FeatureSource.of(manifest)
    count = len(np.unique(manifest.image_ids))
    held_on = device if fits_on(device, count * 3 * size**2, config.cache_gib) else None
    beside_gpu = device is not None and device.type == "cuda"
    return ImageSource(manifest, size, config, quarantine, held_on=held_on, processes=beside_gpu)


def pack_images(
    manifest: Manifest,
    size: int,
    config: DataConfig,
    quarantine: Quarantine,
    watch: Watch = unwatched,
) -> Pack:
    """Decode all images of a manifest into a pack on disk that stays; goes on after a kill."""
    if user_cache("images") is None:
        raise ConfigError(f"there is no folder to keep images in; set {CACHE} to one")
    source = ImageSource(
        manifest, size, replace(config, cache_gib=0.0), quarantine, keep=True, processes=True
    )
    pack = source.pack
    assert pack is not None, "a disk that does not take it is an error"
    for places, stored in readable(source, source.first, watch):
        for image, pixels in zip(places.tolist(), stored.numpy(), strict=True):
            try:
                if not pack.has(image):  # whoever decoded it could not write it
                    pack.put(image, pixels)
            except OSError as error:
                raise write_error(pack.folder, error) from None
    return pack


def readable(
    source: Source,
    rows: np.ndarray,
    watch: Watch = unwatched,
    *,
    most: int = EVALUATION_BATCH,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Batches of the readable of `rows`: their places in `rows`, and them as stored."""
    parts = [np.arange(start, min(start + most, len(rows))) for start in range(0, len(rows), most)]
    with closing(source.stream((rows[places] for places in parts), rows)) as batches:
        for places, (stored, good) in zip(parts, batches, strict=True):
            if good.all():
                yield places, stored
            elif good.any():
                yield places[good], stored[torch.from_numpy(good)]
            watch("images", int(places[-1]) + 1, len(rows), "")


def to_float(stored: Tensor, device: torch.device) -> Tensor:
    """Stored rows as a network takes them: images in 0..1, features as they are."""
    moved = stored.to(device, non_blocking=True)
    if moved.dtype != torch.uint8:
        return moved
    return moved.to(torch.float32, memory_format=torch.channels_last).div_(255)
