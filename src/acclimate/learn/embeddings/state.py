"""DomainState: all that adaptation keeps of a domain."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.errors import DamagedFile, RunError, StateMismatch, damage_is
from acclimate.core.files import Fields, json_digest, parse_json
from acclimate.core.randomness import stream
from acclimate.core.tensors import (
    all_finite,
    below,
    fill,
    read_tensors,
    require_finite,
    save_tensors,
    tensors_digest,
)
from acclimate.data.source import Source, readable, to_float
from acclimate.learn.consistency import mean_radius
from acclimate.learn.embeddings.pictures import NO_NUMBERS, NO_PICTURES, PARTS, Pictures
from acclimate.learn.models import Backbone
from acclimate.learn.objective import Embedding

KIND = "domain state"
MOST_IMAGES = 1 << 53  # that a state counts: beyond, adding one changes nothing
MOST_SEEN = 50_000  # images whose hashes a state keeps, 8 bytes each, and that it may keep at all
MOST_POINTS = 1000  # whose Φ a `Sample` notes: 4 MB of 1024 float32 numbers each
SUMS = ("total", "squares", "reference")


@dataclass(frozen=True)
class DomainState:
    """Running sums of Φ over a domain's images, and some of its pictures: mergeable, updatable, and
    a sample can be removed.

    Sums are float64, so that the order of updates does not matter to float32 accuracy. `reach` is
    the largest distance of an image's Φ from `reference`, the mean of the first images seen: with
    it Theorem 1 has a bound on ‖Φ(x) − μ‖ that survives merging. It never shrinks.
    """

    model: str  # digest of the model whose Φ this is
    total: Tensor  # [d] Σ Φ(x)
    squares: Tensor  # [d] Σ Φ(x)²
    count: int
    reference: Tensor  # [d]
    reach: float = 0.0
    # What each step of the chain that it was adapted by needs to be applied again, by its name;
    # `embedding` needs nothing but the sums.
    payloads: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    # [k] int64: hashes of the images that were counted, sorted, the smallest of very many.
    seen: Tensor = NO_NUMBERS
    pictures: Pictures = NO_PICTURES  # all that were counted, or a sample

    @classmethod
    def empty(cls, model: str, dim: int) -> "DomainState":
        zeros = torch.zeros(dim, dtype=torch.float64)
        return cls(model, zeros, zeros, 0, zeros)

    @property
    def mean(self) -> Tensor:
        """μ: [d] float64."""
        if self.count == 0:
            raise StateMismatch("this domain state is empty; adapt it on at least one image")
        return self.total / self.count

    @property
    def holds_mu(self) -> bool:
        """The states of a model without Φ count images, and their sums are empty."""
        return len(self.total) > 0

    @property
    def whole(self) -> bool:
        """Whether its pictures are all that it has counted, and no sample."""
        return self.count <= len(self.pictures)

    @property
    def variance(self) -> float:
        """Mean of ‖Φ(x) − μ‖² over the images seen."""
        spread = self.squares / self.count - self.mean.square()
        return max(float(spread.sum()), 0.0)

    @property
    def sampling_variance(self) -> float | None:
        """σ² = E‖Φ(x) − μ‖² of the domain, estimated without bias; one image tells nothing."""
        variance = self.variance
        return variance * self.count / (self.count - 1) if self.count > 1 else None

    @property
    def bound(self) -> float:
        """At least ‖Φ(x) − μ‖ of every image seen (triangle inequality)."""
        return self.reach + float((self.mean - self.reference).norm())

    def radius(self, delta: float = 0.05) -> float | None:
        """Theorem 1's radius of μ, or None where there are too few images for it to hold."""
        variance = self.sampling_variance
        if variance is None:
            return None
        return mean_radius(self.count, variance, self.bound, delta=delta)

    def updated(self, phi: Tensor) -> "DomainState":
        """With the images whose features are `phi` [n, d]."""
        rows = phi.detach().to("cpu", torch.float64)
        if not len(rows):
            return self
        self.require_width(rows.shape[1])
        require_finite(rows, "the domain embedding of an image")
        reference = self.reference if self.count else rows.mean(0)
        reach = max(self.reach, float((rows - reference).norm(dim=1).max()))
        return replace(
            self,
            total=self.total + rows.sum(0),
            squares=self.squares + rows.square().sum(0),
            count=self.count + len(rows),
            reference=reference,
            reach=reach,
        )

    def removed(self, phi: Tensor, hashes: Tensor = NO_NUMBERS) -> "DomainState":
        """Without images that were counted before: their Φ [n, d], and their `hashes`. The bound
        stays; what methods learned of them goes."""
        rows = phi.detach().to("cpu", torch.float64)
        if len(rows) > self.count:
            raise StateMismatch(f"cannot remove {len(rows)} images from a state of {self.count}")
        return replace(
            self,
            total=self.total - rows.sum(0),
            squares=self.squares - rows.square().sum(0),
            count=self.count - len(rows),
            payloads=_without_methods(self.payloads),
            seen=self.seen[~torch.isin(self.seen, hashes)],
            pictures=self.pictures.take(~torch.isin(self.pictures.hashes, hashes)),
        )

    def note_seen(self, hashes: Tensor) -> "DomainState":
        """With images of these `hashes` written down."""
        return replace(self, seen=torch.unique(torch.cat([self.seen, hashes]))[:MOST_SEEN])

    def rescaled(self, centre: Tensor, spread: float) -> "DomainState":
        """The state that features (Φ − centre) / spread would have given."""
        middle = centre.detach().to("cpu", torch.float64)
        squares = self.squares - 2 * middle * self.total + self.count * middle.square()
        return replace(
            self,
            total=(self.total - self.count * middle) / spread,
            squares=squares / spread**2,
            reference=(self.reference - middle) / spread,
            reach=self.reach / spread,
        )

    def merged(self, other: "DomainState") -> "DomainState":
        """Both domains' images as one, as if seen together; an image of both counts twice in sums.
        What methods learned is made anew by `adapt(..., into=merged)`."""
        self.require(other.model)
        self.require_width(len(other.total))
        pictures = Pictures.union([self.pictures, other.pictures])
        kept = [len(state.pictures) for state in (self, other) if not state.whole]
        apart = self.reference - other.reference if self.count and other.count else torch.zeros(1)
        return replace(
            self.note_seen(other.seen),
            total=self.total + other.total,
            squares=self.squares + other.squares,
            count=self.count + other.count,
            reference=self.reference if self.count else other.reference,
            reach=max(self.reach, other.reach + float(apart.norm())),
            payloads=_without_methods({**self.payloads, **other.payloads}),
            pictures=pictures.sample(min(kept, default=MOST_SEEN)),
        )

    def require(self, model: str) -> None:
        """Refuse a model (or another state) that did not make this one."""
        if self.model != model:
            raise StateMismatch(
                f"the domain state was made by model {self.model[:12]}, and this is model "
                f"{model[:12]}; adapt again with the model you use"
            )

    def require_width(self, width: int) -> None:
        if len(self.total) != width:
            raise StateMismatch(
                f"the domain state holds {len(self.total)} numbers, and the model's embedding has "
                f"{width}; adapt again with the model you use"
            )

    def digest(self) -> str:
        """Identifies the content: equal states have equal digests."""
        facts = [self.model, self.count, repr(self.reach), *self.payloads]
        return json_digest([*facts, tensors_digest(self._tensors().items())])

    def _tensors(self) -> dict[str, Tensor]:
        """As in a file."""
        tensors = {name: getattr(self, name) for name in (*SUMS, "seen")}
        tensors |= {f"pictures/{name}": getattr(self.pictures, name) for name in PARTS}
        for name, payload in self.payloads.items():
            tensors |= {f"payload/{name}/{key}": value for key, value in payload.items()}
        return tensors

    def save(self, path: str | Path) -> None:
        """safetensors, with JSON metadata."""
        tensors = self._tensors()
        finite = all_finite(tensors.values()) and math.isfinite(self.reach)
        if not finite or self.count > MOST_IMAGES:
            raise StateMismatch(
                "the domain state has become larger than a state can be, and was not saved; adapt "
                "it anew on all the images"
            )
        metadata = {
            "kind": KIND,
            "model": self.model,
            "count": str(self.count),
            "reach": repr(self.reach),
            "payloads": json.dumps([*self.payloads]),
        }
        save_tensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> "DomainState":
        """From a file of `save`, of whose content nothing is taken for granted."""
        path = Path(path)
        try:
            tensors, metadata = read_tensors(path)
            facts = _facts(metadata, path, "count", "reach", "payloads")
            names = facts.texts("payloads")
            numbers, seen = {name: tensors[name] for name in SUMS}, tensors["seen"]
            pictures = Pictures(*(tensors[f"pictures/{name}"] for name in PARTS))
            shape, dim = (torch.float64, 1), len(numbers["total"])
            if (
                metadata["kind"] != KIND
                or any((t.dtype, t.ndim) != shape or len(t) != dim for t in numbers.values())
                or (seen.dtype, seen.ndim) != (torch.int64, 1)
                or len(seen) > MOST_SEEN
                or not pictures.sound
                or len(pictures) > MOST_SEEN
                or ("embedding" in names and not dim)
                or not all_finite(tensors.values())
            ):
                raise DamagedFile(path)
            return cls(
                metadata["model"],
                count=facts.whole("count", most=MOST_IMAGES),
                reach=facts.number("reach"),
                payloads={name: below(tensors, f"payload/{name}/") for name in names},
                seen=seen,
                pictures=pictures,
                **numbers,
            )
        except FileNotFoundError:
            raise StateMismatch(f"{path}: no such file; make it with `acclimate adapt`") from None
        except (DamagedFile, KeyError, TypeError):  # a number has no length
            raise StateMismatch(
                f"{path} is no domain state, or is damaged; make one with `acclimate adapt`"
            ) from None


def _facts(metadata: Mapping[str, str], path: Path, *names: str) -> Fields:
    """These entries of a file's metadata, parsed."""
    try:
        return Fields({name: parse_json(metadata[name]) for name in names}, path)
    except (KeyError, ValueError):
        raise DamagedFile(path) from None


def _without_methods(
    payloads: Mapping[str, Mapping[str, Tensor]],
) -> Mapping[str, Mapping[str, Tensor]]:
    """The start of a chain: μ is that of the sums, whatever becomes of them."""
    return {name: own for name, own in payloads.items() if name == "embedding"}


def sample_rows(rows: np.ndarray, points: int, seed: int, domain: str) -> np.ndarray:
    """`points` of `rows` without replacement (all of them for 0), the same for the same names."""
    if points == 0 or points >= len(rows):
        return rows
    return np.sort(stream(seed, "points", domain).permutation(rows)[:points])


@torch.no_grad()
def embed_rows(
    embedding: Embedding,
    source: Source,
    rows: np.ndarray,
    world: World,
    *,
    below: Backbone | None = None,
    seen: Callable[[np.ndarray, Tensor], None] | None = None,
) -> DomainState:
    """The state of a domain's readable `rows`, worked out by all processes together.

    `below` is the backbone whose features Φ takes, None for a Φ of images. `seen` is told of the
    rows of each batch and their Φ, each process of its own share.
    """
    embedding.eval()
    state = DomainState.empty("", embedding.dim)
    mine = rows[world.share(len(rows))]
    for places, stored in readable(source, mine):
        x = to_float(stored, world.device)
        phi = embedding.phi(x if below is None else below(x))
        state = state.updated(phi)
        if seen is not None:
            seen(mine[places], phi)
    return state if world.size == 1 else _over_processes(state, world)


def _over_processes(state: DomainState, world: World) -> DomainState:
    """The states of all processes as one, whose reference is the mean of all images."""
    count = torch.tensor([state.count], dtype=torch.float64)
    sums = world.sum(torch.cat([state.total, state.squares, count]).to(world.device)).cpu()
    total, squares = sums[:-1].chunk(2)
    mean = total / sums[-1].clamp(min=1)
    reach = state.reach + float((state.reference - mean).norm()) if state.count else 0.0
    largest = torch.tensor([reach], dtype=torch.float64, device=world.device)
    reach = float(world.largest(largest).cpu()[0])
    return DomainState(state.model, total, squares, int(sums[-1]), mean, reach)


class Sample:
    """Φ of at most `MOST_POINTS` random rows of a domain, noted while `embed_rows` passes them."""

    def __init__(self, rows: np.ndarray, seed: int, domain: str) -> None:
        chosen = stream(seed, "consistency", "rows", domain).permutation(rows)[:MOST_POINTS]
        self.rows = np.sort(chosen)
        self.noted: list[tuple[np.ndarray, Tensor]] = []

    def __call__(self, rows: np.ndarray, phi: Tensor) -> None:
        _, places, which = np.intersect1d(self.rows, rows, return_indices=True)
        self.noted.append((places, phi[which].float().cpu()))

    def whole(self, dim: int, world: World) -> Tensor:
        """What all processes noted: [n, dim] float64, in the order of the rows."""
        everyone = torch.zeros(len(self.rows), dim + 1)  # the last number: 1 where there is a row
        for places, phi in self.noted:
            everyone[places, :-1], everyone[places, -1] = phi, 1
        everyone = world.sum(everyone.to(world.device)).cpu()
        return everyone[everyone[:, -1] == 1, :-1].double()


@dataclass(frozen=True)
class DomainTable:
    """The training domains' states, in the order of the batches' domain numbers."""

    states: Mapping[str, DomainState]

    @property
    def names(self) -> Sequence[str]:
        return list(self.states)

    @property
    def means(self) -> Tensor:
        """μ of each training domain: [N, d] float64."""
        return torch.stack([state.mean for state in self.states.values()])

    def tensors(self) -> dict[str, Tensor]:
        """All states stacked; `from_tensors` takes them apart again."""
        states = list(self.states.values())
        stacked = {part: torch.stack([getattr(state, part) for state in states]) for part in SUMS}
        stacked["count"] = torch.tensor([state.count for state in states])
        stacked["reach"] = torch.tensor([state.reach for state in states], dtype=torch.float64)
        return stacked

    @classmethod
    def from_tensors(
        cls, names: Sequence[str], tensors: Mapping[str, Tensor], model: str, dim: int, path: Path
    ) -> "DomainTable":
        """The table of `names` in `dim` dimensions, which a file at `path` should hold."""
        count, wide = (len(names),), (len(names), dim)
        shapes = {"count": count, "reach": count, **dict.fromkeys(SUMS, wide)}
        fits = {key: tuple(value.shape) for key, value in tensors.items()} == shapes
        if not fits or len({*names}) != len(names) or not all_finite(tensors.values()):
            raise DamagedFile(path)
        states = {}
        for place, name in enumerate(names):
            row: dict[str, Any] = {key: value[place] for key, value in tensors.items()}
            row |= {"count": int(row["count"]), "reach": float(row["reach"])}
            states[name] = DomainState(model, **row)
        return cls(states)


def save_embedding(path: Path, embedding: Embedding, table: DomainTable, of: str = "") -> None:
    """Φ and the training domains' states: what Step A leaves to Step B. `of`: its identity."""
    tensors = {f"embedding/{key}": value for key, value in embedding.state_dict().items()}
    tensors |= {f"domains/{key}": value for key, value in table.tensors().items()}
    save_tensors(path, tensors, {"names": json.dumps(table.names)}, of)


def load_embedding(path: Path, embedding: Embedding, of: str = "") -> DomainTable:
    """Fill Φ from a file of `save_embedding` of that identity; the training domains' states."""
    try:
        with damage_is(RunError, "delete it to repeat Step A"):
            tensors, metadata = read_tensors(path, of)
            names = _facts(metadata, path, "names").texts("names")
            states = below(tensors, "domains/")
            table = DomainTable.from_tensors(names, states, "", embedding.dim, path)
            fill(embedding, below(tensors, "embedding/"), path)
    except FileNotFoundError:
        raise RunError(f"{path} is gone; restore it, or repeat Step A") from None
    return table


def save_domain_map(path: Path, domains: Mapping[str, tuple[str, DomainState]]) -> None:
    """What a report needs of each domain: its role, μ, σ² and the number of images."""
    roles, states = zip(*domains.values(), strict=True)
    tensors = {
        "mu": torch.stack([state.mean.float() for state in states]),
        "variance": torch.tensor([state.variance for state in states]),
        "count": torch.tensor([state.count for state in states]),
    }
    metadata = {"names": json.dumps(list(domains)), "roles": json.dumps(roles)}
    save_tensors(path, tensors, metadata)
