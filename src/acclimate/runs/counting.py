"""How many rows classifiers get right. Images are read once, and pass each backbone once, however
many classifiers are counted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.data.on_device import sent
from acclimate.data.source import Source, readable, to_float
from acclimate.learn.models import Predictor
from acclimate.learn.models.passed import Passed


@dataclass(frozen=True)
class Counts:
    n: int
    top1: int
    top5: int
    loss: float = 0.0  # sum of cross-entropies

    @classmethod
    def of(cls, totals: Tensor) -> "list[Counts]":
        """[n, 4] as `_found` has them"""
        rows = totals.cpu().tolist()
        return [cls(int(n), int(top1), int(top5), loss) for n, top1, top5, loss in rows]


@dataclass(frozen=True)
class Candidate:
    """A plain (or folded) classifier, and what is added to its logits: [C]"""

    predictor: Predictor
    log_prior: Tensor | None = None


@torch.no_grad()
def count_each(
    candidates: Sequence[Candidate], source: Source, rows: np.ndarray, world: World
) -> list[Counts]:
    """How many readable `rows` each candidate gets right."""
    totals = torch.zeros(len(candidates), 4, dtype=torch.float64, device=world.device)
    for x, labels, _ in labelled_batches(source, rows, world):
        known = Passed(x)
        for place, candidate in enumerate(candidates):
            logits = known.logits(candidate.predictor).float()
            if candidate.log_prior is not None:
                logits = logits + candidate.log_prior
            totals[place] += _found(logits, labels).sum(0)
    return Counts.of(world.sum(totals))


@torch.no_grad()
def count_by_group(
    predictor: Predictor,
    source: Source,
    rows: np.ndarray,
    group: np.ndarray,
    groups: int,
    world: World,
    *,
    mu: Tensor | None = None,
    seen: Callable[[Tensor, Tensor, np.ndarray], None] | None = None,
) -> list[Counts]:
    """The same of one predictor for many groups of rows in one pass; `mu` [groups, d] goes with
    each group. `seen` is told the logits, labels and groups of each batch."""
    totals = torch.zeros(groups, 4, dtype=torch.float64, device=world.device)
    for x, labels, places in labelled_batches(source, rows, world):
        of = sent(torch.from_numpy(group[places]), world.device)
        logits = predictor(x, None if mu is None else mu[of]).logits.float()
        totals.index_add_(0, of, _found(logits, labels))
        if seen is not None:
            seen(logits, labels, group[places])
    return Counts.of(world.sum(totals))


def _found(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each row: 1, whether it is right, or among five, and its loss: [b, C], [b] -> [b, 4]"""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    losses = F.cross_entropy(logits, labels, reduction="none")
    found = (torch.ones_like(labels), best[:, 0], best.any(1), losses)
    return torch.stack([column.double() for column in found], dim=1)


def labelled_batches(
    source: Source, rows: np.ndarray, world: World
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """The readable of this process's share of `rows`: inputs, labels and places in `rows`."""
    mine = np.arange(len(rows))[world.share(len(rows))]
    for found, stored in readable(source, rows[mine]):
        places = mine[found]
        labels = torch.from_numpy(source.labels[rows[places]])
        yield to_float(stored, world.device), sent(labels, world.device), places
