"""Whole runs: seconds that do not grow with the steps, seconds for each step, and what both come to
for longer runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from acclimate.records.folder import RunFolder
from speeds.bench import NONE_KEPT, Bench, Row, say
from speeds.training import incumbent_run

LONGER = (1000, 5000)  # steps that are computed,
CHECKED = 1000  # and one of them measured, too
RECORDS = 6  # of a run: the median step is that of those after the first
EAGER, GRAPHED = {"train.compile": "off"}, {"train.compile": "auto"}
COMPILED = {"train.compile": "on"}
WAYS: dict[str, Mapping[str, Any]] = {
    "eager": EAGER,
    "eager, none kept": {**EAGER, **NONE_KEPT},
    "graphed": GRAPHED,
    "graphed, none kept": {**GRAPHED, **NONE_KEPT},
    "compiled, cold": COMPILED,
    "compiled, warm": COMPILED,
    "compiled, warm, none kept": {**COMPILED, **NONE_KEPT},
}


def whole_runs(bench: Bench) -> list[Row]:
    """A run of each way from the first line to the last, with three validations."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(bench.folder / "compiled")
    _run(bench, "warm-up", {"train.compile": "off"}, steps=10)  # what a process loads once
    theirs = _theirs(bench, bench.scale.steps)
    rows = [theirs]
    for name, settings in WAYS.items():
        torch.compiler.reset()
        rows.append(_run(bench, name, settings, steps=bench.scale.steps))
    torch.compiler.reset()
    for row in rows:
        for steps in (bench.scale.steps, *LONGER):
            row[f"x at {steps}"] = _seconds(theirs, steps) / _seconds(row, steps)
    if bench.device.type == "cuda":
        pair = [_theirs(bench, CHECKED), _run(bench, "graphed, checked", GRAPHED, steps=CHECKED)]
        for row in pair:
            row[f"x at {CHECKED}"] = pair[0]["seconds"] / row["seconds"]
        rows += pair
    return rows


def _seconds(row: Row, steps: int) -> float:
    return float(row["fixed"] + steps * row["step"])


def _row(name: str, steps: int, seconds: float, step: float) -> Row:
    row = {"run": name, "steps": steps, "seconds": seconds, "fixed": seconds - steps * step}
    say(name, {**row, "step": step})
    return {**row, "step": step}


def _theirs(bench: Bench, steps: int) -> Row:
    measured = incumbent_run(bench, steps=steps, validate_every=max(steps // 3, 1))
    step = 3 * bench.scale.per_domain / measured["images/s"]
    return _row("DomainBed's way", steps, measured["seconds"], step)


def _run(bench: Bench, name: str, settings: Mapping[str, Any], *, steps: int) -> Row:
    ends = {
        "train.steps": steps,
        "train.evaluate_every": max(steps // 3, 1),
        "train.checkpoint_every": max(steps // RECORDS, 1),
    }
    out, seconds = bench.trained(f"whole {name}", bench.config(**{**ends, **settings}))
    return _row(name, steps, seconds, _step(bench, out))


def _step(bench: Bench, out: Path) -> float:
    losses = RunFolder(out).records().losses[1:]
    return 3 * bench.scale.per_domain / median(loss.images_per_second for loss in losses)
