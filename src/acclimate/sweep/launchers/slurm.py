"""Jobs of Slurm, one per task, through submitit; or submitit's own local processes."""

import importlib.util
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from acclimate.core.errors import ConfigError, SweepError
from acclimate.core.text import reason_of
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task, TaskResult, perform

QUEUED = 100  # jobs in Slurm's queue at a time, if nobody says otherwise
FEW = 2  # of submitit's own processes
DEFAULTS = {"timeout_min": 24 * 60}  # submitit's own five minutes are no time for training
GPU_KEYS = ("gpus_per_node", "slurm_gres", "slurm_gpus_per_task", "slurm_gpus_per_node")
LOOK_EVERY = 0.2  # seconds; submitit itself asks Slurm less often


class SlurmLauncher:
    def __init__(self, folder: Path, options: LaunchOptions) -> None:
        import submitit

        logging.getLogger("submitit").setLevel(logging.ERROR)
        local = options.slurm_cluster == "local"
        self.slots = options.max_parallel or (FEW if local else QUEUED)
        self.patience = 2.0 if local else 30.0
        self._executor: Any = submitit.AutoExecutor(
            folder=SweepFolder(folder).slurm, cluster=options.slurm_cluster
        )
        parameters = {"name": "acclimate", **DEFAULTS, **parameters_of(options.slurm)}
        try:
            self._executor.update_parameters(**parameters)
        except (NameError, TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"--slurm: {reason_of(error)}; see submitit's parameters") from None
        self._device = options.device
        gpus = any(key in parameters for key in GPU_KEYS) and options.device != "cpu"
        cpus = int(parameters.get("cpus_per_task", 1))
        self._threads = cpus if gpus else 1
        self._running: dict[str, Any] = {}

    @staticmethod
    def check(options: LaunchOptions) -> None:
        if importlib.util.find_spec("submitit") is None:
            raise ConfigError('--launcher slurm needs submitit; pip install "acclimate[slurm]"')
        if options.slurm_cluster not in ("slurm", "local"):
            raise ConfigError(
                f"--slurm-cluster must be slurm or local, not '{options.slurm_cluster}'"
            )
        if options.slurm_cluster == "slurm" and shutil.which("srun") is None:
            raise ConfigError(
                "--launcher slurm finds no Slurm here (no srun); start it on a login node, "
                "or use --launcher local"
            )

    def start(self, task: Task) -> None:
        there = replace(task, device=self._device, threads=self._threads)
        try:
            self._running[task.id] = self._executor.submit(perform, there)
        except RuntimeError as error:  # as sbatch said it
            raise SweepError(
                f"Slurm takes no job ({reason_of(error)}); check --slurm and --max-parallel, "
                f"then repeat the command to resume"
            ) from error

    def finished(self, wait: float) -> list[tuple[str, TaskResult]]:
        end = time.monotonic() + wait
        while True:
            ready = [id for id, job in self._running.items() if job.done()]
            left = end - time.monotonic()
            if ready or left <= 0:
                return [(id, _end(self._running.pop(id))) for id in ready]
            time.sleep(min(LOOK_EVERY, left))

    def close(self) -> None:
        for job in self._running.values():
            job.cancel(check=False)


def parameters_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """submitit's names: its own as they are, Slurm's with the prefix that it wants."""
    own = {"name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node"}
    return {
        key if key in own or key.startswith("slurm_") else f"slurm_{key}": value
        for key, value in options.items()
    }


def _end(job: Any) -> TaskResult:
    """What the job returned; a job that vanished or broke on the way has died."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        result: TaskResult = job.result()
    except (FailedJobError, UncompletedJobError, OSError, EOFError):
        how = f"job {job.job_id}: {str(job.state).lower()}; see {job.paths.stderr}"
        return TaskResult(state="died", error=how)
    return result
