"""DomainBed sweeps: read its results.jsonl files, and select what its own collector selects.

A folder there is one run; a line is one checkpoint, with an accuracy for both splits of every
environment: "in" (most of its images) and "out" (the rest). Its rules choose a checkpoint as well
as the hyperparameters. The result is the accuracy on the test environment's "in" split.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.core.errors import RecordError, require_known
from acclimate.core.files import parse_json
from acclimate.results.comparison import Expected
from acclimate.results.runs import Key

RESULTS = "results.jsonl"

OURS = (
    *("ERM", "IRM", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "VREx", "EQRM", "IB_ERM"),
    *("SD", "RSC", "SelfReg", "SagNet", "CausIRL_CORAL", "CausIRL_MMD", "Fish", "Fishr"),
    *("MTL", "MIRO", "ARM"),
)
ALGORITHMS = {name: name.lower().replace("_", "-") for name in OURS} | {"GroupDRO": "group-dro"}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One line: the accuracies of one run at one step."""

    dataset: str
    algorithm: str  # as DomainBed names it
    test_envs: tuple[int, ...]  # one: scored; two: only helps to choose
    hparams_seed: int
    trial_seed: int
    step: int
    inside: tuple[float, ...]  # accuracy on each environment's "in" split
    outside: tuple[float, ...]  # and on its "out" split


@dataclass(frozen=True, kw_only=True)
class History:
    """What a sweep folder holds, with what was found wrong on the way."""

    checkpoints: tuple[Checkpoint, ...]
    empty: tuple[str, ...]  # folders without results
    torn: tuple[str, ...]  # folders whose last line is cut off


def label(algorithm: str) -> str:
    """Our name of the same method; its own name where we do not have it."""
    return ALGORITHMS.get(algorithm, algorithm)


def domain_name(dataset: str, env: int) -> str:
    """Its environments are the folders of a data set in alphabetical order."""
    from acclimate.build.domainbed import BENCHMARKS  # few reports are of DomainBed

    names = {one.title: sorted(one.domains) for one in BENCHMARKS.values()}.get(dataset, [])
    return names[env] if env < len(names) else f"env {env}"


def read_domainbed(folder: Path) -> History:
    """Every checkpoint of every run below `folder`, runs in alphabetical order."""
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such folder; give the output folder of a DomainBed sweep")
    checkpoints: list[Checkpoint] = []
    empty, torn = [], []
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        lines, cut = _read_run(run / RESULTS)
        checkpoints += lines
        if not lines:
            empty.append(run.name)
        if cut:
            torn.append(run.name)
    if not checkpoints:
        raise RecordError(
            f"{folder}: no DomainBed results in it (no */{RESULTS} with a record); "
            f"give the output folder of a DomainBed sweep"
        )
    return History(checkpoints=tuple(checkpoints), empty=tuple(empty), torn=tuple(torn))


def selected(history: History, rule: str) -> dict[Expected, float | None]:
    """The accuracy for each data set, algorithm, trial and test environment, in that order; `None`
    where the rule cannot choose, or what it chose is not a number."""
    require_known(rule, RULES_BY_NAME, f"DomainBed has no selection rule '{rule}'")
    grouped: dict[tuple[str, str, int, int], list[Checkpoint]] = defaultdict(list)
    for one in history.checkpoints:
        for env in one.test_envs:
            grouped[one.dataset, one.algorithm, one.trial_seed, env].append(one)
    outcomes = {}
    for dataset, algorithm, trial, env in sorted(grouped):
        domain, key = domain_name(dataset, env), Key.usual(label(algorithm))
        checkpoints = grouped[dataset, algorithm, trial, env]
        outcomes[Expected(dataset, key, "", trial, domain)] = _best_accuracy(
            checkpoints, env, RULES_BY_NAME[rule]
        )
    return outcomes


# What a rule makes of the checkpoints of one setting of the hyperparameters, or of one step: the
# value that is compared, and the accuracy that goes into the table.
Compared = tuple[float, float]
Rule = Callable[[Sequence[Checkpoint], int], Compared | None]


def by_training_domains(checkpoints: Sequence[Checkpoint], env: int) -> Compared | None:
    """The checkpoint with the best mean over the training environments' "out" splits."""
    return _first_best(
        (float(np.mean(np.delete(one.outside, env))), one.inside[env])
        for one in checkpoints
        if len(one.test_envs) == 1
    )


def by_leave_one_out(checkpoints: Sequence[Checkpoint], env: int) -> Compared | None:
    """The step with the best mean over the environments that were held out beside `env`."""
    steps: dict[int, list[Checkpoint]] = defaultdict(list)
    for one in checkpoints:
        steps[one.step].append(one)
    compared = (_left_out(steps[step], env) for step in sorted(steps))
    return _first_best(pair for pair in compared if pair is not None)


def by_oracle(checkpoints: Sequence[Checkpoint], env: int) -> Compared | None:
    """The last checkpoint, by the test environment's own "out" split."""
    scored = [one for one in checkpoints if len(one.test_envs) == 1]
    if not scored:
        return None
    last = sorted(scored, key=lambda one: one.step)[-1]
    return last.outside[env], last.inside[env]


RULES_BY_NAME: Mapping[str, Rule] = {
    "training-domains": by_training_domains,
    "leave-one-out": by_leave_one_out,
    "oracle": by_oracle,
}


def _best_accuracy(checkpoints: Iterable[Checkpoint], env: int, rule: Rule) -> float | None:
    """The accuracy of the best setting; of the largest seed where several are equal."""
    settings: dict[int, list[Checkpoint]] = defaultdict(list)
    for one in checkpoints:
        settings[one.hparams_seed].append(one)
    compared = [rule(settings[seed], env) for seed in sorted(settings)]
    # A value that is not a number loses to all others here, as it does in DomainBed.
    ranked = sorted(
        (pair for pair in compared if pair is not None),
        key=lambda pair: float("-inf") if isnan(pair[0]) else pair[0],
    )
    return None if not ranked or isnan(ranked[-1][1]) else ranked[-1][1]


def _left_out(checkpoints: Sequence[Checkpoint], env: int) -> Compared | None:
    """None where the scored run is not there exactly once, or an environment is missing."""
    scored = [one for one in checkpoints if len(one.test_envs) == 1]
    if len(scored) != 1:
        return None
    accuracy = {}
    for one in checkpoints:
        if len(one.test_envs) == 2:
            other = one.test_envs[one.test_envs[0] == env]
            accuracy[other] = one.inside[other]
    others = [other for other in range(len(scored[0].inside)) if other != env]
    if any(other not in accuracy for other in others):
        return None
    total = np.sum([accuracy[other] for other in others])
    return float(total / len(others)), scored[0].inside[env]


def _first_best(pairs: Iterable[Compared]) -> Compared | None:
    """The first of the largest. Nothing beats a first value that is not a number: so DomainBed."""
    return max(pairs, key=lambda pair: pair[0], default=None)


def _read_run(path: Path) -> tuple[list[Checkpoint], bool]:
    """The checkpoints of a run, and whether its last line is cut off."""
    if not path.is_file():
        return [], False
    *lines, last = path.read_bytes().split(b"\n")
    whole = [_parse(path, number, line) for number, line in enumerate(lines, start=1) if line]
    if not last.strip():
        return whole, False
    try:
        parse_json(last)
    except ValueError:
        return whole, True
    return [*whole, _parse(path, len(lines) + 1, last)], False  # whole, but for the line's end


def _parse(path: Path, number: int, line: bytes) -> Checkpoint:
    try:
        return _checkpoint(parse_json(line))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise RecordError(
            f"{path}, line {number}: not a DomainBed record; restore or delete the line"
        ) from None


def _checkpoint(values: Mapping[str, Any]) -> Checkpoint:
    args = values["args"]
    envs = next(env for env in count() if f"env{env}_out_acc" not in values)
    checkpoint = Checkpoint(
        dataset=str(args["dataset"]),
        algorithm=str(args["algorithm"]),
        test_envs=tuple(map(int, args["test_envs"])),
        hparams_seed=int(args["hparams_seed"]),
        trial_seed=int(args["trial_seed"]),
        step=int(values["step"]),
        inside=tuple(float(values[f"env{env}_in_acc"]) for env in range(envs)),
        outside=tuple(float(values[f"env{env}_out_acc"]) for env in range(envs)),
    )
    if not all(0 <= env < envs for env in checkpoint.test_envs):
        raise ValueError("a test environment without accuracies")
    return checkpoint
