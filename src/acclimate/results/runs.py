"""The runs of a folder, as views: what a run folder holds, read once, and what a run is called."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

from acclimate.config import AlgorithmName, flat
from acclimate.core.errors import AcclimateError, RunError, SchemaError
from acclimate.records.folder import REHEARSAL, RunFolder, runs_below
from acclimate.records.metrics import TOP_1
from acclimate.records.records import Finished, Records, Score, Started
from acclimate.records.rehearsal import Rehearsal
from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder, sweeps_below

CONTROLS = ("wrong-embedding", "auto-neutral", "auto-other", "lame")
SUFFIXES = {
    "none": ", not adapted",
    "wrong-embedding": ", wrong domain's embedding",
    "auto-neutral": ", auto without an image of the domain",
    "auto-other": ", auto with another domain's images",
    "oracle-prior": " + true label frequencies (oracle)",
    "oracle-truth": " + all that is true of the domain (oracle)",
}


@dataclass(frozen=True, order=True)
class Key:
    """A line of the summary: how the model was trained, and how it was used on a domain."""

    algorithm: str
    method: str
    variant: str = ""

    @classmethod
    def usual(cls, algorithm: str, variant: str = "") -> "Key":
        """A model used as it is meant to be: adapted where it can be."""
        return cls(algorithm, AlgorithmName.of(algorithm).usual_method, variant)

    @property
    def place(self) -> tuple[int, str, str, tuple[tuple[float, str], ...]]:
        """Sorts methods before controls and ceilings, and variants by the numbers in them."""
        rank = {"method": 0, "control": 1, "ceiling": 2}[self.kind]
        parts = re.findall(r"(\d+(?:\.\d+)?)|([^\d]+)", self.variant)
        return (
            rank,
            self.algorithm.lower(),
            "" if self.method == Key.usual(self.algorithm).method else self.method,
            tuple((float(n or -1), t) for n, t in parts),
        )

    @property
    def kind(self) -> str:
        """ "method", "control" (meant to fail) or "ceiling" (knows what no method may know).

        "lame" is a control too: it leaves no classifier.
        """
        if self.method.startswith("oracle-"):
            return "ceiling"
        return "control" if self.method in CONTROLS else "method"

    @property
    def label(self) -> str:
        name = AlgorithmName.of(self.algorithm).label
        if self.method != Key.usual(self.algorithm).method:
            name += SUFFIXES.get(self.method, f", {self.method}")
        return f"{name} ({self.variant})" if self.variant else name


ERM = Key("erm", "none")


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What a run folder holds. `problem` says why it cannot be read; then the rest is empty."""

    name: str  # relative to the folder that was searched
    folder: Path
    problem: str | None = None
    algorithm: str = ""
    variant: str = ""
    draw: int = 0  # of hyperparameters; 0: the defaults
    trial: int | None = None  # of a sweep; a run on its own has only a seed
    groups: tuple[tuple[str, ...], ...] = ()  # of held-out domains; two: it only helps to choose
    seed: int = 0
    dataset: str = ""
    data: str = ""
    source: str = ""
    classes: tuple[str, ...] = ()
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role -> names
    config: Mapping[str, Any] = field(default_factory=dict)
    records: Records = field(default_factory=lambda: Records(()))
    quarantined: tuple[tuple[str, str], ...] = ()  # (image, reason)
    rehearsal: Rehearsal | None = None
    rows: frozenset[str] | None = None  # methods that its scores count for; None: all of them

    @property
    def replicate(self) -> int:
        """Equal for runs that are compared with each other: the trial, or else the seed."""
        return self.seed if self.trial is None else self.trial

    @property
    def finished(self) -> Finished | None:
        return self.records.finished

    @property
    def final(self) -> list[Score]:
        return [
            score
            for score in self.records.scores
            if score.moment == "final" and (self.rows is None or score.method in self.rows)
        ]

    def counts_for(self, key: Key) -> bool:
        """Whether its scores by the method of `key` count for that line."""
        alike = (self.algorithm, self.variant) == (key.algorithm, key.variant)
        return alike and (self.rows is None or key.method in self.rows)

    @property
    def starts(self) -> list[Started]:
        return [record for record in self.records.all if isinstance(record, Started)]


def find_runs(folder: Path) -> list[RunView]:
    """Every run below `folder`, in the order of their names; unfinished and damaged ones too.

    What lies in a sweep further down is left out: its runs mean something only together.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; give the folder that holds the runs")
    left_out, here = sweeps_below(folder), SweepFolder(folder)
    if here.exists:
        left_out.append(here.embeddings)
    return [
        _view(RunFolder(run), folder)
        for run in runs_below(folder)
        if not any(run.is_relative_to(one) for one in left_out)
    ]


def sweep_runs(folder: Path, sweep: Sweep) -> list[RunView]:
    """The runs of a sweep's jobs, as far as they are there, with what the sweep knows of them."""
    names = ("algorithm", "variant", "dataset", "draw", "trial", "groups")
    runs = [(job, SweepFolder(folder).run(job.id)) for job in sweep.jobs]
    return [
        replace(_view(run, folder), **{name: getattr(job, name) for name in names})
        for job, run in runs
        if run.exists
    ]


def _view(run: RunFolder, root: Path) -> RunView:
    folder, file = run.path, run.identity_file.name
    name = folder.resolve().name if folder == root else folder.relative_to(root).as_posix()
    try:
        stored = run.identity()
        source = str(stored.get("source", ""))
        values = run.rehearsal()
        return RunView(
            name=name,
            folder=folder,
            algorithm=str(stored["config"]["algorithm"]),
            seed=int(stored["config"]["seed"]),
            dataset=source.rstrip("/").removesuffix(".parquet") or "data",
            data=str(stored["data"]),
            source=source,
            classes=tuple(stored.get("classes", ())),
            domains={r: tuple(stored.get(f"{r}_domains", ())) for r in ("train", "val", "test")},
            config=stored["config"],
            records=run.records(),
            quarantined=run.quarantined(),
            rehearsal=None if values is None else Rehearsal.from_dict(values, where=REHEARSAL),
        )
    except SchemaError:
        # A table over the runs of one version, without those of another, would mislead.
        raise
    except AcclimateError as error:
        problem = str(error).replace(f"{folder}/", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        problem = f"{file}: not the description of a run; restore it or delete the folder"
    return RunView(name=name, folder=folder, problem=problem)


_NAMES = {"algorithm", "seed", "test_domains", "val_domains"}  # settings that name a run


def varied_settings(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The settings, by dotted name, in which configurations differ, less those that name a run."""
    every = [flat(config) for config in configs]
    paths = {path for settings in every for path in settings} - _NAMES
    return sorted(
        path for path in paths if len({json.dumps(settings.get(path)) for settings in every}) > 1
    )


def name_variants(runs: Iterable[RunView]) -> list[RunView]:
    """Runs of one algorithm that differ in settings on the same data, seed and test domains become
    variants of it. Where each seed has settings of its own, nothing says which belong together."""
    alike: dict[tuple[object, ...], list[RunView]] = defaultdict(list)
    views = list(runs)
    for run in views:
        if run.finished is not None:
            alike[run.algorithm, run.data, run.seed, run.domains.get("test", ())].append(run)
    varied: dict[str, set[str]] = defaultdict(set)
    for same in alike.values():
        varied[same[0].algorithm].update(varied_settings(run.config for run in same))
    return [
        replace(run, variant=_variant(run.config, sorted(varied[run.algorithm]))) for run in views
    ]


def _variant(config: Mapping[str, Any], paths: Sequence[str]) -> str:
    """`lr=0.1, steps=5`: the settings at `paths`, by their last name where that is theirs alone."""
    settings = flat(config)
    last = [path.rpartition(".")[2] for path in paths]
    return ", ".join(
        f"{name if last.count(name) == 1 else path}={_value_text(settings.get(path))}"
        for path, name in zip(paths, last, strict=True)
    )


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return Path(value).name or "unset"  # a path of weights would fill the table
    return "unset" if value is None else json.dumps(value)


# Which split of a domain speaks for it, the best first. An unseen domain is scored whole; a
# training domain on rows that were not trained on, best on those that did not choose the weights.
_WHOLE_FIRST = ("all", "test", "val", "train")
_SPLITS = {"test": _WHOLE_FIRST, "val": _WHOLE_FIRST, "train": ("test", "val", "all", "train")}


def scores_of(run: RunView, role: str, metric: str = TOP_1) -> list[Score]:
    """The final scores on domains of a role, one per domain and method; those without a value of
    the metric left out, and those of training that ran off to infinity."""
    order, best = _SPLITS[role], dict[tuple[str, str], Score]()
    known = [s for s in run.final if s.role == role and s.split in order]
    scored = [s for s in known if isfinite(nan if (v := s.value(metric)) is None else v)]
    for score in sorted(scored, key=lambda s: order.index(s.split)):
        best.setdefault((score.domain, score.method), score)
    return list(best.values())
