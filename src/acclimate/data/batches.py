"""Which rows each step uses, as a pure function of the step, and their loading ahead of time.

Because a step's rows depend only on (seed, step), a resumed run needs no sampler state, and every
process can work out its own share of the same batch.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.errors import ManifestError
from acclimate.core.layout import QUARANTINE
from acclimate.core.randomness import stream
from acclimate.data.augment import Draws, Numbers, draw
from acclimate.data.on_device import Held, OnDevice, SideStream, sent
from acclimate.data.recorded import Recorder, augmented_images
from acclimate.data.source import ImageSource, Source, to_float

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Rows of several domains. `domain` indexes the training domains; `mu` is each row's μ.

    `domain` stays on the host: how many domains there are, and which rows are whose, must be known
    without waiting for the device that the rest is on.

    `shift` is what knowing the label frequencies of a row's domain adds to its logits: their log,
    less that of the frequencies over all training domains.
    """

    x: Tensor  # [b, 3, h, w] in 0..1, or [b, f]
    y: Tensor  # [b]
    domain: Tensor  # [b]
    mu: Tensor | None = None  # [b, d], standardised
    shift: Tensor | None = None  # [b, C], in prior-aware training

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor | slice) -> "Batch":
        """Some of the rows, by a slice or by their numbers, which are the host's."""

        def some(part: Tensor) -> Tensor:
            return part[rows if isinstance(rows, slice) else sent(rows, part.device)]

        parts = (self.x, self.y, self.domain, self.mu, self.shift)
        return Batch(*(None if part is None else some(part) for part in parts))  # type: ignore[arg-type]

    def part(self, index: int, count: int) -> "Batch":
        """Every `count`-th row, so that each part holds every domain in equal measure."""
        return self.take(slice(index, None, count))


def label_counts(labels: np.ndarray, domains: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """Rows of each class in each domain, whose rows `domains` lists: [N, C]"""
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in domains])


def label_prior(counts: np.ndarray) -> np.ndarray:
    """Class frequencies over domains that count equally: [N, C] -> [C]"""
    return np.asarray((counts / counts.sum(1, keepdims=True)).mean(0))


def label_shifts(counts: np.ndarray) -> np.ndarray:
    """`Batch.shift` of each domain's rows: [N, C] -> [N, C]

    One image more, shared out as over all domains, keeps what a small domain lacks possible.
    """
    prior = label_prior(counts)
    own = (counts + prior) / (counts.sum(1, keepdims=True) + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(prior > 0, np.log(own) - np.log(prior), 0.0)


class Sampler(Protocol):
    """Rows and domain numbers of the whole batch of a step, over all processes."""

    per_domain: int

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]: ...


class DomainSampler:
    """Equal shares of `domains_per_step` domains; each domain is passed over in shuffled epochs.

    Domains take turns in shuffled rounds, so that each has been seen equally often. At the seam of
    two rounds a domain can fall twice into one batch; a domain smaller than its share repeats rows.
    """

    def __init__(
        self, domains: Sequence[np.ndarray], *, per_domain: int, domains_per_step: int, seed: int
    ) -> None:
        self.domains, self.per_domain, self.seed = domains, per_domain, seed
        self.slots = min(domains_per_step, len(domains))
        self._round = lru_cache(maxsize=4)(self._shuffled_round)
        self._epoch = lru_cache(maxsize=4 * len(domains))(self._shuffled_epoch)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        chosen: list[int] = []
        rows: list[np.ndarray] = []
        for slot in range(step * self.slots, (step + 1) * self.slots):
            turn, place = divmod(slot, len(self.domains))
            chosen.append(int(self._round(turn)[place]))
            rows += self._turn(chosen[-1], turn)
        return np.concatenate(rows), np.repeat(chosen, self.per_domain)

    def _turn(self, domain: int, turn: int) -> Iterator[np.ndarray]:
        """The rows of a domain's turn, a part from each epoch that it touches."""
        wanted = self.per_domain
        epoch, place = divmod(turn * wanted, len(self.domains[domain]))
        while wanted:
            part = self._epoch(domain, epoch)[place : place + wanted]
            yield part
            wanted, epoch, place = wanted - len(part), epoch + 1, 0

    def _shuffled_round(self, turn: int) -> np.ndarray:
        return stream(self.seed, "round", turn).permutation(len(self.domains))

    def _shuffled_epoch(self, domain: int, epoch: int) -> np.ndarray:
        return stream(self.seed, "epoch", domain, epoch).permutation(self.domains[domain])


class EpisodeSampler:
    """Rounds of Algorithm 1: N_t random domains, disjoint support and query rows from each.

    Rows come domain by domain, support before query. A domain smaller than its share repeats
    support among support and query among query, so that they stay disjoint.
    """

    def __init__(
        self,
        domains: Sequence[np.ndarray],
        *,
        per_domain: int,
        domains_per_step: int,
        support: float,
        seed: int,
    ) -> None:
        self.domains, self.per_domain, self.seed = domains, per_domain, seed
        self.slots = min(domains_per_step, len(domains))
        self.support = support_size(per_domain, support)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(self.seed, "episode", step)
        chosen = rng.permutation(len(self.domains))[: self.slots]
        rows = [self._split(rng.permutation(self.domains[domain])) for domain in chosen]
        return np.concatenate(rows), np.repeat(chosen, self.per_domain)

    def _split(self, shuffled: np.ndarray) -> np.ndarray:
        drawn = shuffled[: self.per_domain]
        cut = support_size(len(drawn), self.support / self.per_domain)
        query = self.per_domain - self.support
        return np.concatenate([np.resize(drawn[:cut], self.support), np.resize(drawn[cut:], query)])


def support_size(count: int, share: float) -> int:
    """How many of `count` images make the prototype: `share` of them, at least 1 on each side."""
    return min(max(round(count * share), 1), count - 1)


@dataclass(frozen=True)
class _Loaded:
    """What threads make of a step's rows, on the device: images as stored, or features."""

    stored: Tensor
    y: Tensor
    domain: Tensor
    numbers: Numbers | None  # of images that are to be augmented


@dataclass(frozen=True)
class Loader:
    """This process's batches, decoded and, for images, augmented on the device."""

    source: Source
    sampler: Sampler
    domains: Sequence[np.ndarray]
    world: World
    seed: int
    augmented: bool
    ahead: int = 2

    def batches(self, start: int, stop: int) -> Generator[Batch]:
        """Batches of steps `start`..`stop`-1, `ahead` of them being loaded in the background."""
        # Closed here: an error that comes out of a future keeps all frames that it went through.
        if self.world.device.type == "cuda":
            with closing(self._in_background(start, stop, self._loaded_aside())) as loaded:
                yield from self._finished_ahead(loaded)
        else:
            with closing(self._in_background(start, stop, self.batch)) as made:
                for _, future in made:
                    yield future.result()

    def _in_background(
        self, start: int, stop: int, load: Callable[[int], T]
    ) -> Generator[tuple[int, "Future[T]"]]:
        """The steps, and what threads make of them, as many being made as are `ahead`."""
        # For a GPU two threads: while one waits for its copy, the other keeps the decoders busy.
        workers = 2 if self.world.device.type == "cuda" else 1
        with ThreadPoolExecutor(workers, "batches") as pool:
            waiting: deque[tuple[int, Future[T]]] = deque()
            try:
                for step in range(start, stop):
                    waiting.append((step, pool.submit(load, step)))
                    if len(waiting) > self.ahead:
                        yield waiting.popleft()
                while waiting:
                    yield waiting.popleft()
            finally:
                for _, future in waiting:
                    future.cancel()

    def _finished_ahead(self, loaded: Iterator[tuple[int, "Future[_Loaded]"]]) -> Iterator[Batch]:
        """On a GPU whoever trains augments, too: its calls are few beside those of a step, and made
        by another thread each would hold up the step for longer than it takes. The GPU does it
        beside the step before, on a stream of its own."""
        device = self.world.device
        side = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        recorder, again, held = Recorder(), self._loaded_aside(), Held()

        def begun(step: int, future: "Future[_Loaded]") -> tuple[Batch, torch.cuda.Event]:
            try:
                found = future.result()
            except torch.OutOfMemoryError:  # in the middle of a step; now there is none
                found = again(step)
            with torch.cuda.stream(side):
                batch, there = self._finished(found, recorder), side.record_event()
            held.until(there, found)  # which was made on a third stream, and is there
            return batch, there

        def given(batch: Batch, there: torch.cuda.Event) -> Iterator[Batch]:
            now = torch.cuda.current_stream(device)
            now.wait_event(there)
            try:
                yield batch
            finally:
                held.until(now.record_event(), batch)

        ahead: deque[tuple[Batch, torch.cuda.Event]] = deque()
        with held:
            for step, future in loaded:
                if ahead and not future.done():  # nobody waits for the next but one
                    yield from given(*ahead.popleft())
                ahead.append(begun(step, future))
                if len(ahead) > 1:
                    yield from given(*ahead.popleft())
            while ahead:
                yield from given(*ahead.popleft())

    def _loaded_aside(self) -> Callable[[int], _Loaded]:
        """On a stream of each thread's own."""
        own = threading.local()

        def load(step: int) -> _Loaded:
            if not hasattr(own, "side"):
                own.side = SideStream(self.world.device)
            side: SideStream = own.side
            return side(lambda: self._loaded(step, side.staging))

        return load

    def batch(self, step: int) -> Batch:
        return self._finished(self._loaded(step))

    def _loaded(
        self, step: int, staging: Callable[[tuple[int, ...]], Tensor] | None = None
    ) -> _Loaded:
        """`staging` gives memory to put images in on their way to the device."""
        rows, domains = self.sampler.rows(step)
        share = self.world.share(len(rows))
        stored, labels = self._readable(rows[share], domains[share], staging)
        device, side = self.world.device, stored.shape[-1]
        numbers = self._draws(step, len(rows), side, share).sent(device) if self.augmented else None
        y = sent(torch.from_numpy(labels), device)
        return _Loaded(sent(stored, device), y, torch.from_numpy(domains[share]), numbers)

    def _finished(
        self, loaded: _Loaded, by: Callable[[Tensor, Numbers], Tensor] = augmented_images
    ) -> Batch:
        if loaded.numbers is None:
            x = to_float(loaded.stored, self.world.device)
        else:
            x = by(loaded.stored, loaded.numbers)
        return Batch(x, loaded.y, loaded.domain)

    def _draws(self, step: int, count: int, side: int, share: slice) -> Draws:
        return draw(count, side, side, stream(self.seed, "augment", step)).take(share)

    def _readable(
        self,
        rows: np.ndarray,
        domains: np.ndarray,
        staging: Callable[[tuple[int, ...]], Tensor] | None,
    ) -> tuple[Tensor, np.ndarray]:
        """An unreadable row gives way to the next readable one of its domain."""
        if staging is not None and isinstance(self.source, ImageSource | OnDevice):
            size = self.source.size
            stored, good = self.source.take(rows, staging((len(rows), 3, size, size)))
        else:
            stored, good = self.source.take(rows)
        labels = self.source.labels[rows]
        for place in np.flatnonzero(~good):
            row, image = self._substitute(int(rows[place]), self.domains[domains[place]])
            stored[place], labels[place] = image, self.source.labels[row]
        return stored, labels

    def _substitute(self, row: int, domain: np.ndarray) -> tuple[int, Tensor]:
        start = int(np.flatnonzero(domain == row)[0])
        for candidate in np.roll(domain, -start)[1:]:
            image, good = self.source.take(np.array([candidate]))
            if good[0]:
                return int(candidate), image[0]
        raise ManifestError(
            f"a training domain has no readable image at all; see {QUARANTINE} in the run folder"
        )
