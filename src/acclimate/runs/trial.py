"""How much memory a step of training takes on a CPU: tried on few images, in a process of its own.

What the C library, PyTorch and its kernels take beside the tensors of a step cannot be computed,
nor measured in a process that has worked before: memory that was taken once stays taken.
"""

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from acclimate.config import RunConfig, as_dict, from_dict
from acclimate.core.distributed import World, keep_freed_memory, return_freed_memory
from acclimate.data.batches import Batch
from acclimate.learn.model import build_networks, ready
from acclimate.learn.models.piecewise import BATCH
from acclimate.learn.objective import Objective
from acclimate.runs.compiling import trained_backbones
from acclimate.runs.optimisation import Stepper, make_optimiser
from acclimate.runs.plan import check_components

TIMEOUT = 300  # seconds
STATUS = Path("/proc/self/status")
DOMAINS, MORE = 2, 4  # of a trial's batch; the second batch is so many times the first


@dataclass(frozen=True)
class Need:
    """Bytes that a step takes: some for each image, some whatever they are; and `scoring`, which
    comes after steps, and may take more."""

    fixed: float
    each: float
    scoring: float = 0.0

    def of(self, images: int) -> float:
        return max(self.fixed + self.each * images, self.scoring)


def tried(
    config: RunConfig, classes: int, domains: int, size: int, *, embedding: bool, bf16: bool
) -> Need | None:
    """Of Step A (`embedding`) or Step B, images having `size` px; None where it cannot be tried."""
    sizes = {"classes": classes, "domains": domains, "size": size}
    asked = {"config": as_dict(config), **sizes, "embedding": embedding, "bf16": bf16}
    return _asked(json.dumps({**asked, "threads": torch.get_num_threads()}))


@lru_cache(maxsize=8)  # what is said before a run is needed again when it begins
def _asked(question: str) -> Need | None:
    environment = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK")}
    command = [sys.executable, "-m", "acclimate.runs.trial"]
    try:
        done = subprocess.run(
            command,
            input=question,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=environment,
            check=True,
        )
        scored, ((few, small), (many, large)) = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    each = (large - small) / (many - few)
    return Need(small - few * each, each, scored)


def _try(asked: dict[str, Any]) -> tuple[int, list[tuple[int, int]]]:
    """Bytes that scoring took at most; and images of a batch, and the bytes that two steps with
    them took at most, from few to more."""
    config = from_dict(RunConfig, asked["config"], where="trial")
    algorithm, world = check_components(config), World()
    counts = {"classes": asked["classes"], "domains": asked["domains"]}
    predictor, phi = build_networks(
        config, asked["classes"], asked["domains"], None, pretrained=False, world=world
    )
    objective: Objective
    if asked["embedding"]:
        assert phi is not None
        objective, mu_dim, least, copies = phi, 0, 2, phi.copies
        settings = phi.budget(config).optimiser
        del predictor
    else:
        mu_dim, least, copies = phi.dim if phi is not None else 0, algorithm.build.least_rows, 1
        objective = algorithm.build(
            predictor, algorithm.settings, **counts, world=world, seed=config.seed
        )
        settings = config.train.optimiser
    ready(objective, world.device)
    settings = replace(settings, accumulate=1)
    optimiser = make_optimiser(objective, settings, objective.adversary)
    take = Stepper(objective, objective, optimiser, settings, world.device, asked["bf16"])
    turn = objective.adversary.steps if objective.adversary else 0  # the model's, not the other's
    before, found = resident(), []
    scored = _scoring(objective, asked["size"]) - before if _peak_begins_anew() else 0
    _peak_begins_anew()
    for per_domain in (least, MORE * least):
        batch = _batch(per_domain, asked["size"], asked["classes"], mu_dim)
        for _ in range(2):  # the optimiser's own state is there from the second one on
            take(batch, turn)
        found.append((copies * len(batch), peak() - before))
    return scored, found


def _scoring(objective: Objective, size: int) -> int:
    """The peak of passes in which nothing is learned, of unlike size, as domains have them: what
    one has freed is of little use to the next."""
    objective.eval()
    with torch.no_grad():
        for images in (2 * BATCH // 3, BATCH):
            for backbone in trained_backbones(objective):
                backbone(torch.rand(images, 3, size, size))
    return peak()


def _peak_begins_anew() -> bool:
    """At what is held now; False where the system does not offer that."""
    return_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _batch(per_domain: int, size: int, classes: int, mu_dim: int) -> Batch:
    count = DOMAINS * per_domain
    x = torch.rand(count, 3, size, size).contiguous(memory_format=torch.channels_last)
    domain = torch.arange(DOMAINS).repeat_interleave(per_domain)
    mu = torch.zeros(count, mu_dim) if mu_dim else None
    return Batch(x, torch.arange(count) % classes, domain, mu)


def resident() -> int:
    """Bytes that this process holds now; where the system does not say, at most until now."""
    found = line_of(STATUS, "VmRSS:", 1024)
    return peak() if found is None else found


def peak() -> int:
    """Bytes that this process has held at most."""
    found = line_of(STATUS, "VmHWM:", 1024)
    if found is not None:
        return found  # getrusage would tell the larger of this and what the parent held
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def line_of(path: Path, name: str, unit: int) -> int | None:
    """The number behind `name` in a file of the system, in bytes."""
    try:
        fields = (line.split() for line in path.read_text().splitlines())
        return next((int(field[1]) * unit for field in fields if field[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None


if __name__ == "__main__":
    keep_freed_memory()
    question = json.load(sys.stdin)
    torch.set_num_threads(question["threads"])
    sys.stdout.write(f"{json.dumps(_try(question))}\n")
