"""That every run of a sweep could start: found out now rather than after hours of others' work."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from acclimate.adapt.methods import scored_chains
from acclimate.config import RunConfig, from_dict
from acclimate.core.errors import ConfigError
from acclimate.data.manifest import Manifest
from acclimate.learn.algorithms import choose
from acclimate.learn.models import build_backbone
from acclimate.results.protocol import Job
from acclimate.runs.plan import Plan, make_plan


def check_runs(jobs: Iterable[Job], manifests: Mapping[str, Manifest]) -> None:
    """Plan every run that differs in what plans look at, and build every backbone once."""
    # A plan opens images to learn their size. Once per data set, its settings and backbone is
    # enough; for other held-out domains the rows alone decide.
    rows_only = {name: without_images(manifest) for name, manifest in manifests.items()}
    looked_at: set[str] = set()
    planned: set[tuple[object, ...]] = set()
    built: set[tuple[object, ...]] = set()
    for job in jobs:
        model = job.config["model"]
        network = (model["backbone"], model["pretrained"], model["weights"], *job.methods)
        whole = (job.data, repr(job.config["data"]), network)
        rows = (job.data, job.held_out, *_looked_at_in(job))
        if whole in planned and rows in planned:
            continue
        config = from_dict(RunConfig, job.config, where=job.id)
        if whole in planned:
            _planned(job, config, rows_only[job.data], check_files=False)
        else:
            manifest = manifests[job.data]
            plan = _planned(job, config, manifest, check_files=job.data not in looked_at)
            looked_at.add(job.data)
            _check_backbone(plan, manifest, built)
        planned |= {whole, rows}


def _planned(job: Job, config: RunConfig, manifest: Manifest, *, check_files: bool) -> Plan:
    try:
        return make_plan(config, manifest, check_files=check_files)
    except ConfigError as error:
        if len(job.groups) == 1:
            raise
        together = " and ".join(",".join(group) for group in job.groups)
        raise ConfigError(
            f"cross-validation also holds out {together} together, and then {error}; "
            f"or choose the rule training-domains, which holds out one group at a time"
        ) from None


def without_images(manifest: Manifest) -> Manifest:
    """The same rows with the names of their images and nothing in them, for plans that need not
    look at images."""
    names = [
        name for name in ("label", "domain", "split", "role") if name in manifest.table.column_names
    ]
    blank = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(len(manifest), np.float32)), 1)
    table = manifest.table.select(names).append_column("features", blank)
    numbers = pa.array(manifest.image_ids).cast(pa.string())
    return replace(manifest, table=table.append_column("image", numbers))


def _looked_at_in(job: Job) -> tuple[object, ...]:
    """What of a run's settings decides whether its rows suffice."""
    algorithm = choose(job.algorithm)
    return (
        algorithm.adaptive,
        algorithm.build.least_domains,
        job.config["embedding"]["name"],
        job.config["adapt"]["source"],
        job.config["data"]["unseen_classes"],
        job.config["train"]["domains_per_step"],
        tuple(job.config["val_domains"]),
    )


def _check_backbone(plan: Plan, manifest: Manifest, built: set[tuple[object, ...]]) -> None:
    """That it can be built, and adapted by the methods that are to score it."""
    config, model = plan.config, plan.config.model
    width = manifest.features().shape[1] if manifest.has_features else None
    key = (model.backbone, model.pretrained, model.weights, width, config.adapt.methods)
    if key not in built:
        backbone = build_backbone(
            model.backbone,
            pretrained=model.pretrained,
            weights=model.weights or None,
            in_features=width,
        )
        for chain in scored_chains(config.adapt, config.algorithm):
            chain.require(backbone, frozen=plan.frozen)
        built.add(key)
