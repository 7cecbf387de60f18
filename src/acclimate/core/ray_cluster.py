"""A Ray cluster: an existing one, or a local one for this session."""

import importlib.util
import logging
import math
import os
from typing import Any

from acclimate.core.distributed import cores
from acclimate.core.errors import ConfigError
from acclimate.core.text import reason_of


def require_ray(*packages: str) -> None:
    """Refuse to go on without Ray and the `packages` that a part of it needs; starts nothing."""
    if None in map(importlib.util.find_spec, ("ray", *packages)):
        raise ConfigError('--launcher ray needs Ray; pip install "acclimate[ray]"')


def gpu_share(gpus: int, slots: int) -> float:
    """What one of `slots` tasks takes of a GPU, so that all fit on `gpus`."""
    return 1 / math.ceil(slots / gpus) if gpus else 0.0


class RayCluster:
    """A connection that is closed with `close`, unless somebody else had made it before.

    `slots` tasks run at a time: so many as are asked for, or one per GPU, or one per core. Each
    works on `device` with `threads`, and takes `share` of the cluster's resources.
    """

    def __init__(self, address: str | None, slots: int | None, device: str) -> None:
        import ray

        self.ray: Any = ray
        self._joined = not ray.is_initialized()
        if self._joined:
            _join(ray, address or os.environ.get("RAY_ADDRESS"), slots)
        resources = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        cpus = int(resources.get("CPU", 1))
        if not gpus and device.startswith("cuda"):
            self.close()
            raise ConfigError(f"--device {device}: the Ray cluster has no GPU; use cpu, or add one")
        self.slots = slots or gpus or cpus
        # Ray shows a task only its own GPUs, so that there the first is the right one.
        self.device = "cuda" if device.startswith("cuda") else device
        self.threads = max(1, cpus // self.slots) if gpus else 1
        self.share = {
            "num_cpus": min(1.0, cpus / self.slots),
            "num_gpus": gpu_share(gpus, self.slots),
        }

    def close(self) -> None:
        if self._joined:
            self.ray.shutdown()


def _join(ray: Any, address: str | None, slots: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            local = {"num_cpus": slots or cores(), "include_dashboard": False}
            ray.init(address="local", **local, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = address or "this machine"
        raise ConfigError(
            f"no Ray cluster at {where} ({reason_of(error)}); check --ray-address"
        ) from None
