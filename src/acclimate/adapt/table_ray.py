"""Shards of a table on a Ray cluster, through Ray Data: one actor per GPU or core, each of which
loads the model once."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from acclimate.adapt.table import Plan, TablePredictor, TableTask
from acclimate.core.distributed import use_threads
from acclimate.core.errors import RunError
from acclimate.core.progress import Watch
from acclimate.core.ray_cluster import RayCluster, require_ray


class ShardMaker:
    """What an actor is: it takes numbers of shards, and says how many rows it has written."""

    def __init__(self, task: TableTask, threads: int) -> None:
        use_threads(threads)
        self.predictor, self.plan = TablePredictor(task), Plan.read(task.out)
        if self.predictor.trained.digest() != self.plan.model:
            raise RunError(f"{task.run} is another model on this machine; give each the same run")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        counts = [self.predictor.make_shard(self.plan, int(n)) for n in batch["shard"]]
        return {"rows": [own.rows for own in counts]}


class OnRay:
    """Makes shards on the cluster at `address`, or at RAY_ADDRESS, or else on a local one.

    Every machine sees the run, the table, its images, the states and the folder of the shards at
    the same paths.
    """

    def __init__(self, address: str | None = None) -> None:
        require_ray("pandas")  # which Ray Data imports
        self.address = address

    def __call__(self, task: TableTask, plan: Plan, missing: Sequence[int], watch: Watch) -> None:
        cluster = RayCluster(self.address, None, task.device)
        try:
            import ray.data

            logging.getLogger("ray.data").setLevel(logging.CRITICAL)
            ray.data.DataContext.get_current().enable_progress_bars = False
            there = replace(task, device=cluster.device)
            numbers = [{"shard": number} for number in missing]
            done = plan.rows - sum(map(plan.size, missing))
            shards = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map_batches(
                ShardMaker,
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=min(cluster.slots, len(numbers))),
                fn_constructor_kwargs={"task": there, "threads": cluster.threads},
                **cluster.share,
            )
            for batch in shards.iter_batches(batch_size=1):
                done += int(batch["rows"].sum())
                watch("images", done, plan.rows, "")
        except cluster.ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]  # of the trace in the actor
            raise RunError(f"a Ray actor failed ({last}); mend that and repeat") from None
        finally:
            cluster.close()
