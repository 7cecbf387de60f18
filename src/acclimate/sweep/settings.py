"""What a sweep and its launcher can be told. Imports nothing heavy: the command line makes its
options of these fields."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acclimate.config import setting


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    title: str = setting("", "heads tables and reports; empty: the data sets' names")
    data: tuple[str, ...] = setting((), "manifests, tables or domain/class/image folders")
    algorithms: tuple[str, ...] = setting(
        ("erm", "da-erm"),
        "see `acclimate list algorithms`; all: each that has a meaning with the data and settings",
    )
    methods: tuple[str, ...] = setting(
        (),
        "test-time methods: each algorithm is also scored by each, in a row of its own; those that "
        "start from an embedding are for adaptive algorithms; see `acclimate list methods`",
    )
    test_domains: tuple[str, ...] = setting(
        (),
        "each: every domain unseen in turn; roles: the data's test domains together; folds: random "
        "groups of domains in turn; or the groups, domains of one joined by commas; empty: roles "
        "where the data have them, each elsewhere",
    )
    val_domains: tuple[str, ...] = setting((), "domains never trained on, used to choose")
    rule: str = setting(
        "",
        "how a run is chosen among draws: training-domains, one-setting, validation-domains, "
        "leave-one-out, k-fold or oracle; empty: validation-domains where there are any, "
        "training-domains elsewhere",
    )
    folds: int = setting(5, "groups of `folds`, and folds of k-fold cross-validation", at_least=2)
    draws: int = setting(1, "settings tried per run; the first are those given", at_least=1)
    trials: int = setting(3, "repetitions, each with a seed of its own", at_least=1)
    seed: int = setting(0, "seed of the first trial, of the draws and of the folds", at_least=0)
    baseline: str = setting("erm", "algorithm that the others are compared with")
    preset: str = setting("", "see `acclimate list presets`")
    features: bool = setting(
        False,
        "train small heads on frozen features, for a few hundred steps: runs of seconds on a CPU",
    )
    settings: dict[str, Any] = field(
        default_factory=dict, metadata={"about": "settings of every run, as `train` takes them"}
    )
    search: dict[str, Any] = field(
        default_factory=dict,
        metadata={"about": 'where settings are drawn, as in "log10(-5, -3.5)", "choice(0, 0.1)"'},
    )
    per_algorithm: dict[str, Any] = field(
        default_factory=dict, metadata={"about": "settings of one algorithm, over the others"}
    )
    variants: dict[str, Any] = field(
        default_factory=dict, metadata={"about": "settings by label, each a line of its own"}
    )


# What `features` sets, over a preset and below the user's own settings. Penalties that begin late
# by default begin within these steps.
ON_FEATURES: Mapping[str, Any] = {
    "model": {"freeze": "backbone", "width": 256, "hidden": 256},
    "embedding": {"dim": 256, "steps": 200},
    "train": {"steps": 300, "evaluate_every": 100},
    "hparams": {"anneal": 100},
}


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Where jobs run, and how many at a time."""

    launcher: str = setting("local", "where jobs run: local, ray or slurm [default: local]")
    max_parallel: int | None = setting(
        None, "jobs at a time [default: one per core, or one per GPU where there are any]"
    )
    ray_address: str | None = setting(
        None, "an existing Ray cluster [default: RAY_ADDRESS, or a local one]"
    )
    slurm: dict[str, Any] = field(
        default_factory=dict,
        metadata={"about": "passed on to Slurm, e.g. partition=gpu, mem_gb=32"},
    )
    slurm_cluster: str = setting(
        "slurm", "local: as on Slurm, through processes of this machine [default: slurm]"
    )
    device: str = setting("auto", "of the jobs: auto, cpu, cuda or cuda:N [default: auto]")

    @property
    def elsewhere(self) -> bool:
        """Whether jobs run on machines of which this one knows nothing."""
        if self.launcher == "ray":
            return bool(self.ray_address or os.environ.get("RAY_ADDRESS"))
        return self.launcher == "slurm" and self.slurm_cluster == "slurm"

    @property
    def trained_on(self) -> str | None:
        """The device of the jobs; None where this machine knows nothing of it."""
        return None if self.elsewhere and self.device != "cpu" else self.device
