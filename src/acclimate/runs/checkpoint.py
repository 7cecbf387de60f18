"""Checkpoints: everything a phase needs to go on, in one safetensors file.

No random state is kept: each step seeds itself from (seed, phase, step).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from acclimate.core.errors import RunError
from acclimate.core.tensors import below, save_tensors
from acclimate.runs.averaging import Average


@dataclass(frozen=True)
class Position:
    """Where a phase stands: steps done, and the best validation so far."""

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Position,
    average: Average | None = None,
    *,
    seconds: float = 0.0,
) -> None:
    """`seconds` that the run has worked until now, over all its sessions."""
    tensors = {f"module/{name}": value for name, value in module.state_dict().items()}
    if average is not None:
        tensors |= {f"average/{name}": value for name, value in average.tensors().items()}
    state = optimiser.state_dict()["state"]
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
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError:
        raise RunError(f"{path} is damaged; delete it to start this phase again") from None
    module.load_state_dict(below(tensors, "module/"))
    if average is not None:
        average.restore(below(tensors, "average/"))
    slots = {key: value for key, value in tensors.items() if key.startswith("optimiser/")}
    slots |= json.loads(metadata["scalars"])
    state: dict[int, dict[str, Any]] = {}
    for key, value in slots.items():
        _, index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    return Position(**json.loads(metadata["progress"]))


def seconds_worked(checkpoints: Iterable[Path]) -> float:
    """What earlier sessions worked, as far as their checkpoints know."""
    return max(map(_seconds, checkpoints), default=0.0)


def _seconds(path: Path) -> float:
    try:
        with safe_open(path, framework="pt") as file:
            return float(file.metadata().get("seconds", 0))
    except SafetensorError:
        return 0.0  # whoever needs the checkpoint will say that it is damaged


def save_weights(path: Path, module: nn.Module) -> None:
    save_tensors(path, module.state_dict())
