"""Where tasks run: processes of this machine, a Ray cluster or Slurm. The driver sees no more of
them than `Launcher`."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from acclimate.core.errors import ConfigError, unknown
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task, TaskResult

LAUNCHERS = ("local", "ray", "slurm")


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


def chosen_launcher(options: LaunchOptions) -> Launch:
    """How to open the launcher; names and limits are checked now, nothing is started."""
    if options.launcher not in LAUNCHERS:
        raise unknown(f"there is no launcher '{options.launcher}'", options.launcher, LAUNCHERS)
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


def expected_workers(options: LaunchOptions) -> int:
    """How many jobs run at a time, as far as can be told before they start."""
    if options.max_parallel:
        return options.max_parallel
    if options.elsewhere:
        return 1
    if options.launcher == "slurm":
        from acclimate.sweep.launchers.slurm import FEW

        return FEW
    from acclimate.sweep.launchers.local import local_slots

    return len(local_slots(options))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
