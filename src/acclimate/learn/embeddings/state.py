"""DomainState: all that adaptation keeps of a domain, a few kilobytes."""

import hashlib
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
from acclimate.core.files import Fields, parse_json
from acclimate.core.randomness import stream
from acclimate.core.tensors import (
    all_finite,
    below,
    fill,
    read_tensors,
    require_finite,
    save_tensors,
)
from acclimate.data.source import Source, readable, to_float
from acclimate.learn.embeddings.base import Embedding
from acclimate.learn.theory import mean_radius

KIND = "domain state"
MOST_IMAGES = 1 << 53  # that a state counts: beyond, adding one changes nothing
MOST_SEEN = 50_000  # images whose hashes a state keeps, 8 bytes each


@dataclass(frozen=True)
class Payload:
    """What another adaptation method keeps, and whether two of them add up."""

    tensors: Mapping[str, Tensor]
    mergeable: bool  # tensors of merged states are added


@dataclass(frozen=True)
class DomainState:
    """Running sums of Φ over a domain's images: mergeable, updatable, and a sample can be removed.

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
    payloads: Mapping[str, Payload] = field(default_factory=dict)
    # [k] int64: a hash of each image, sorted, of the first that were seen; not of rows of features,
    # since two measurements may agree.
    seen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

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
        self._require_width(rows.shape[1])
        require_finite(rows, "the domain embedding of an image")
        reference = self.reference if self.count else rows.mean(0)
        return replace(
            self,
            total=self.total + rows.sum(0),
            squares=self.squares + rows.square().sum(0),
            count=self.count + len(rows),
            reference=reference,
            reach=max(self.reach, float((rows - reference).norm(dim=1).max())),
        )

    def having_seen(self, hashes: Tensor) -> tuple["DomainState", int]:
        """With images of these `hashes` written down, and how many of them it had seen before, or
        stand there twice."""
        known = _each_once(self.seen, hashes)
        repeats = len(self.seen) + len(hashes) - len(known)
        return (self if len(known) > MOST_SEEN else replace(self, seen=known)), repeats

    def removed(self, phi: Tensor) -> "DomainState":
        """Without images that were counted before."""
        rows = phi.detach().to("cpu", torch.float64)
        if len(rows) > self.count:
            raise StateMismatch(f"cannot remove {len(rows)} images from a state of {self.count}")
        return replace(
            self,
            total=self.total - rows.sum(0),
            squares=self.squares - rows.square().sum(0),
            count=self.count - len(rows),
        )

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
        """Both domains' images as one, as if seen together."""
        self.require(other.model)
        self._require_width(len(other.total))
        stuck = sorted(
            name
            for state in (self, other)
            for name, payload in state.payloads.items()
            if not payload.mergeable
        )
        if stuck:
            raise StateMismatch(f"'{stuck[0]}' cannot be merged; adapt it anew on all the images")
        return replace(
            self,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            count=self.count + other.count,
            reference=self.reference if self.count else other.reference,
            reach=max(self.reach, other.reach + self._apart(other)),
            payloads=_added(self.payloads, other.payloads),
            seen=_each_once(self.seen, other.seen)[:MOST_SEEN],
        )

    def _apart(self, other: "DomainState") -> float:
        if not self.count or not other.count:
            return 0.0
        return float((self.reference - other.reference).norm())

    def require(self, model: str) -> None:
        """Refuse a model (or another state) that did not make this one."""
        if self.model != model:
            raise StateMismatch(
                f"the domain state was made by model {self.model[:12]}, and this is model "
                f"{model[:12]}; adapt again with the model you use"
            )

    def _require_width(self, width: int) -> None:
        if len(self.total) != width:
            raise StateMismatch(
                f"the domain state holds {len(self.total)} numbers, and the model's embedding has "
                f"{width}; adapt again with the model you use"
            )

    def save(self, path: str | Path, notes: Mapping[str, Any] | None = None) -> None:
        """safetensors, with JSON metadata; `notes` are for people and are not read back."""
        tensors = {
            "total": self.total,
            "squares": self.squares,
            "reference": self.reference,
            "seen": self.seen,
        }
        for name, payload in self.payloads.items():
            tensors |= {f"payload/{name}/{key}": value for key, value in payload.tensors.items()}
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
            "payloads": json.dumps({name: p.mergeable for name, p in self.payloads.items()}),
            "notes": json.dumps(dict(notes or {}), sort_keys=True),
        }
        save_tensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> "DomainState":
        path = Path(path)
        try:
            tensors, metadata = read_tensors(path)
            if metadata.get("kind") == KIND:
                return cls._of(tensors, metadata, path)
        except DamagedFile:
            raise StateMismatch(
                f"{path} is no domain state, or is damaged; make one with `acclimate adapt`"
            ) from None
        except FileNotFoundError:
            raise StateMismatch(f"{path}: no such file; make it with `acclimate adapt`") from None
        raise StateMismatch(f"{path}: not a domain state; make one with `acclimate adapt`")

    @classmethod
    def _of(
        cls, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path
    ) -> "DomainState":
        """From a file's content, of which nothing is taken for granted."""
        try:
            texts = ("count", "reach", "payloads")
            facts = Fields({key: parse_json(metadata[key]) for key in texts}, path)
            total, squares = tensors["total"], tensors["squares"]
            model, reference, seen = metadata["model"], tensors["reference"], tensors["seen"]
        except (KeyError, ValueError):
            raise DamagedFile(path) from None
        alike = {(t.dtype, t.shape, t.ndim) for t in (total, squares, reference)} == {
            (torch.float64, total.shape, 1)
        }
        merge = facts.table("payloads")
        known = all(isinstance(mergeable, bool) for mergeable in merge.values())
        told = seen.ndim == 1 and seen.dtype == torch.int64 and len(seen) <= MOST_SEEN
        if not alike or not known or not told or not all_finite(tensors.values()):
            raise DamagedFile(path)
        return cls(
            model=model,
            total=total,
            squares=squares,
            count=facts.whole("count", most=MOST_IMAGES),
            reference=reference,
            reach=facts.number("reach"),
            seen=seen,
            payloads={
                name: Payload(below(tensors, f"payload/{name}/"), mergeable)
                for name, mergeable in merge.items()
            },
        )


def image_hashes(images: Tensor) -> Tensor:
    """A number for each of `images` as a source stores them; none for rows of features."""
    if images.dtype != torch.uint8:
        return torch.zeros(0, dtype=torch.int64)
    contents = (image.contiguous().numpy().data for image in images)
    found = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
    numbers = [int.from_bytes(digest, "big", signed=True) for digest in found]
    return torch.tensor(numbers, dtype=torch.int64)


def _each_once(one: Tensor, two: Tensor) -> Tensor:
    found: Tensor = torch.unique(torch.cat([one, two]))
    return found


def _added(one: Mapping[str, Payload], two: Mapping[str, Payload]) -> dict[str, Payload]:
    result = dict(one)
    for name, payload in two.items():
        if name in result:
            mine = result[name].tensors
            if _shapes(mine) != _shapes(payload.tensors):
                raise StateMismatch(
                    f"'{name}' holds other things in the other state; adapt it anew on all the "
                    f"images"
                )
            sums = {key: mine[key] + value for key, value in payload.tensors.items()}
            payload = Payload(sums, mergeable=True)
        result[name] = payload
    return result


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in tensors.items()}


@torch.no_grad()
def embed_rows(
    embedding: Embedding,
    source: Source,
    rows: np.ndarray,
    world: World,
    model: str = "",
    *,
    seen: Callable[[np.ndarray, Tensor], None] | None = None,
) -> DomainState:
    """The state of a domain's readable `rows`, worked out by all processes together.

    `seen` is told of the rows of each batch and their Φ, each process of its own share.
    """
    embedding.eval()
    state = DomainState.empty(model, embedding.dim)
    mine = rows[world.share(len(rows))]
    for places, stored in readable(source, mine):
        phi = embedding.phi(to_float(stored, world.device))
        state = state.updated(phi)
        if seen is not None:
            seen(mine[places], phi)
    return _over_processes(state, world)


def sample_rows(rows: np.ndarray, points: int, seed: int, domain: str) -> np.ndarray:
    """`points` of `rows` without replacement (all of them for 0), the same for the same names."""
    if points == 0 or points >= len(rows):
        return rows
    return np.sort(stream(seed, "points", domain).permutation(rows)[:points])


@dataclass(frozen=True)
class DomainTable:
    """The training domains' states, in the order of the batches' domain numbers."""

    states: Mapping[str, DomainState]

    @property
    def names(self) -> Sequence[str]:
        return list(self.states)

    def tensors(self) -> dict[str, Tensor]:
        """All states stacked; `from_tensors` takes them apart again."""
        states = list(self.states.values())
        stacked = {
            part: torch.stack([getattr(state, part) for state in states])
            for part in ("total", "squares", "reference")
        }
        stacked["count"] = torch.tensor([state.count for state in states])
        stacked["reach"] = torch.tensor([state.reach for state in states], dtype=torch.float64)
        return stacked

    @classmethod
    def from_tensors(
        cls, names: Sequence[str], tensors: Mapping[str, Tensor], model: str, dim: int, path: Path
    ) -> "DomainTable":
        """The table of `names` in `dim` dimensions, which a file at `path` should hold."""
        shapes: dict[str, tuple[int, ...]] = {"count": (len(names),), "reach": (len(names),)}
        shapes |= {key: (len(names), dim) for key in ("total", "squares", "reference")}
        found = {key: tuple(value.shape) for key, value in tensors.items()}
        if found != shapes or len({*names}) != len(names) or not all_finite(tensors.values()):
            raise DamagedFile(path)
        return cls(
            {
                name: DomainState(
                    model,
                    tensors["total"][i],
                    tensors["squares"][i],
                    int(tensors["count"][i]),
                    tensors["reference"][i],
                    float(tensors["reach"][i]),
                )
                for i, name in enumerate(names)
            }
        )

    @property
    def means(self) -> Tensor:
        """μ of each training domain: [N, d] float64."""
        return torch.stack([state.mean for state in self.states.values()])


def save_embedding(path: Path, embedding: Embedding, table: DomainTable) -> None:
    """Φ and the training domains' states: what Step A leaves to Step B."""
    tensors = {f"embedding/{key}": value for key, value in embedding.state_dict().items()}
    tensors |= {f"domains/{key}": value for key, value in table.tensors().items()}
    save_tensors(path, tensors, {"names": json.dumps(table.names)})


def load_embedding(path: Path, embedding: Embedding) -> DomainTable:
    try:
        with damage_is(RunError, "delete it to repeat Step A"):
            tensors, metadata = read_tensors(path)
            names = _names(metadata, path)
            table = DomainTable.from_tensors(
                names, below(tensors, "domains/"), "", embedding.dim, path
            )
            fill(embedding, below(tensors, "embedding/"), path)
    except FileNotFoundError:
        raise RunError(f"{path} is gone; restore it, or repeat Step A") from None
    return table


def _names(metadata: Mapping[str, str], path: Path) -> tuple[str, ...]:
    try:
        return Fields({"names": parse_json(metadata["names"])}, path).texts("names")
    except (KeyError, ValueError):
        raise DamagedFile(path) from None


def save_domain_map(path: Path, domains: Mapping[str, tuple[str, DomainState]]) -> None:
    """What a report needs of each domain: its role, μ, σ² and the number of images."""
    states = [state for _, state in domains.values()]
    tensors = {
        "mu": torch.stack([state.mean.float() for state in states]),
        "variance": torch.tensor([state.variance for state in states]),
        "count": torch.tensor([state.count for state in states]),
    }
    metadata = {
        "names": json.dumps(list(domains)),
        "roles": json.dumps([role for role, _ in domains.values()]),
    }
    save_tensors(path, tensors, metadata)


def _over_processes(state: DomainState, world: World) -> DomainState:
    if world.size == 1:
        return state
    count = torch.tensor([state.count], dtype=torch.float64)
    sums = world.sum(torch.cat([state.total, state.squares, count]).to(world.device)).cpu()
    mean = sums[: len(state.total)] / sums[-1].clamp(min=1)
    reach = state.reach + float((state.reference - mean).norm()) if state.count else 0.0
    largest = torch.tensor([reach], dtype=torch.float64, device=world.device)
    reach = float(world.largest(largest).cpu()[0])
    dim = len(mean)
    return DomainState(state.model, sums[:dim], sums[dim:-1], int(sums[-1]), mean, reach)
