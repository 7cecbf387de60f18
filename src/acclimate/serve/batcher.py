"""Images of all sites in one batch: one pass of the backbone, and each row by its site's head."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from acclimate.core.errors import QueueFull
from acclimate.core.tensors import require_finite
from acclimate.core.text import count
from acclimate.data.source import to_float
from acclimate.learn.embeddings import Embedding
from acclimate.learn.models import Backbone, Head
from acclimate.learn.models.predictors import classify_by_domain

# Seconds by which each image of a call lets others go first: one of many images holds up nobody.
PACE = 0.02
STACKED = 16  # combinations of heads that are kept stacked


class Made(NamedTuple):
    """What the batcher gives for a job: [n, …] on the CPU."""

    logits: Tensor | None  # where the job has a head
    features: Tensor | None  # where it has none
    phi: Tensor | None  # where it asks for Φ of images


@dataclass(eq=False)
class Job:
    """Images [n, 3, h, w] uint8 for a backbone, and who classifies its features."""

    backbone: Backbone
    stored: Tensor
    head: Head | None = None
    phi: Embedding | None = None  # of images
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
        self._coming = 0  # images that callers have room for
        self._closed = False
        self._stacks: OrderedDict[tuple[Head, ...], Callable[[Tensor, Tensor], Tensor]]
        self._stacks = OrderedDict()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Images on the way."""
        return self._coming

    @contextmanager
    def reserve(self, images: int) -> Iterator[None]:
        """Room for so many images, from before they are decoded until they are answered."""
        with self._change:
            if self._closed or (self._coming and self._coming + images > self.room):
                raise QueueFull(
                    f"{count(self._coming, 'image')} are waiting and {self.room} may; "
                    f"try again in a moment"
                )
            self._coming += images
        try:
            yield
        finally:
            with self._change:
                self._coming -= images
                self._change.notify()

    def submit(
        self,
        backbone: Backbone,
        stored: Tensor,
        head: Head | None = None,
        phi: Embedding | None = None,
        *,
        behind: int = 0,
    ) -> "Future[Made]":
        """At most `most` images, for which the caller has reserved room. Logits of `head`, or
        without one the backbone's features, are there in a moment. `behind`: how many images of
        the same call are before these."""
        job = Job(backbone, stored, head, phi, monotonic() + PACE * behind)
        with self._change:
            if self._closed:
                raise QueueFull("the server is stopping; try again in a moment")
            self._jobs.append(job)
            self._change.notify()
        return job.result

    def run(self, backbone: Backbone, stored: Tensor, phi: Embedding | None = None) -> Made:
        """Features of any number of images, once they are there."""
        jobs = [
            self.submit(backbone, part, None, phi, behind=number * self.most)
            for number, part in enumerate(torch.split(stored, self.most))
        ]
        rows = [job.result() for job in jobs]
        return Made(*(_joined(parts) for parts in zip(*rows, strict=True)))

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
                self._run(batch)
            except Exception as error:  # is the callers', and others go on
                for job in batch:
                    if not job.result.done():
                        job.result.set_exception(error)
            self.told(sum(map(len, batch)), monotonic() - start)

    def _next(self) -> list[Job]:
        """The next batch, for one backbone; empty once all is done and closed."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            first = min(self._jobs, key=lambda job: job.turn)
            end = monotonic() + self.wait
            while not self._full(first.backbone) and (left := end - monotonic()) > 0:
                self._change.wait(left)
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
        everybody = sum(map(len, self._jobs)) >= self._coming
        return self._closed or ready >= self.most or everybody

    @torch.no_grad()
    def _run(self, batch: Sequence[Job]) -> None:
        backbone = batch[0].backbone
        device = backbone.mean.device
        x = to_float(torch.cat([job.stored for job in batch]), device)
        sizes = [len(job) for job in batch]
        parts = torch.split(backbone(x), sizes)
        pictures = torch.split(x, sizes)
        for job, features, images in zip(batch, parts, pictures, strict=True):
            if job.head is None:
                phi = None if job.phi is None else job.phi.phi(images).float().cpu()
                job.result.set_result(Made(None, features.float().cpu(), phi))
        asked = [(job, part) for job, part in zip(batch, parts, strict=True) if job.head]
        if not asked:
            return
        heads = list(dict.fromkeys(job.head for job, _ in asked if job.head is not None))
        numbers = {head: number for number, head in enumerate(heads)}
        which = [numbers[job.head] for job, _ in asked for _ in range(len(job)) if job.head]
        classify = self._stacked(tuple(heads))
        logits = classify(torch.cat([part for _, part in asked]), torch.tensor(which).to(device))
        own = torch.split(logits.float().cpu(), [len(job) for job, _ in asked])
        for (job, _), rows in zip(asked, own, strict=True):
            try:
                require_finite(rows, "a prediction")
            except Exception as error:
                job.result.set_exception(error)
            else:
                job.result.set_result(Made(rows, None, None))

    def _stacked(self, heads: tuple[Head, ...]) -> Callable[[Tensor, Tensor], Tensor]:
        """`classify_by_domain` of these heads, as it was made last time."""
        if heads not in self._stacks:
            self._stacks[heads] = classify_by_domain(heads)
            while len(self._stacks) > STACKED:
                self._stacks.popitem(last=False)
        self._stacks.move_to_end(heads)
        return self._stacks[heads]


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    some = [part for part in parts if part is not None]
    return torch.cat(some) if some else None
