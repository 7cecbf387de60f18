"""A sweep folder with everything a report can show, written without training anything.

Two data sets, four algorithms, three draws, three trials; failures, a job that waits, damaged
images, maps, consistency and labels. Numbers are drawn from a fixed seed.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from acclimate.config import flat, nested
from acclimate.protocol import (
    Axis,
    DataSet,
    Failure,
    Job,
    Sweep,
    run_folder,
    write_failure,
    write_sweep,
)
from acclimate.records import DOMAIN_MAP, Finished, Loss, Record, Score, Started
from acclimate.theory import mean_radius

HOSTILE = "<script>alert(1)</script>"
PACS = ("art_painting", "cartoon", "photo", HOSTILE)
SENSORS = tuple(f"sensor-{i:02d}" for i in range(40))
UNSEEN = SENSORS[30:]
ALGORITHMS = {"erm": 0.0, "da-erm": 0.05, "coral": 0.015, "da-coral": 0.04}
TRIALS, DRAWS, STEPS = range(3), range(3), 300


def write_example(folder: Path) -> Path:
    """SWEEP with the 180 jobs of the module's description; its folder."""
    jobs = [
        *(
            _job("pacs", name, (domain,), draw, trial)
            for name in ALGORITHMS
            for domain in PACS
            for draw in DRAWS
            for trial in TRIALS
        ),
        *(
            _job("sensors", name, UNSEEN, draw, trial)
            for name in ALGORITHMS
            for draw in DRAWS
            for trial in TRIALS
        ),
    ]
    sweep = Sweep(
        title=f"PACS and sensors {HOSTILE}",
        rule="training-domains",
        baseline="erm",
        datasets=(
            DataSet(name="pacs", digest="d1", source="pacs.parquet", domains=PACS),
            DataSet(name="sensors", digest="d2", source="sensors.parquet", domains=SENSORS),
        ),
        embeddings=(),
        jobs=tuple(jobs),
    )
    write_sweep(folder, sweep)
    rng = np.random.default_rng(0)
    waiting, failed, half = jobs[-1], jobs[20], jobs[0]
    for job in jobs:
        if job not in (waiting, failed):
            _write_run(folder, job, rng, finished=job != half)
    trace = f'Traceback (most recent call last):\n  File "train.py"\nValueError: {HOSTILE}\n'
    write_failure(
        folder,
        Failure(
            job=failed.id,
            error=f"ValueError: {HOSTILE}",
            traceback=trace,
            time="2026-01-01T00:00:00+00:00",
            attempts=2,
        ),
    )
    entry = {"image": f"{HOSTILE}/1.jpg", "reason": "truncated"}
    quarantine = run_folder(folder, jobs[1].id) / "quarantine.jsonl"
    quarantine.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    _write_labels(folder, "pacs", PACS, 7, rng)
    _write_labels(folder, "sensors", SENSORS, 1000, rng)
    return folder


def write_ablation(folder: Path, axis: Axis, *, plain: bool = False) -> Path:
    """A sweep over the variants of `axis`: ERM and DA-ERM, two trials each."""
    jobs = [
        _job("pacs", name, ("photo",), 0, trial, variant)
        for name in ("erm", "da-erm")
        for variant in ([""] if plain and name == "erm" else axis.places)
        for trial in range(2)
    ]
    data = DataSet(name="pacs", digest="d1", source="pacs.parquet", domains=PACS)
    sweep = Sweep(
        title="An ablation",
        rule="training-domains",
        baseline="erm",
        datasets=(data,),
        embeddings=(),
        jobs=tuple(jobs),
        axis=axis,
    )
    write_sweep(folder, sweep)
    rng = np.random.default_rng(0)
    for job in jobs:
        _write_run(folder, job, rng)
    return folder


def _job(
    dataset: str, algorithm: str, group: Sequence[str], draw: int, trial: int, variant: str = ""
) -> Job:
    rng = np.random.default_rng([draw, trial])
    settings: dict[str, Any] = {"algorithm": algorithm, "seed": trial, "test_domains": list(group)}
    settings |= {"train.optimiser.lr": None, "model.dropout": 0.0, "train.keep": "best"}
    if draw:
        settings["train.optimiser.lr"] = float(10 ** rng.uniform(-5, -3.5))
        settings["model.dropout"] = float(rng.choice([0.1, 0.5]))
        settings["train.keep"] = ["best", "last"][draw % 2]
    return Job(
        id="-".join([dataset, algorithm, SAFE.get(group[0], group[0]), variant, f"{draw}{trial}"]),
        dataset=dataset,
        algorithm=algorithm,
        variant=variant,
        groups=(tuple(sorted(group)),),
        draw=draw,
        trial=trial,
        config=nested(settings),
    )


SAFE = {HOSTILE: "hostile"}


def _write_run(folder: Path, job: Job, rng: np.random.Generator, *, finished: bool = True) -> None:
    run = run_folder(folder, job.id)
    run.mkdir(parents=True)
    domains = PACS if job.dataset == "pacs" else SENSORS
    train = [name for name in domains if name not in job.held_out]
    identity = {
        "format": "acclimate-run-1",
        "config": _resolved(job.config),
        "data": "d1" if job.dataset == "pacs" else "d2",
        "source": f"{job.dataset}.parquet",
        "classes": [f"class {i}" for i in range(7 if job.dataset == "pacs" else 1000)],
        "train_domains": train,
        "val_domains": [],
        "test_domains": list(job.held_out),
    }
    (run / "run.json").write_text(json.dumps(identity), encoding="utf-8")
    records = _records(job, train, rng)
    lines = [
        {"schema": 1, "kind": record.kind, **dataclasses.asdict(record)}
        for record in (records if finished else records[:6])
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "records.jsonl").write_text(text, encoding="utf-8")
    if finished:
        (run / "model.json").write_text("{}")
    if job.algorithm.startswith("da-"):
        _write_map(run, train, job.held_out)
        (run / "consistency.json").write_text(json.dumps(consistency()))


def _resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run knows the rate that a sweep leaves open."""
    settings = flat(config)
    if settings["train.optimiser.lr"] is None:
        settings["train.optimiser.lr"] = 5e-5
    return nested(settings)


def _records(job: Job, train: Sequence[str], rng: np.random.Generator) -> list[Record]:
    adaptive = job.algorithm.startswith("da-")
    usual = "embedding" if adaptive else "none"
    start = Started(
        time="2026-01-01",
        version="0.1.0",
        config_digest="c",
        data_digest="d",
        device="cpu, 2 threads",
        processes=1,
        resumed_at=None,
    )
    records: list[Record] = [start]
    for phase in ["embedding", "main"] if adaptive else ["main"]:
        records += [
            Loss(
                phase=phase,
                step=step,
                risk=float(np.exp(-step / 150) + rng.uniform(0, 0.05)),
                penalty=None,
                lr=1e-3,
                images_per_second=100.0,
            )
            for step in range(50, STEPS + 1, 50)
        ]
    level = 0.6 + ALGORITHMS[job.algorithm] + 0.02 * rng.standard_normal()
    for step in (100, 200, STEPS):
        value = level + 0.15 + 0.02 * step / STEPS
        records += [_score("validation", step, name, "train", value, usual) for name in train[:2]]
    controls = {"wrong-embedding": -0.2} if adaptive else {"oracle-prior": 0.12}
    for domain in job.held_out:
        shift = 0.08 * (sum(domain.encode()) % 5 - 2) + 0.02 * rng.standard_normal()
        for method, gain in ({usual: 0.0} | controls).items():
            records.append(_score("final", STEPS, domain, "test", level + shift + gain, method))
    records += [_score("final", STEPS, name, "train", level + 0.2, usual) for name in train[:2]]
    kept = Finished(
        kept_step=STEPS, kept_by="validation", kept_score=level, seconds=61.0, quarantined=0
    )
    return [*records, kept]


def _score(moment: str, step: int, domain: str, role: str, top1: float, method: str) -> Score:
    adapted = method.endswith("embedding") and role == "test"
    return Score(
        moment=moment,
        step=step,
        domain=domain,
        role=role,
        split="val" if role == "train" else "all",
        n=100,
        top1=float(top1),
        top5=None,
        method=method,
        adapted_on="held-out" if adapted else None,
        adapt_n=40 if adapted else None,
    )


def _write_map(run: Path, train: Sequence[str], test: Sequence[str]) -> None:
    names = [*train, *test]
    mu = np.random.default_rng(0).normal(size=(len(names), 4)).astype(np.float32)
    roles = ["train"] * len(train) + ["test"] * len(test)
    save_file(
        {"mu": mu, "variance": mu[:, 0] ** 2, "count": np.full(len(names), 40)},
        run / DOMAIN_MAP,
        {"names": json.dumps(names), "roles": json.dumps(roles)},
    )


def consistency() -> dict[str, Any]:
    """Errors as 1/√n; the theorem is silent up to a few hundred images."""
    points = [
        {
            "n": n,
            "error": 1 / n**0.5,
            "error95": 1.4 / n**0.5,
            "radius": mean_radius(n, 1.0, 4.0),
        }
        for n in (1, 3, 10, 30, 100, 300, 1000, 3000)
    ]
    return {"points": points, "domains": [], "between": 1.9, "within": 1.2}


def _write_labels(
    folder: Path, name: str, domains: Sequence[str], classes: int, rng: np.random.Generator
) -> None:
    base = 1 / np.arange(1, classes + 1)
    counts = {
        domain: rng.multinomial(500 + 10 * i, rng.dirichlet(20 * base / base.sum() + 1e-3))
        for i, domain in enumerate(domains)
    }
    stored = {
        "name": name,
        "classes": [f"class {i}" for i in range(classes)],
        "domains": {
            domain: {"role": "test" if domain in UNSEEN else "train", "counts": found.tolist()}
            for domain, found in counts.items()
        },
    }
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "labels" / f"{name}.json").write_text(json.dumps(stored), encoding="utf-8")
