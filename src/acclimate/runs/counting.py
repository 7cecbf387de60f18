"""How many rows classifiers get right. Images are read once, and pass each backbone once, however
many classifiers are counted; and once in several passes, where they are remembered."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.data.on_device import sent
from acclimate.data.source import Shown, in_parts, numbered, readable, to_float
from acclimate.learn.models import Backbone, Predictor
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


class Remembered:
    """What a backbone makes of images that are to pass it again."""

    def __init__(self, backbone: Backbone, wanted: np.ndarray) -> None:
        """`wanted` [images of a source], bool"""
        self.backbone = backbone
        self.have = np.zeros(len(wanted), dtype=bool)
        self._place = np.where(wanted, np.cumsum(wanted) - 1, -1)
        self._count = int(wanted.sum())
        self._features: Tensor | None = None

    def keep(self, images: np.ndarray, passed: Passed) -> None:
        places = self._place[images]
        chosen = np.flatnonzero(places >= 0)
        if not len(chosen):
            return
        features = passed.features(self.backbone)
        if self._features is None:
            try:
                self._features = features.new_empty((self._count, *features.shape[1:]))
            except torch.OutOfMemoryError:  # then they pass again
                self._place[:] = -1
                return
        of, to = torch.from_numpy(chosen), torch.from_numpy(places[chosen])
        device = features.device
        self._features[sent(to, device)] = features[sent(of, device)]
        self.have[images[chosen]] = True

    def passed(self, images: np.ndarray) -> Passed:
        """Images that it has, as if they passed."""
        assert self._features is not None
        places = sent(torch.from_numpy(self._place[images]), self._features.device)
        return Passed.before(self.backbone, self._features[places])


@torch.no_grad()
def count_each(
    candidates: Sequence[Candidate],
    source: Shown,
    rows: np.ndarray,
    world: World,
    known: Remembered | None = None,
) -> list[Counts]:
    """How many readable `rows` each candidate gets right."""
    if not candidates:
        return []
    totals = torch.zeros(len(candidates), 4, dtype=torch.float64, device=world.device)
    places: dict[Predictor, list[int]] = {}  # several share the logits of one predictor
    for place, candidate in enumerate(candidates):
        places.setdefault(candidate.predictor, []).append(place)
    if known is not None and any(one.backbone is not known.backbone for one in places):
        known = None
    for seen in labelled_batches(source, rows, world, known):
        for predictor, own in places.items():
            logits = seen.logits(predictor)
            for place in own:
                prior = candidates[place].log_prior
                shifted = logits if prior is None else logits + prior
                totals[place] += _found(shifted, seen.labels).sum(0)
    return Counts.of(world.sum(totals))


@torch.no_grad()
def count_by_group(
    predictor: Predictor,
    source: Shown,
    rows: np.ndarray,
    group: np.ndarray,
    groups: int,
    world: World,
    *,
    mu: Tensor | None = None,
    told: Callable[[Tensor, Tensor, np.ndarray], None] | None = None,
    known: Remembered | None = None,
) -> list[Counts]:
    """The same of one predictor for many groups of rows in one pass; `mu` [groups, d] goes with
    each group. `told` gets the logits, labels and groups of each batch."""
    totals = torch.zeros(groups, 4, dtype=torch.float64, device=world.device)
    for seen in labelled_batches(source, rows, world, known):
        of = sent(torch.from_numpy(group[seen.places]), world.device)
        logits = seen.logits(predictor, None if mu is None else mu[of])
        totals.index_add_(0, of, _found(logits, seen.labels))
        if told is not None:
            told(logits, seen.labels, group[seen.places])
    return Counts.of(world.sum(totals))


def _found(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each row: 1, whether it is right, or among five, and its loss: [b, C], [b] -> [b, 4]"""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    losses = F.cross_entropy(logits, labels, reduction="none")
    found = (torch.ones_like(labels), best[:, 0], best.any(1), losses)
    return torch.stack([column.double() for column in found], dim=1)


@dataclass(frozen=True)
class Seen:
    """Some rows of a pass over images: what networks see, and labels and places of the rows."""

    passed: Passed
    which: Tensor | None  # [n]: the image that each row shows; None: as they come
    labels: Tensor
    places: np.ndarray

    def logits(self, predictor: Predictor, mu: Tensor | None = None) -> Tensor:
        return self.passed.logits(predictor, mu, self.which).float()


def labelled_batches(
    source: Shown, rows: np.ndarray, world: World, known: Remembered | None = None
) -> Iterator[Seen]:
    """This process's share of what can be read of `rows`. An image is read once, and passes a
    network once, however many of them show it; where it is `known`, neither."""
    first, image = numbered(source.image[rows])
    by_image = np.argsort(image, kind="stable")
    start = np.searchsorted(image[by_image], np.arange(len(first) + 1))
    mine = np.arange(len(first))[world.share(len(first))]
    for images, passed in _passed(source, rows[first], mine, world, known):
        shown = np.concatenate([by_image[start[one] : start[one + 1]] for one in images])
        which = np.repeat(np.arange(len(images)), start[images + 1] - start[images])
        several = len(shown) > len(images)
        for part in in_parts(np.arange(len(shown))):
            places = shown[part]
            labels = torch.from_numpy(source.labels[rows[places]])
            yield Seen(
                passed,
                sent(torch.from_numpy(which[part]), world.device) if several else None,
                sent(labels, world.device),
                places,
            )


def _passed(
    source: Shown, rows: np.ndarray, mine: np.ndarray, world: World, known: Remembered | None
) -> Iterator[tuple[np.ndarray, Passed]]:
    """Those at the places `mine` of `rows`, each of which shows another image, in batches."""
    images = source.image[rows]
    if known is not None:
        there = known.have[images[mine]]
        for some in in_parts(mine[there]):
            if len(some):
                yield some, known.passed(images[some])
        mine = mine[~there]
    for found, stored in readable(source, rows[mine]):
        some, passed = mine[found], Passed(to_float(stored, world.device))
        if known is not None:
            known.keep(images[some], passed)
        yield some, passed
