"""From Φ to μ: the states of many domains."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acclimate.core.distributed import World
from acclimate.core.errors import DamagedFile, RunError, damage_is
from acclimate.core.files import Fields, parse_json
from acclimate.core.randomness import stream
from acclimate.core.tensors import all_finite, below, fill, read_tensors, save_tensors
from acclimate.data.source import Source, readable, to_float
from acclimate.learn.embeddings.base import Embedding
from acclimate.learn.embeddings.state import DomainState


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
