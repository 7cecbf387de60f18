"""Where tasks run: THE table of launchers. A new one is a file beside this one and a row here.

The driver sees no more of them than `Launcher`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from acclimate.core.errors import ConfigError, require_known
from acclimate.core.exports import load
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
    name = options.launcher
    require_known(name, LAUNCHERS, f"there is no launcher '{name}'")
    launcher: type[Launcher] = load(LAUNCHERS[name])
    if options.max_parallel is not None and options.max_parallel < 1:
        raise ConfigError(f"--max-parallel must be at least 1, not {options.max_parallel}")
    launcher.check(options)
    return lambda folder: launcher(folder, options)
