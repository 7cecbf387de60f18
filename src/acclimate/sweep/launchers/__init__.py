"""Where tasks run: processes of this machine, a Ray cluster or Slurm. The driver sees no more of
them than `Launcher`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from acclimate.core.errors import ConfigError, unknown
from acclimate.sweep.task import Task, TaskResult

LAUNCHERS = {
    "local": "processes of this machine",
    "ray": "tasks of a Ray cluster, or of a local one",
    "slurm": "jobs of Slurm, through submitit",
}


@dataclass(frozen=True)
class Died:
    """A worker that ended without an outcome: killed, out of memory, or lost with its machine."""

    how: str  # as "signal 9"


class Launcher(Protocol):
    """Runs tasks, at most `slots` at a time."""

    slots: int
    patience: float  # seconds before a busy job is tried again

    def start(self, task: Task) -> None: ...

    def finished(self, wait: float) -> list[tuple[str, TaskResult | Died]]:
        """Ids and ends of tasks, each once; returns after `wait` seconds at the latest."""
        ...

    def close(self) -> None:
        """Stop whatever still runs."""
        ...


Launch = Callable[[Path], Launcher]  # from the sweep's folder


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    launcher: str = "local"
    max_parallel: int | None = None
    device: str = "auto"
    ray_address: str | None = None
    slurm: Mapping[str, Any] = field(default_factory=dict)  # parameters of submitit
    slurm_cluster: str = "slurm"

    @property
    def trained_on(self) -> str | None:
        """The device of the jobs, None where it is one that this machine knows nothing of."""
        return None if self.elsewhere and self.device != "cpu" else self.device

    @property
    def elsewhere(self) -> bool:
        """Do jobs run on machines of which this one knows nothing?"""
        if self.launcher == "ray":
            return bool(self.ray_address or os.environ.get("RAY_ADDRESS"))
        return self.launcher == "slurm" and self.slurm_cluster == "slurm"


def chosen_launcher(options: LaunchOptions) -> Launch:
    """How to open the launcher; names and limits are checked now, nothing is started."""
    if options.launcher not in LAUNCHERS:
        raise unknown(
            f"there is no launcher '{options.launcher}'", options.launcher, list(LAUNCHERS)
        )
    if options.max_parallel is not None and options.max_parallel < 1:
        raise ConfigError(f"--max-parallel must be at least 1, not {options.max_parallel}")
    if options.launcher == "ray":
        from acclimate.sweep.launchers.ray_cluster import RayLauncher, check_ray

        check_ray()
        return lambda folder: RayLauncher(options)
    if options.launcher == "slurm":
        from acclimate.sweep.launchers.slurm import SlurmLauncher, check_submitit

        check_submitit(options)
        return lambda folder: SlurmLauncher(folder, options)
    from acclimate.sweep.launchers.local import LocalLauncher, local_slots

    if options.device not in ("auto", "cpu"):
        from acclimate.core.distributed import pick_device

        pick_device(options.device)
    return lambda folder: LocalLauncher(folder, local_slots(options))


def expected_workers(options: LaunchOptions) -> tuple[int, int]:
    """How many jobs go on at a time, and how many of them at full speed, as far as can be told
    before they start."""
    if options.elsewhere:
        return options.max_parallel or 1, options.max_parallel or 1
    from acclimate.sweep.launchers.local import local_slots

    if options.launcher == "slurm":
        from acclimate.sweep.launchers.slurm import FEW

        options = replace(options, max_parallel=options.max_parallel or FEW)
    slots = local_slots(options)
    on_cpu = slots[0].device == "cpu"
    # Jobs that share a GPU share its speed.
    return len(slots), min(len(slots), cores()) if on_cpu else len({s.device for s in slots})


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
