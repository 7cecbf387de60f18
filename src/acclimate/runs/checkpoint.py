"""Checkpoints: everything a phase needs to go on, in one safetensors file.

No random state is kept: each step seeds itself from (seed, phase, step).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.core.errors import DamagedFile, RunError, damage_is
from acclimate.core.files import Fields, parse_json
from acclimate.core.tensors import below, fill, read_metadata, read_tensors, save_tensors
from acclimate.runs.optimisation import Average


@dataclass(frozen=True)
class Position:
    """Where a phase stands: steps done, and the best validation so far.

    At the end of a phase that keeps the mean over a `window` of steps, the best is that mean.
    """

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None
    window: tuple[int, int] | None = None

    def kept(self, keep: str) -> int:
        """The step whose weights are kept, the last one of a mean."""
        chosen = keep == "best" or self.window is not None
        return self.best_step if chosen and self.best_step is not None else self.step


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer | None,
    progress: Position,
    average: Average | None = None,
    *,
    seconds: float = 0.0,
    micro_batches: int = 1,
) -> None:
    """`optimiser` where steps are yet to be taken; its state is twice as large as the weights.

    `seconds` that the run has worked until now, over all its sessions; `micro_batches`
    are as much a part of its numbers as the batch is."""
    tensors = {f"module/{name}": value for name, value in module.state_dict().items()}
    if average is not None:
        tensors |= {f"average/{name}": value for name, value in average.tensors().items()}
    state = {} if optimiser is None else optimiser.state_dict()["state"]
    scalars: dict[str, Any] = {}
    for index, slots in state.items():
        for name, value in slots.items():
            key = f"optimiser/{index}/{name}"
            if isinstance(value, Tensor):
                tensors[key] = value
            elif value is not None:
                scalars[key] = value
    metadata = {
        "progress": json.dumps(progress.__dict__),
        "scalars": json.dumps(scalars),
        "seconds": repr(seconds),
        "micro_batches": str(micro_batches),
    }
    save_tensors(path, tensors, metadata)


def load_checkpoint(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average | None = None,
) -> Position:
    """Fill what was saved; a fresh `Position` where there is no checkpoint."""
    if not path.exists():
        return Position()
    with damage_is(RunError, "delete it to start this phase again"):
        tensors, metadata = read_tensors(path)
        try:
            texts = ("scalars", "progress")
            facts = Fields({key: parse_json(metadata[key]) for key in texts}, path)
            slots = below(tensors, "optimiser/") | below(facts.table("scalars"), "optimiser/")
            state = _by_parameter(slots)
            position = _position(Fields(facts.table("progress"), path))
        except (KeyError, ValueError):
            raise DamagedFile(path) from None
        fill(module, below(tensors, "module/"), path)
        if average is not None:
            average.restore(below(tensors, "average/"), path)
        _refill(optimiser, state, path)
    return position


def _position(facts: Fields) -> Position:
    best = facts.whole("best_step") if "best_step" in facts else None
    score = facts.number("best_score") if "best_score" in facts else None
    return Position(facts.whole("step"), best, score)


def _by_parameter(slots: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """{"0/exp_avg": …} -> {0: {"exp_avg": …}}"""
    state: dict[int, dict[str, Any]] = {}
    for key, value in slots.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    return state


def _refill(optimiser: torch.optim.Optimizer, state: dict[int, dict[str, Any]], path: Path) -> None:
    """Give an optimiser its state back: each part is a number, or has its parameter's shape."""
    groups = optimiser.state_dict()["param_groups"]
    shapes = [p.shape for group in optimiser.param_groups for p in group["params"]]
    for index, slots in state.items():
        if index >= len(shapes):
            raise DamagedFile(path)
        for value in slots.values():
            if isinstance(value, Tensor) and value.ndim and value.shape != shapes[index]:
                raise DamagedFile(path)
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def seconds_worked(checkpoints: Iterable[Path]) -> float:
    """What earlier sessions worked, as far as their checkpoints know."""
    return max(map(_seconds, checkpoints), default=0.0)


def _seconds(path: Path) -> float:
    try:
        return float(read_metadata(path).get("seconds", 0))
    except (DamagedFile, ValueError):
        return 0.0  # whoever needs the checkpoint will say that it is damaged


def micro_batches_of(checkpoint: Path) -> int | None:
    """In which a phase was trained so far; None where it has yet to begin."""
    try:
        return max(int(read_metadata(checkpoint).get("micro_batches", 1)), 1)
    except (FileNotFoundError, DamagedFile, ValueError):
        return None  # whoever needs the checkpoint will say that it is damaged


def save_weights(path: Path, module: nn.Module) -> None:
    save_tensors(path, module.state_dict())


def load_weights(path: Path, module: nn.Module) -> None:
    """The best weights of a phase."""
    remedy = "delete the checkpoint of its phase, and repeat the command"
    try:
        with damage_is(RunError, remedy):
            fill(module, read_tensors(path)[0], path)
    except FileNotFoundError:
        raise RunError(f"{path} is gone; {remedy}") from None
