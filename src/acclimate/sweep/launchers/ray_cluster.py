"""Tasks of a Ray cluster: an existing one, or a local one for this session."""

import importlib.util
import logging
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from acclimate.core.distributed import cores
from acclimate.core.errors import ConfigError
from acclimate.core.text import reason_of
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task, TaskResult, perform


def gpu_share(gpus: int, slots: int) -> float:
    """What one of `slots` tasks takes of a GPU, so that all fit on `gpus`."""
    return 1 / math.ceil(slots / gpus) if gpus else 0.0


class RayLauncher:
    patience = 10.0  # a task that a killed driver left behind may work for long

    def __init__(self, folder: Path, options: LaunchOptions) -> None:
        import ray

        self._ray: Any = ray
        self._running: dict[Any, str] = {}
        self._joined = not ray.is_initialized()
        if self._joined:
            _join(ray, options)
        resources = ray.cluster_resources()
        gpus = 0 if options.device == "cpu" else int(resources.get("GPU", 0))
        cpus = int(resources.get("CPU", 1))
        self.slots = options.max_parallel or gpus or cpus
        if not gpus and options.device.startswith("cuda"):
            self.close()
            raise ConfigError(
                f"--device {options.device}: the Ray cluster has no GPU; use cpu, or add one"
            )
        # Ray shows a task only its own GPUs, so that there the first is the right one.
        self._device = "cuda" if options.device.startswith("cuda") else options.device
        self._threads = max(1, cpus // self.slots) if gpus else 1
        self._remote = ray.remote(
            num_cpus=min(1.0, cpus / self.slots),
            num_gpus=gpu_share(gpus, self.slots),
            max_retries=0,  # the driver decides what is tried again
        )(perform)

    @staticmethod
    def check(options: LaunchOptions) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError('--launcher ray needs Ray; pip install "acclimate[ray]"')

    def start(self, task: Task) -> None:
        there = replace(task, device=self._device, threads=self._threads)
        self._running[self._remote.remote(there)] = task.id

    def finished(self, wait: float) -> list[tuple[str, TaskResult]]:
        if not self._running:
            time.sleep(wait)
            return []
        waiting = list(self._running)
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=wait)
        if ready:  # and whatever else has ended by now
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [(self._running.pop(one), self._end(one)) for one in ready]

    def _end(self, reference: Any) -> TaskResult:
        try:
            result: TaskResult = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return TaskResult(state="died", error=type(error).__name__)
        return result

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        if self._joined:
            self._ray.shutdown()


def _join(ray: Any, options: LaunchOptions) -> None:
    address = options.ray_address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            slots = options.max_parallel or cores()
            ray.init(address="local", num_cpus=slots, include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = address or "this machine"
        raise ConfigError(
            f"no Ray cluster at {where} ({reason_of(error)}); check --ray-address"
        ) from None
