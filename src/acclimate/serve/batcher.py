"""Images of all sites in one batch: one pass of the backbone, and each row by its site's head."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from acclimate.core.errors import NotFinite, QueueFull
from acclimate.core.tensors import require_finite
from acclimate.core.text import count
from acclimate.data.source import to_float
from acclimate.learn.embeddings import Embedding
from acclimate.learn.models import Backbone, Head
from acclimate.learn.models.predictors import HeadsByDomain

# Seconds by which each image of a call lets others go first: one of many images holds up nobody.
PACE = 0.02
ROOM = 1 << 28  # bytes of what is a head's own, of heads that are kept for later batches


class Made(NamedTuple):
    """What the batcher gives for a job: [n, …] on the CPU."""

    logits: Tensor | None  # where the job has a head
    features: Tensor | None  # where it has none, or wants both
    phi: Tensor | None  # where it asks for Φ of images


@dataclass(eq=False)
class Job:
    """Images [n, 3, h, w] uint8 for a backbone, and who classifies its features."""

    backbone: Backbone
    stored: Tensor
    head: Head | None = None
    phi: Embedding | None = None  # of images
    features: bool = False  # whether they are wanted beside logits
    turn: float = 0.0  # the smallest is next
    result: "Future[Made]" = field(default_factory=Future)

    def __len__(self) -> int:
        return len(self.stored)


class Batcher:
    """One thread that runs the jobs of many others, in batches of at most `most` images.

    A batch waits for `wait` seconds until it is full, or until nobody else is on the way. `room`
    bounds the images that are on the way: beyond, callers get `QueueFull`.
    """

    def __init__(
        self,
        *,
        most: int = 64,
        wait: float = 0.005,
        room: int = 2048,
        told: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        self.most, self.wait, self.room, self.told = most, wait, room, told
        self._jobs: list[Job] = []
        self._change = threading.Condition()
        self._coming = 0  # images that there is room for,
        self._awaited = 0  # and those of them that are not here yet
        self._closed = False
        self._heads = HeadsByDomain()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Images on the way."""
        return self._coming

    @contextmanager
    def reserve(self, images: int) -> Iterator["Reservation"]:
        """Room for a call's images, from before they are decoded until they are answered."""
        with self._change:
            if self._coming and self._coming + images > self.room:
                raise QueueFull(
                    f"{count(self._coming, 'image')} are waiting and {self.room} may; "
                    f"try again in a moment"
                )
            self._coming += images
            self._awaited += images
        reservation = Reservation(self, images)
        try:
            yield reservation
        finally:
            with self._change:
                self._coming -= images
                self._awaited -= reservation.left
                self._change.notify()

    def add(self, job: Job, awaited: int) -> None:
        """A job, with so many images that were waited for."""
        with self._change:
            if self._closed:
                raise QueueFull("the server is stopping; try again in a moment")
            self._jobs.append(job)
            self._awaited -= awaited
            self._change.notify()

    def close(self) -> None:
        """Finish what is waiting, and stop."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            start = monotonic()
            try:
                results: Sequence[Made | Exception] = self._run(batch)
            except Exception as error:  # is the callers', and others go on
                results = [error] * len(batch)
            self.told(sum(map(len, batch)), monotonic() - start)
            for job, result in zip(batch, results, strict=True):
                if isinstance(result, Made):
                    job.result.set_result(result)
                else:
                    job.result.set_exception(result)

    def _next(self) -> list[Job]:
        """The next batch, for one backbone; empty once all is done and closed."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            first = min(self._jobs, key=lambda job: job.turn)
            self._change.wait_for(lambda: self._full(first.backbone), self.wait)
            batch, images = list[Job](), 0
            for job in sorted(self._jobs, key=lambda job: job.turn):
                if job.backbone is first.backbone and images + len(job) <= self.most:
                    batch.append(job)
                    images += len(job)
            taken = {id(job) for job in batch}
            self._jobs = [job for job in self._jobs if id(job) not in taken]
            return batch

    def _full(self, backbone: Backbone) -> bool:
        """Whether there is nothing to wait for: a whole batch, or nobody on the way."""
        ready = sum(len(job) for job in self._jobs if job.backbone is backbone)
        return self._closed or ready >= self.most or not self._awaited

    @torch.no_grad()
    def _run(self, batch: Sequence[Job]) -> list[Made | Exception]:
        """One pass for all, and then each job's own: logits, or features."""
        backbone, sizes = batch[0].backbone, [len(job) for job in batch]
        images = to_float(torch.cat([job.stored for job in batch]), backbone.mean.device)
        features = torch.split(backbone(images), sizes)
        asking = [place for place, job in enumerate(batch) if job.head is not None]
        heads = [job.head for job in batch if job.head is not None]
        logits = self._classify(heads, [features[place] for place in asking]) if heads else ()
        by_place = dict(zip(asking, logits, strict=True))
        parts = zip(batch, features, torch.split(images, sizes), strict=True)
        results = list[Made | Exception]()
        for place, (job, own, seen) in enumerate(parts):
            try:
                results.append(_made(job, by_place.get(place), own, seen))
            except NotFinite as error:
                results.append(error)
        return results

    def _classify(self, heads: Sequence[Head], features: Sequence[Tensor]) -> Sequence[Tensor]:
        """Logits of each part by its own head."""
        for head in heads:
            if head not in self._heads:
                self._heads.put(head, head)
        sizes = [len(part) for part in features]
        own = [head for head, size in zip(heads, sizes, strict=True) for _ in range(size)]
        logits = self._heads.logits(torch.cat(list(features)), own)
        self._heads.trim(ROOM)
        return torch.split(logits.float().cpu(), sizes)


def _made(job: Job, logits: Tensor | None, features: Tensor, images: Tensor) -> Made:
    """What a job asked for, on the CPU."""
    if logits is not None:
        require_finite(logits, "a prediction")
    wanted = job.head is None or job.features
    return Made(
        logits,
        features.float().cpu() if wanted else None,
        None if job.phi is None else job.phi.phi(images).float().cpu(),
    )


@dataclass(eq=False)
class Reservation:
    """Room for the images of one call, which come in parts."""

    batcher: Batcher
    images: int
    sent: int = 0

    @property
    def left(self) -> int:
        """Images that may still come."""
        return max(self.images - self.sent, 0)

    def submit(
        self,
        backbone: Backbone,
        stored: Tensor,
        head: Head | None = None,
        phi: Embedding | None = None,
        *,
        features: bool = False,
    ) -> "Future[Made]":
        """Logits of `head` for a part of at most a batch, with its features if asked for; without
        one its features."""
        turn, before = monotonic() + PACE * self.sent, self.left
        self.sent += len(stored)
        job = Job(backbone, stored, head, phi, features, turn)
        self.batcher.add(job, before - self.left)
        return job.result

    def run(self, backbone: Backbone, stored: Tensor, phi: Embedding | None = None) -> Made:
        """Features of any number of images, once they are there."""
        parts = torch.split(stored, self.batcher.most)
        jobs = [self.submit(backbone, part, None, phi) for part in parts]
        made = [job.result() for job in jobs]
        return Made(*(_joined(parts) for parts in zip(*made, strict=True)))


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    some = [part for part in parts if part is not None]
    return torch.cat(some) if some else None
