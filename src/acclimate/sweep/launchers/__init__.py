"""Where tasks run: THE table of launchers. A new one is a file beside this one and a row here.

The driver sees no more of them than `Launcher`.
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol

from acclimate.core.errors import ConfigError, unknown
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task, TaskResult

LAUNCHERS = {  # name -> module:class, imported when it is asked for
    "local": "acclimate.sweep.launchers.local:LocalLauncher",
    "ray": "acclimate.sweep.launchers.ray_cluster:RayLauncher",
    "slurm": "acclimate.sweep.launchers.slurm:SlurmLauncher",
}


class Launcher(Protocol):
    """Runs tasks, at most `slots` at a time."""

    slots: int
    patience: float  # seconds before a busy job is tried again

    def __init__(self, folder: Path, options: LaunchOptions) -> None: ...

    @staticmethod
    def check(options: LaunchOptions) -> None:
        """Refuse what could not be started; starts nothing."""
        ...

    def start(self, task: Task) -> None: ...

    def finished(self, wait: float) -> list[tuple[str, TaskResult]]:
        """Ids and results of tasks, each once; returns after `wait` seconds at the latest."""
        ...

    def close(self) -> None:
        """Stop whatever still runs."""
        ...


Launch = Callable[[Path], Launcher]  # from the sweep's folder


def chosen_launcher(options: LaunchOptions) -> Launch:
    """How to open the launcher; names and limits are checked now, nothing is started."""
    cls = _launcher(options.launcher)
    if options.max_parallel is not None and options.max_parallel < 1:
        raise ConfigError(f"--max-parallel must be at least 1, not {options.max_parallel}")
    cls.check(options)
    return lambda folder: cls(folder, options)


def _launcher(name: str) -> type[Launcher]:
    if name not in LAUNCHERS:
        raise unknown(f"there is no launcher '{name}'", name, LAUNCHERS)
    module, _, attribute = LAUNCHERS[name].partition(":")
    launcher: type[Launcher] = getattr(import_module(module), attribute)
    return launcher


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
