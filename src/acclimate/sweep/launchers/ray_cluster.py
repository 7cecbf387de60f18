"""Tasks of a Ray cluster: an existing one, or a local one for this session."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from acclimate.core.ray_cluster import RayCluster, require_ray
from acclimate.sweep.settings import LaunchOptions
from acclimate.sweep.worker import Task, TaskResult, perform


class RayLauncher:
    patience = 10.0  # a task that a killed driver left behind may work for long

    def __init__(self, folder: Path, options: LaunchOptions) -> None:
        self._cluster = RayCluster(options.ray_address, options.max_parallel, options.device)
        self._ray, self.slots = self._cluster.ray, self._cluster.slots
        self._running: dict[Any, str] = {}
        self._remote = self._ray.remote(
            **self._cluster.share,
            max_retries=0,  # the driver decides what is tried again
        )(perform)

    @staticmethod
    def check(options: LaunchOptions) -> None:
        require_ray()

    def start(self, task: Task) -> None:
        there = replace(task, device=self._cluster.device, threads=self._cluster.threads)
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
        self._cluster.close()
