"""Which rows each step uses, as a pure function of the step, and their loading ahead of time.

Because a step's rows depend only on (seed, step), a resumed run needs no sampler state, and every
process can work out its own share of the same batch.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.errors import ManifestError
from acclimate.core.randomness import stream
from acclimate.data.augment import augment, draw
from acclimate.data.columns import first_rows
from acclimate.data.source import Source, sent, to_float
from acclimate.records.folder import QUARANTINE

RATIOS = np.exp(np.linspace(-np.log(64), np.log(64), 49))  # [K], what r may be
ROUNDS = 100  # of EM: more change the weights, but nothing that follows from them
OPEN = 0.1  # weight that stays with ratios which no training domain shows: a new one may
MOST_CELLS = 20_000  # (domain, class) pairs: as many say all there is to say


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


def label_prior(counts: np.ndarray) -> np.ndarray:
    """Class frequencies over domains that count equally: [N, C] -> [C]"""
    return np.asarray((counts / counts.sum(1, keepdims=True)).mean(0))


def label_shifts(counts: np.ndarray) -> np.ndarray:
    """`Batch.shift` of each domain's rows: [N, C] -> [N, C]

    One image more, shared out as over all domains, keeps what a small domain lacks possible.
    """
    prior = label_prior(counts)
    frequencies = (counts + prior) / (counts.sum(1, keepdims=True) + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(prior > 0, np.log(frequencies) - np.log(prior), 0.0)


def fit_ratios(counts: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """How label frequencies vary between domains: weights of `RATIOS`, [K], sum to 1.

    A class of a domain is r times as frequent as over all domains. The weights say how these r are
    distributed, over all classes and domains, whatever shape that distribution has: what a new
    domain's frequencies are expected to be before one of its images was seen.

    counts [N, C] of each domain's classes; prior [C], frequencies over all domains. A count is
    Poisson with mean n_d · prior_c · r, and the weights are the likeliest ones (Kiefer and
    Wolfowitz 1956), by EM from equal weights. Classes that no domain has tell nothing.
    """
    known = prior > 0
    expected = (counts.sum(1, keepdims=True) * prior)[:, known].ravel()
    observed = counts[:, known].ravel()
    if len(observed) > MOST_CELLS:
        chosen = stream(0, "ratios").choice(len(observed), MOST_CELLS, replace=False)
        expected, observed = expected[chosen], observed[chosen]
    logs = observed[:, None] * np.log(RATIOS) - expected[:, None] * RATIOS
    likelihood = np.exp(logs - logs.max(1, keepdims=True))
    weights = np.full(len(RATIOS), 1 / len(RATIOS))
    for _ in range(ROUNDS):
        shares = likelihood * weights
        weights = (shares / shares.sum(1, keepdims=True)).mean(0)
    return np.asarray((1 - OPEN) * weights + OPEN / len(RATIOS))


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
        missing = self.per_domain
        epoch, place = divmod(turn * missing, len(self.domains[domain]))
        while missing:
            part = self._epoch(domain, epoch)[place : place + missing]
            yield part
            missing, epoch, place = missing - len(part), epoch + 1, 0

    def _shuffled_round(self, turn: int) -> np.ndarray:
        return stream(self.seed, "round", turn).permutation(len(self.domains))

    def _shuffled_epoch(self, domain: int, epoch: int) -> np.ndarray:
        return stream(self.seed, "epoch", domain, epoch).permutation(self.domains[domain])


class EpisodeSampler:
    """Rounds of Algorithm 1: N_t random domains, disjoint support and query rows from each.

    Rows come domain by domain, support before query. A domain smaller than its share repeats
    support among support and query among query, so that they stay disjoint. A picture that several
    rows show (`pictures`, by row) counts once in a domain.
    """

    def __init__(
        self,
        domains: Sequence[np.ndarray],
        *,
        per_domain: int,
        domains_per_step: int,
        support: float,
        seed: int,
        pictures: np.ndarray | None = None,
    ) -> None:
        if pictures is not None:
            domains = [first_rows(rows, pictures) for rows in domains]
        self.domains, self.per_domain, self.seed = domains, per_domain, seed
        self.slots = min(domains_per_step, len(domains))
        self.support = support_size(per_domain, support)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(self.seed, "episode", step)
        chosen = rng.permutation(len(self.domains))[: self.slots]
        rows = [self._split(rng.permutation(self.domains[domain])) for domain in chosen]
        return np.concatenate(rows), np.repeat(chosen, self.per_domain)

    def _split(self, shuffled: np.ndarray) -> np.ndarray:
        rows = shuffled[: self.per_domain]
        cut = support_size(len(rows), self.support / self.per_domain)
        query = self.per_domain - self.support
        return np.concatenate([np.resize(rows[:cut], self.support), np.resize(rows[cut:], query)])


def support_size(count: int, share: float) -> int:
    """How many of `count` images make the prototype: `share` of them, at least 1 on each side."""
    return min(max(round(count * share), 1), count - 1)


class _Share(NamedTuple):
    """This process's share of a step."""

    step: int
    size: int  # of the whole batch
    share: slice
    rows: np.ndarray
    domains: np.ndarray


@dataclass(frozen=True)
class Loader:
    """This process's batches, decoded ahead and, for images, augmented on the device."""

    source: Source
    sampler: Sampler
    domains: Sequence[np.ndarray]
    world: World
    seed: int
    augmented: bool

    def batches(self, start: int, stop: int) -> Generator[Batch]:
        """Batches of steps `start`..`stop`-1."""
        pending: deque[_Share] = deque()

        def parts() -> Iterator[np.ndarray]:
            for step in range(start, stop):
                pending.append(self._draw(step))
                yield pending[-1].rows

        with closing(self.source.stream(parts(), np.concatenate(self.domains))) as read:
            for stored, good in read:
                yield self._finish(pending.popleft(), stored, good)

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        return next(self.batches(step, step + 1))

    def _draw(self, step: int) -> _Share:
        rows, domains = self.sampler.rows(step)
        share = self.world.share(len(rows))
        return _Share(step, len(rows), share, rows[share], domains[share])

    def _finish(self, part: _Share, stored: Tensor, good: np.ndarray) -> Batch:
        labels = self.source.labels[part.rows]
        for place in np.flatnonzero(~good):
            domain = self.domains[part.domains[place]]
            row, image = self._substitute(int(part.rows[place]), domain)
            stored[place], labels[place] = image, self.source.labels[row]
        device, side = self.world.device, stored.shape[-1]
        x = to_float(stored, device)
        if self.augmented:
            # For the whole batch, so that a sample looks the same whichever process handles it.
            numbers = draw(part.size, side, side, stream(self.seed, "augment", part.step))
            x = augment(x, numbers.take(part.share))
            x = x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x
        return Batch(x, sent(torch.from_numpy(labels), device), torch.from_numpy(part.domains))

    def _substitute(self, row: int, domain: np.ndarray) -> tuple[int, Tensor]:
        """The next readable row of an unreadable row's domain, and what is stored of it."""
        start = int(np.flatnonzero(domain == row)[0])
        for candidate in np.roll(domain, -start)[1:]:
            image, good = self.source.take(np.array([candidate]))
            if good[0]:
                return int(candidate), image[0]
        raise ManifestError(
            f"a training domain has no readable image at all; see {QUARANTINE} in the run folder"
        )
