"""Steps of training beside the incumbent's path and beside the step alone."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import torch

import incumbent
from acclimate.config import DataConfig
from acclimate.data.source import Quarantine, pack_images
from acclimate.rehearse.training import train
from speeds.bench import CEILING, NONE_KEPT, Bench, Row, one_batch, rate_of, say


def rates_beside(
    bench: Bench, ways: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    """Images per second of runs with these settings, and of the step alone, and the share of that,
    in turn: a machine is not equally fast all the time. The medians of the turns."""
    steps = max(bench.scale.steps // 2, 1)
    short: dict[str, Any] = {"train.steps": steps, "train.checkpoint_every": max(steps // 3, 1)}
    found: dict[str, list[float]] = {name: [] for name in (*ways, CEILING)}
    for turn in range(bench.scale.turns):
        for name, rates in found.items():
            config = bench.config(**short, **ways.get(name, {}))
            with one_batch() if name == CEILING else nullcontext():
                rates.append(rate_of(bench.trained(f"{name}, turn {turn}", config)[0]))
        say("images/s", {name: rates[-1] for name, rates in found.items()})
    return {
        name: (median(rates), median(map(truediv, rates, found[CEILING])))
        for name, rates in found.items()
    }


def incumbent_run(bench: Bench, *, steps: int, validate_every: int) -> dict[str, float]:
    """DomainBed's way on the images, network and batches of `bench`."""
    scale, manifest = bench.scale, bench.manifest

    def files(domain: str, split: str | None, *, augmented: bool) -> incumbent.Files:
        chosen = manifest.rows(domain=domain, split=split)
        paths = [Path(str(manifest.image_source(int(row)))) for row in chosen]
        transform = incumbent.transforms(scale.size, augmented=augmented)
        return incumbent.Files(paths, manifest.label_index[chosen].tolist(), transform)

    seen = [domain for domain in manifest.domains if domain != bench.test]
    return incumbent.measure(
        [files(domain, "train", augmented=True) for domain in seen],
        [files(domain, "val", augmented=False) for domain in seen],
        files(bench.test, None, augmented=False),
        backbone=scale.backbone,
        classes=len(manifest.classes),
        device=bench.device,
        per_domain=scale.per_domain,
        steps=steps,
        warm=scale.warm,
        validate_every=validate_every,
        workers=scale.workers,
    )


def training(bench: Bench) -> list[Row]:
    scale, manifest = bench.scale, bench.manifest
    rows: list[Row] = []
    theirs = incumbent_run(bench, steps=scale.steps, validate_every=scale.validate_every)
    say("incumbent", theirs)
    bench.incumbent.update(theirs)
    # As the library comes: everything decoded once, and on the GPU where it fits. The time of
    # validation and checkpoints is in the ends, and not in the rates.
    plan: dict[str, Any] = {"train.evaluate_every": scale.validate_every}
    _, ended = bench.trained("end to end", bench.config(**plan))
    _, cold_end = bench.trained("end to end, cold", bench.config(**plan, **NONE_KEPT))
    say("end to end", [ended, cold_end])
    pack_images(manifest, scale.size, DataConfig(), Quarantine())
    from_pack: dict[str, Any] = {"data.cache_gib": 0.0}
    ways = {
        "cold": NONE_KEPT,
        "cached": {},
        "packed": from_pack,
        "packed, not recorded": {**from_pack, "train.compile": "off"},
    }
    rows.append({"steps": "incumbent", "images/s": theirs["images/s"], "x": 1.0})
    for name, (rate, share) in rates_beside(bench, ways).items():
        beside = rate / theirs["images/s"]
        rows.append({"steps": name, "images/s": rate, "x": beside, "of ceiling": share})
    ends = {"incumbent": theirs["seconds"], "ours": ended, "ours, nothing kept": cold_end}
    for name, seconds in ends.items():
        beside = ends["incumbent"] / seconds
        rows.append({"steps": f"end to end: {name}", "seconds": seconds, "x": beside})
    return rows


def compiled(bench: Bench) -> list[Row]:
    """The step through torch.compile and CUDA graphs, as runs of many steps have it."""
    if bench.device.type != "cuda":
        return [{"steps, compiled": "only on a GPU"}]
    try:
        return _compiled(bench)
    finally:
        torch.compiler.reset()  # whose graphs hold memory that other parts count


def _compiled(bench: Bench) -> list[Row]:
    said: list[str] = []
    wish = {"train.compile": "on"}
    config = bench.config(**wish)
    with one_batch():
        started = time.perf_counter()
        out = bench.folder / "one batch, compiled"
        train(config, bench.manifest, out, device=str(bench.device), say=said.append)
        seconds = time.perf_counter() - started
    ceiling = rate_of(out)
    runs = {
        CEILING: out,
        "cached": bench.trained("cached, compiled", config)[0],
        "cold": bench.trained("cold, compiled", bench.config(**wish, **NONE_KEPT))[0],
    }
    rows: list[Row] = []
    for name, run in runs.items():
        rate = rate_of(run)
        row: Row = {"steps, compiled": name, "images/s": rate, "of ceiling": rate / ceiling}
        rows.append({**row, "x": rate / bench.incumbent["images/s"]} if bench.incumbent else row)
    rows[0]["seconds, compiling among them"] = seconds
    return [*rows, *({"steps, compiled": line} for line in said)]
