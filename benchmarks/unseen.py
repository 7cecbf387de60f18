"""What a rehearsed run promised, and what happens at its unseen domains.

For benchmarks: every chain, with every number of images. What the backbone makes of the images is
worked out once, and all adapting and scoring is done on that, by the code that scores runs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from acclimate.config import RunConfig
from acclimate.core.distributed import World, cores, joined
from acclimate.core.files import write_json
from acclimate.data.manifest import Manifest
from acclimate.data.source import (
    FeatureSource,
    Quarantine,
    Source,
    numbered,
    open_source,
    readable,
    to_float,
)
from acclimate.learn.frozen import Extraction
from acclimate.learn.model import Trained
from acclimate.learn.models import takes_features
from acclimate.records.records import Score
from acclimate.records.rehearsal import Promise, Rehearsal, verdict
from acclimate.results.comparison import Comparison, Observation, compare, expected_of_runs
from acclimate.results.runs import Key
from acclimate.results.statistics import Estimate
from acclimate.runs.plan import Plan, check_components
from acclimate.runs.scoring import Subject, final_scores

CHAINS = ("prior", "embedding", "embedding+prior")
PLAIN_EM = {"prior": {"temperature": 1.0, "strength": 0.0, "expect": "anything"}}  # as published
Row = dict[str, Any]


def as_rehearsed(chain: str) -> str:
    """What a chain is called with the settings that rehearsal chose; without any it is the same."""
    return f"rehearsed {chain}" if chain in CHAINS and "prior" in chain else chain


def measure(run: Path, manifest: Manifest, points: Sequence[int], device: str = "auto") -> Row:
    """A finished, rehearsed run at its unseen test domains: `rows` of scores, and `promises` beside
    what came of them, for each number of images in `points`. With the first of these, methods are
    scored by EM as published, too."""
    with joined(device) as world:
        trained = Trained.load(run, world.device)
        found = trained.rehearsal
        if found is None or not trained.test_domains:
            raise SystemExit(f"{run} was not rehearsed, or no domain is left to score it on")
        kept = np.concatenate([manifest.rows(domain=name) for name in trained.test_domains])
        part = replace(manifest.select(np.sort(kept)), classes=trained.classes)
        source = _on_features(run, trained, part, world)
        rows = [
            row
            for n in dict.fromkeys(points)
            for row in _scored(trained, found, part, source, world, n, shipped=n == points[0])
        ]
    return {
        "rows": rows,
        "promises": list(promises(found, rows)),
        "chosen": [{"n": n, "chain": chain} for n, chain in found.chosen.items()],
        "sites": found.domains,
        "exact": found.exact,
        "verdict": verdict(found),
    }


def _on_features(run: Path, trained: Trained, part: Manifest, world: World) -> Source:
    """All rows as features of the model's backbone, which hands them on as they come."""
    quarantine, config = Quarantine(), trained.config
    backbone = trained.predictor.backbone
    if takes_features(trained.predictor):
        return open_source(part, trained.size, config.data, quarantine)
    if config.model.freeze == "backbone":
        every = np.arange(len(part))
        extraction = Extraction(backbone, config.model.backbone, trained.size)
        there = extraction.extract(part, every, config.data, quarantine, beside=run, world=world)
        there.features = there.features.to(world.device)
        return there
    source = open_source(part, trained.size, config.data, quarantine, world.device)
    first, image = numbered(source.image)
    x = torch.zeros(len(first), backbone.features, device=world.device)
    good = np.zeros(len(first), dtype=bool)
    with torch.no_grad():
        for places, stored in readable(source, first):
            made = backbone(to_float(stored, world.device)).float()
            x[torch.from_numpy(places)], good[places] = made, True
    return FeatureSource(source.labels, x, image, good)


def _scored(
    trained: Trained,
    found: Rehearsal,
    part: Manifest,
    source: Source,
    world: World,
    n: int,
    *,
    shipped: bool,
) -> Iterator[Row]:
    adapt = replace(trained.config.adapt, points=n)
    usual = replace(trained.config, adapt=adapt)
    able = [method for method in CHAINS if trained.adaptive or method == "prior"]
    known = [chain for chain in able if chain in found.chains or chain == "embedding"]
    for score in _final(trained, usual, part, source, world, known):
        yield row_of(score, as_rehearsed(score.method), n)
    if shipped:
        config = replace(usual, adapt=replace(adapt, components=PLAIN_EM))
        methods = [method for method in able if "prior" in method]
        raw = replace(trained, rehearsal=None)  # not calibrated
        for score in _final(raw, config, part, source, world, methods):
            if score.method in methods:
                yield row_of(score, score.method, n)


def _final(
    trained: Trained,
    config: RunConfig,
    part: Manifest,
    source: Source,
    world: World,
    methods: Sequence[str],
) -> Iterator[Score]:
    plan = Plan(config, check_components(config), part, (), (), trained.test_domains or ())
    subject = Subject.of(trained, plan, source, world)
    return (score for score, _ in final_scores(subject, methods))


def row_of(score: Score, method: str, n: int) -> Row:
    return {
        "algorithm": "erm",
        "method": method,
        "domain": score.domain,
        "n": n,  # images asked for; small domains give fewer
        "images": score.adapt_n,
        "top1": score.top1,
        "top5": score.top5,
        "scored": score.n,
    }


def promises(found: Rehearsal, rows: Sequence[Row]) -> Iterator[Row]:
    """Each chain's promise and the true gain over the unseen domains; `auto` promises what the
    chain does that was chosen."""
    top1 = {(row["method"], row["n"], row["domain"]): row["top1"] for row in rows}
    for n in dict.fromkeys(row["n"] for row in rows):
        if n < min(found.chosen):
            continue  # nothing was promised for so few
        chosen = found.chain_for(n)
        for chain in (*(c for c in sorted(found.chains) if c != "none"), "auto"):
            method = chain if chain == "auto" else as_rehearsed(chain)
            gains = {
                domain: mine - top1["none", n, domain]
                for (name, points, domain), mine in top1.items()
                if (name, points) == (method, n) and mine is not None
            }
            if gains:
                promise = found.promise(chosen if chain == "auto" else chain, n)
                told = {"chain": chain, "n": n, "chosen": chain in (chosen, "auto")}
                yield {**told, **_kept(promise, gains)}


def _kept(promise: Promise, gains: Mapping[str, float]) -> Row:
    """A promise beside what came of it. `low` and `high` are for the mean over these domains, and
    `inside` is the share of them that lie where a single one was expected."""
    one, every, expected = (
        promise.expected_gain(),
        promise.expected_gain(len(gains)),
        promise.expected(),
    )
    true = Estimate.of(gains.values())
    assert true is not None
    return {
        "rehearsed_with": promise.n,
        "frequencies": promise.frequencies,
        "gain": promise.gain,
        "error": promise.error,
        "low": None if every is None else every[0],
        "high": None if every is None else every[1],
        "sites": promise.domains,
        "true": true.mean,
        "true_error": true.se,
        "inside": None if one is None else fmean(one[0] <= g <= one[1] for g in gains.values()),
        "domains": len(gains),
        "expected": None if expected is None else expected.accuracy,
        "floor": None if expected is None else expected.floor,
    }


def observations(result: Row) -> list[Observation]:
    """The scores of a result with as many images as it is mainly about."""
    return [
        Observation(
            dataset=result["data"],
            key=Key(row["algorithm"], row["method"]),
            data=result["digest"],
            trial=result["seed"],
            domain=row["domain"],
            value=row["top1"],
            others={"top-5": row["top5"]},
            images=row["scored"],
        )
        for row in result["rows"]
        if row["n"] == result["n"] and row["top1"] is not None
    ]


def summarised(results: Sequence[Row]) -> Comparison:
    """Of one data set, as reports have it: lines, differences to plain ERM, gap closed."""
    found = [one for result in results for one in observations(result)]
    return compare(found, expected_of_runs(found))[-1]


class Work(Protocol):
    """A result that can be made by itself, in a process of its own."""

    @property
    def file(self) -> Path: ...

    def make(self) -> Row: ...


W = TypeVar("W", bound=Work)


def finished(work: Sequence[W], jobs: int) -> Iterator[tuple[W, Row]]:
    """All of it as it gets finished, so many at a time; what has its file is not made again."""
    if jobs == 1:
        for one in work:
            yield one, _done(one)
        return
    threads = max(1, cores() // jobs)
    start = get_context("spawn")
    with ProcessPoolExecutor(jobs, start, torch.set_num_threads, (threads,)) as pool:
        waiting = {pool.submit(_done, one): one for one in work}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _done(work: Work) -> Row:
    if not work.file.exists():
        write_json(work.file, work.make())
    stored: Row = json.loads(work.file.read_text())
    return stored
