"""A sweep as data: what was asked for, and the jobs that takes."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.config import AlgorithmName, metric_of
from acclimate.core.files import FORMAT

RULES = {
    "training-domains": "validation splits of the training domains",
    "one-setting": "validation splits of the training domains, over all runs (the paper's letter)",
    "validation-domains": "validation domains, which no run trains on",
    "leave-one-out": "each further domain held out in turn (DomainBed's)",
    "k-fold": "each further fold of domains held out in turn",
    "oracle": "the test domains themselves: a ceiling, not a method",
}
CROSS_VALIDATED = frozenset({"leave-one-out", "k-fold"})
Group = tuple[str, ...]  # domains that are held out together, in alphabetical order


@dataclass(frozen=True, kw_only=True)
class DataSet:
    name: str
    digest: str
    source: str  # where it lay when the sweep was made; no part of what it is
    domains: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an ablation varies: each variant's place, `None` where variants have no order."""

    label: str
    places: Mapping[str, float | None]

    @property
    def ordered(self) -> bool:
        return None not in self.places.values()


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What one task of a sweep needs."""

    id: str  # also the name of its folder
    dataset: str
    config: Mapping[str, Any]  # nested, as `from_dict(RunConfig, …)` takes it
    drawn: str = ""  # its trial's own draw of the data set; "" where all trials share one

    @property
    def data(self) -> str:
        """The data set that it runs on, which is also what its results are of unless it is drawn
        anew for the trial."""
        return self.drawn or self.dataset


@dataclass(frozen=True, kw_only=True)
class EmbeddingJob(_Work):
    """Step A for one training set and seed; `config` is that of any job that needs it."""


@dataclass(frozen=True, kw_only=True)
class Job(_Work):
    """One run. One group of held-out domains: a run that is scored on them. Two: a run that only
    helps to choose among draws, for either group with the score on the other."""

    algorithm: str
    variant: str = ""  # "" where nothing else is varied
    groups: tuple[Group, ...]
    draw: int  # 0: the default settings
    trial: int
    needs: str | None = None  # id of the EmbeddingJob

    @property
    def methods(self) -> tuple[str, ...]:
        """How its model is used on unseen domains, each a row of its own: as the algorithm is
        meant, then by the further methods that were asked for."""
        usual = AlgorithmName.of(self.algorithm).usual_method
        return tuple(dict.fromkeys([usual, *self.config.get("adapt", {}).get("methods", ())]))

    @property
    def held_out(self) -> Group:
        return tuple(sorted(name for group in self.groups for name in group))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    title: str
    rule: str
    baseline: str
    datasets: tuple[DataSet, ...]
    embeddings: tuple[EmbeddingJob, ...]
    jobs: tuple[Job, ...]
    axis: Axis | None = None
    draws: tuple[DataSet, ...] = ()  # of its data sets, for trials after the first
    command: str = ""  # the line that made it; several where sweeps were put together
    left_out: tuple[str, ...] = ()  # algorithms that `all` leaves out, each with the reason

    @property
    def metric(self) -> str:
        """That of all its jobs, by which steps and draws are chosen."""
        return metric_of(self.jobs[0].config if self.jobs else {})

    def dataset(self, name: str) -> DataSet:
        return next(one for one in (*self.datasets, *self.draws) if one.name == name)


def job_digest(data_digest: str, config: Mapping[str, Any], weights_digest: str = "") -> str:
    """What makes a job the same job: its data and settings, wherever data and weights lie."""
    settings = {**config, "model": {**config.get("model", {}), "weights": weights_digest}}
    text = json.dumps([FORMAT, data_digest, settings], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def job_name(parts: Iterable[str], digest: str) -> str:
    """A folder name that people can read and that no other job has."""
    words = [re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.")[:40] for part in parts]
    return "-".join([*(word for word in words if word), digest[:10]])


def targets(jobs: Sequence[Job]) -> list[Group]:
    """The groups that runs are scored on, each once, in the order of the jobs."""
    return list(dict.fromkeys(job.groups[0] for job in jobs if len(job.groups) == 1))
