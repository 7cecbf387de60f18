"""Images in, stored rows out: one decoding pool, kept on disk or in memory when everything fits.

Rows come from a manifest, or from what a user hands over; training, scoring, adaptation and
prediction all read them here.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from acclimate.config import DataConfig
from acclimate.core.distributed import cores, local_processes
from acclimate.core.errors import ConfigError, ImageError
from acclimate.core.files import write_error
from acclimate.core.watch import Watch, unwatched
from acclimate.data import decoders
from acclimate.data.columns import require_finite
from acclimate.data.images import find_images
from acclimate.data.manifest import Manifest
from acclimate.data.on_device import OnDevice, fits_on
from acclimate.data.pack import Pack, open_pack
from acclimate.data.pixels import read_pixels
from acclimate.data.quarantine import Quarantine
from acclimate.data.user_cache import GIB, VARIABLE, user_cache

EVALUATION_BATCH = 256  # rows that a network sees at a time where nothing is learned
PART = 8192  # rows whose features are looked at together: some hundred megabytes as float64
# From so many images and cores on, processes that decode are worth their start.
LEAST_IMAGES, LEAST_CORES = 2000, 4
MOST_PROCESSES = 16
MOST_THREADS = 8  # more of them wait for the interpreter lock


class Source(Protocol):
    """`take` gives rows as stored (uint8 images or float features) and which could be read."""

    labels: np.ndarray

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]: ...


class Shown(Source, Protocol):
    """One that knows which rows show the same image."""

    image: np.ndarray  # [rows]: the number of the image that each shows


@dataclass(frozen=True)
class Given:
    """What a user hands over, in the place of a manifest: without labels, and named by place."""

    items: Any  # images, or features [n, f]
    has_features: bool = False

    @classmethod
    def images(cls, images: Any) -> "Given":
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

    @classmethod
    def rows(cls, features: Any, width: int) -> "Given":
        """Feature rows for a model that takes `width` of them."""
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
        return cls(rows, has_features=True)

    @property
    def label_index(self) -> np.ndarray:
        return np.zeros(0, dtype=np.int64)

    @property
    def image_ids(self) -> np.ndarray:
        return np.arange(len(self))

    def __len__(self) -> int:
        return len(self.items)

    def features(self) -> np.ndarray:
        features: np.ndarray = self.items
        return features

    def image_source(self, row: int) -> Any:
        return self.items[row]

    def image_files(self, rows: np.ndarray) -> list[str | None]:
        items = (self.items[row] for row in rows.tolist())
        return [str(Path(i).absolute()) if isinstance(i, str | Path) else None for i in items]

    def image_name(self, row: int) -> str:
        item = self.items[row]
        return str(item) if isinstance(item, str | Path) else f"image {row}"


class FeatureSource:
    def __init__(self, manifest: Manifest | Given) -> None:
        self.labels = manifest.label_index
        self.features = torch.from_numpy(manifest.features())
        self.image = np.arange(len(self.features))

    def take(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        return self.features[torch.from_numpy(rows)], np.ones(len(rows), dtype=bool)


class Kept(Protocol):
    """Images that need not be decoded again, in memory or on disk."""

    pixels: Tensor  # [n, 3, size, size]
    slot: np.ndarray  # [images]: the place of each in `pixels`
    have: np.ndarray  # [images]: those that are there for sure

    def lacking(self) -> int:
        """How many images are not there by any sign of it."""

    def find(self, image: int) -> bool:
        """Whether one of the others is there too."""

    def put(self, image: int, pixels: np.ndarray) -> None: ...


class InMemory:
    def __init__(self, images: int, size: int) -> None:
        self.pixels = torch.empty((images, 3, size, size), dtype=torch.uint8)
        self.slot = np.arange(images)
        self.have = np.zeros(images, dtype=bool)

    def lacking(self) -> int:
        return int((~self.have).sum())

    def find(self, image: int) -> bool:
        return bool(self.have[image])

    def put(self, image: int, pixels: np.ndarray) -> None:
        np.copyto(self.pixels[image].numpy(), pixels)
        self.have[image] = True


class ImageSource:
    """One pool decodes for training and evaluation, which share what is kept.

    Its threads work mostly outside the interpreter lock. Where they would be in the way of whoever
    asks for `processes`, those decode instead, once they have started.
    An image that many rows show is decoded once, and kept once.
    """

    def __init__(
        self,
        manifest: Manifest | Given,
        size: int,
        config: DataConfig,
        quarantine: Quarantine,
        *,
        keep: bool = False,
        make_pack: bool = True,
        processes: bool = False,
    ) -> None:
        """With `keep` there is a pack on disk that stays, whatever the budgets; without `make_pack`
        one that was made so is used, and no other."""
        self.manifest, self.size, self.config, self.quarantine = manifest, size, config, quarantine
        self.labels = manifest.label_index
        self.first, self.image = numbered(manifest.image_ids)
        self.unreadable = np.zeros(len(self.first), dtype=bool)
        self.kept = self._kept(keep=keep, make=make_pack)
        own = max(cores() // local_processes(), 1)
        able = processes and own >= LEAST_CORES and decoders.possible()
        self.processes = able and self._lacking() >= LEAST_IMAGES
        # Some cores are left to those for whom processes decode.
        by_cores = min(own * 3 // 4, MOST_PROCESSES) if self.processes else min(own, MOST_THREADS)
        self.workers = config.workers or max(by_cores, 1)
        self.pool = ThreadPoolExecutor(self.workers, "decode")
        self.decoders: decoders.Decoders | None = None
        self._starting = threading.Lock()

    def _kept(self, *, keep: bool, make: bool) -> Kept | None:
        needed = len(self.first) * 3 * self.size**2
        folder = user_cache("images")
        if folder is not None and isinstance(self.manifest, Manifest):
            pack = open_pack(
                folder,
                self.manifest.image_sources(self.first),
                len(self.first),
                self.size,
                max_pixels=self.config.max_pixels,
                budget=self.config.pack_gib * GIB,
                about=self.manifest.source,
                keep=keep,
                make=make,
            )
            if pack is not None:
                return pack
        fits = needed <= self.config.cache_gib * GIB
        return InMemory(len(self.first), self.size) if fits else None

    def _lacking(self) -> int:
        """How many images are to be decoded."""
        return len(self.first) if self.kept is None else self.kept.lacking()

    def take(self, rows: np.ndarray, out: Tensor | None = None) -> tuple[Tensor, np.ndarray]:
        """Into `out` [n, 3, size, size] where it is given."""
        return self.take_images(self.image[rows], out)

    def take_images(
        self, shown: np.ndarray, out: Tensor | None = None
    ) -> tuple[Tensor, np.ndarray]:
        """The same by number of image instead of by row."""
        if out is None:
            out = torch.empty((len(shown), 3, self.size, self.size), dtype=torch.uint8)
        kept = np.zeros(len(shown), dtype=bool) if self.kept is None else self.kept.have[shown]
        if self.kept is not None and kept.all():
            places = torch.from_numpy(self.kept.slot[shown])
            torch.index_select(self.kept.pixels, 0, places, out=out)
            return out, np.ones(len(shown), dtype=bool)
        if self.kept is not None and kept.any():
            places = torch.from_numpy(self.kept.slot[shown[kept]])
            out[torch.from_numpy(kept)] = self.kept.pixels.index_select(0, places)
        others = np.flatnonzero(~kept)
        first, number = numbered(shown[others])
        self._read_all(shown[others[first]], out, others[first])
        again = np.delete(others, first)
        if len(again):
            same = others[first][np.delete(number, first)]
            out[torch.from_numpy(again)] = out[torch.from_numpy(same)]
        return out, ~self.unreadable[shown]

    def _read_all(self, images: np.ndarray, out: Tensor, places: np.ndarray) -> None:
        """Into `out[places]`; what cannot be read is listed in that order."""
        # By numpy: torch would share out every copy over as many threads again.
        into = out.numpy()
        left = np.flatnonzero(~self._by_processes(images, into, places))
        images, places = images[left], places[left]
        # Threads take a few at a time, and come back: some images take longer than others.
        each = max(1, ceil(len(images) / (4 * self.workers)))
        parts = [slice(start, start + each) for start in range(0, len(images), each)]
        found = self.pool.map(lambda part: self._read_part(images[part], into, places[part]), parts)
        for image, error in zip(images, chain.from_iterable(found), strict=True):
            if error is not None:
                self.unreadable[image] = True
                self.quarantine.add(self.manifest.image_name(int(self.first[image])), str(error))

    def _read_part(
        self, images: np.ndarray, out: np.ndarray, places: np.ndarray
    ) -> list[ImageError | None]:
        errors: list[ImageError | None] = [None] * len(images)
        for number in range(len(images)):
            image, place = int(images[number]), out[places[number]]
            if self._found(image, place):
                continue
            source = self.manifest.image_source(int(self.first[image]))
            try:
                pixels = read_pixels(source, self.size, max_pixels=self.config.max_pixels)
            except ImageError as error:
                place.fill(0)
                errors[number] = error
                continue
            np.copyto(place, pixels)
            if self.kept is not None:
                self.kept.put(image, pixels)
        return errors

    def _found(self, image: int, place: np.ndarray) -> bool:
        """Whether there is nothing to decode: it is in its place, or known to be unreadable."""
        if self.unreadable[image]:
            place.fill(0)
            return True
        if self.kept is None or not self.kept.find(image):
            return False
        np.copyto(place, self.kept.pixels.numpy()[self.kept.slot[image]])
        return True

    def _by_processes(self, images: np.ndarray, out: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Those of the images, bool, that processes have put in their places for us."""
        managed = np.zeros(len(images), dtype=bool)
        if self.decoders is None:
            self.get_ready()
        if self.decoders is None:
            return managed
        asked = np.flatnonzero(self.decoders.in_files[images] & ~self.unreadable[images])
        wanted, into = images[asked], places[asked]
        keep = isinstance(self.kept, Pack) and self.kept.problem is None
        for part, found in self.decoders.managed(wanted, keep=keep):
            managed[asked[part]] = found.good
            _copied(found.pixels, out, into[part])  # ours will write over what is not good
            self._keep(wanted[part], found)
        return managed

    def _keep(self, images: np.ndarray, found: decoders.Managed) -> None:
        if isinstance(self.kept, Pack):
            self.kept.have[images[found.kept]] = True
            self.kept.problem = self.kept.problem or found.problem
        elif isinstance(self.kept, InMemory):
            # No others: another thread may have read and kept one of those meanwhile.
            good = images[found.good]
            self.kept.pixels.numpy()[good] = found.pixels[found.good]
            self.kept.have[good] = True

    def get_ready(self) -> None:
        """Start the processes that decode, if there are to be any."""
        with self._starting:
            if not self.processes or self.decoders is not None:
                return
            files = self.kept.files if isinstance(self.kept, Pack) else None
            images = decoders.Listing.at(self.manifest.image_files(self.first), files)
            try:
                self.decoders = decoders.Decoders(
                    self.workers, self.size, self.config.max_pixels, images
                )
            except OSError:  # no process or file may be opened any more: threads will do
                self.processes = False


def _copied(pixels: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
    """`out[places] = pixels`, in one go where their places follow each other."""
    start = int(places[0])
    if np.array_equal(places, np.arange(start, start + len(places))):
        np.copyto(out[start : start + len(places)], pixels)
    else:
        out[places] = pixels


def numbered(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images in the order of their first rows: that row of each, and the image of every row."""
    _, first, code = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return first[order], place[code]


def in_parts(rows: np.ndarray) -> list[np.ndarray]:
    """All at once might be more than there is memory for: an image may be in many rows."""
    return np.split(rows, range(PART, len(rows), PART))


def open_source(
    manifest: Manifest | Given,
    size: int,
    config: DataConfig,
    quarantine: Quarantine,
    device: torch.device | None = None,
) -> FeatureSource | ImageSource | OnDevice:
    """`device` is where all rows will be wanted: a GPU then holds a small set whole."""
    if manifest.has_features:
        return FeatureSource(manifest)
    count = len(np.unique(manifest.image_ids))
    there = device if fits_on(device, count * 3 * size**2, config.cache_gib) else None
    if there is not None:
        config = replace(config, cache_gib=0.0)  # what the GPU holds need not be held twice
    beside_gpu = device is not None and device.type == "cuda"
    images = ImageSource(manifest, size, config, quarantine, processes=beside_gpu)
    images.get_ready()  # while a network is made
    return images if there is None else OnDevice(images, there)


def pack_images(
    manifest: Manifest,
    size: int,
    config: DataConfig,
    quarantine: Quarantine,
    watch: Watch = unwatched,
) -> Pack:
    """Decode all images of a manifest into a pack on disk that stays; goes on after a kill."""
    if user_cache("images") is None:
        raise ConfigError(f"there is no folder to keep images in; set {VARIABLE} to one")
    source = ImageSource(manifest, size, config, quarantine, keep=True, processes=True)
    if not isinstance(source.kept, Pack):
        raise ConfigError(
            f"{user_cache('images')} takes no pack of images; set {VARIABLE} to a folder that can "
            f"be written to, on a file system that maps files into memory"
        )
    pack, count = source.kept, len(source.first)
    for start in range(0, count, EVALUATION_BATCH):
        some = np.arange(start, min(start + EVALUATION_BATCH, count))
        good = source.take_images(some)[1]
        if pack.problem is not None:
            raise write_error(pack.folder, pack.problem)
        assert pack.have[some[good]].all()
        watch("images", start + len(some), count, "")
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
    lanes = _lanes(source)
    with ThreadPoolExecutor(lanes, "ahead") as pool:  # reads on while a network works
        ahead = deque(pool.submit(source.take, rows[places]) for places in parts[:lanes])
        for number, places in enumerate(parts, start=lanes):
            stored, good = ahead.popleft().result()
            ahead += [pool.submit(source.take, rows[next_]) for next_ in parts[number : number + 1]]
            if good.all():
                yield places, stored
            elif good.any():
                yield places[good], stored[torch.from_numpy(good)]
            watch("images", int(places[-1]) + 1, len(rows), "")


def _lanes(source: Source) -> int:
    """Batches that are read side by side: two keep processes busy while one is waited for."""
    images = source.source if isinstance(source, OnDevice) else source
    return 2 if isinstance(images, ImageSource) and images.processes else 1


@dataclass(frozen=True)
class Images:
    """Unlabelled images (or feature rows) of one domain, as stored; they can be read repeatedly."""

    stored: Tensor  # [n, 3, h, w] uint8, or [n, f]
    device: torch.device

    def __len__(self) -> int:
        return len(self.stored)

    def batches(self, most: int = EVALUATION_BATCH) -> Iterator[Tensor]:
        """Even batches of at most `most`, as a network takes them: a last batch of one image
        would have no statistics."""
        for part in self.stored.tensor_split(ceil(len(self) / most)):
            yield to_float(part, self.device)


def to_float(stored: Tensor, device: torch.device) -> Tensor:
    """Stored rows as a network takes them: images in 0..1, features as they are."""
    moved = stored.to(device, non_blocking=True)
    if moved.dtype != torch.uint8:
        return moved
    return moved.to(torch.float32, memory_format=torch.channels_last).div_(255)
