"""Every algorithm, embedding and adaptation method on the embedded benchmark, in one table.

`python benchmarks/algorithms.py --jobs 16` (docs/algorithms.md keeps the result). Each run gets one
thread, the demonstration's settings and DomainBed's default hyperparameters (but for LATE); nothing
is tuned. Runs and their scores are kept, and what is missing is added. The seeds are the first of
docs/results.md.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.config import AlgorithmName
from acclimate.core.files import write_text
from acclimate.data.images import read_pixels
from acclimate.data.manifest import Manifest
from acclimate.demo import SETTINGS
from acclimate.learn.algorithms import names
from acclimate.learn.embeddings import EMBEDDINGS
from acclimate.learn.embeddings.state import sample_rows
from acclimate.paper.kernel import KernelClassifier
from pages import TRAINING, fill, made

ROOT = Path(__file__).resolve().parent.parent
PLAIN_METHODS = ("prior", "t3a", "tent", "tent+prior", "sar", "shot", "lame")
ADAPTIVE_METHODS = ("none", "embedding+prior", "embedding+t3a", "embedding+tent")
Table = dict[tuple[str, str, str, str], list[tuple[float, float]]]
# By default these penalties count after 500 to 2500 steps, more than there are here.
LATE = ("irm", "vrex", "ib-erm", "eqrm", "fishr")
EXTRA: dict[str, dict[str, Any]] = {name: {"hparams.anneal": 100} for name in LATE}
# The paper's. The others run over a plain predictor alone: all would take twice as long.
OVER_MU = ("erm", "irm", "group-dro", "mixup", "mldg", "coral", "mmd", "dann", "cdann")


@dataclass(frozen=True)
class Job:
    algorithm: str
    embedding: str
    seed: int
    data: str = "digits"

    @property
    def name(self) -> str:
        return f"{self.algorithm}-{self.embedding}-{self.data}-{self.seed}"


def jobs(seeds: int) -> Iterable[Job]:
    for seed in range(seeds):
        for name in names():
            algorithm = AlgorithmName.of(name)
            if not algorithm.over_mu or algorithm.base in OVER_MU:
                yield Job(name, "prototype", seed)
        yield from (Job("da-erm", name, seed) for name in EMBEDDINGS if name != "prototype")
        yield from (Job(name, "prototype", seed, "pixels") for name in ("erm", "da-erm"))
        yield Job("erm", "prototype", seed, "pixels and the true domain")


def write_data(folder: Path, seed: int) -> None:
    """The benchmark, and as feature rows: its pixels alone, and with what defines their domain
    (gain, offset, label frequencies) beside them, for an oracle that knows the true domain."""
    digits = build_digits(DigitsSettings(seed=seed))
    rows = range(len(digits))
    pixels = np.stack([read_pixels(digits.image_source(row), 8)[0].ravel() / 255 for row in rows])
    frequencies = np.stack(
        [
            np.bincount(digits.label_index[digits.rows(domain=name)], minlength=10)
            for name in digits.domains
        ]
    )
    frequencies = frequencies / frequencies.sum(1, keepdims=True)
    sensor = np.stack([digits.table[name].to_numpy() for name in ("gain", "offset")], axis=1)
    true = np.concatenate([pixels, sensor, frequencies[digits.domain_index]], axis=1)
    labels = np.array(digits.classes)[digits.label_index]
    for name, X in (("pixels", pixels), ("pixels and the true domain", true)):
        features = Manifest.from_arrays(
            X.astype(np.float32), labels, digits.domain_names, splits=digits.splits
        )
        table = features.table.append_column("role", digits.table["role"])
        replace(features, table=table).write(folder / f"{name}-{seed}.parquet")
    digits.write(folder / f"digits-{seed}.parquet")


def command(*arguments: object) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "acclimate", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def work(job: Job, folder: Path) -> list[dict[str, Any]]:
    """Train one job and score it with every method that fits it; what was scored is read again."""
    kept = folder / f"{job.name}.json"
    if kept.exists():
        scores: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))
        return scores
    data, run = folder / f"{job.data}-{job.seed}.parquet", folder / job.name
    settings = {**SETTINGS, "embedding.name": job.embedding}
    settings |= EXTRA.get(AlgorithmName.of(job.algorithm).base, {})
    settings |= {"adapt.prior.strength": 0.0}  # EM as published
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command(
        "train", data, "--algorithm", job.algorithm, "--seed", job.seed, "--out", run, *flags,
        "--device", "cpu",
    )  # fmt: skip
    scores = json.loads(command("evaluate", run, "--json"))["scores"]
    if job.algorithm in ("erm", "da-erm", "arm", "mtl") and job.data == "digits":
        methods = PLAIN_METHODS if job.algorithm == "erm" else ADAPTIVE_METHODS
        more = [part for method in methods for part in ("--method", method)]
        text = command("evaluate", run, data, "--json", "--device", "cpu", *more)
        scores += [s for s in json.loads(text)["scores"] if s["method"] in methods]
    write_text(kept, json.dumps(scores))
    return scores


def kernel(folder: Path, seed: int) -> tuple[float, float]:
    """The kernel form on the pixels: mean and worst over unseen domains, adapted to as the rest."""
    data = Manifest.read(folder / f"pixels-{seed}.parquet")
    X, y = data.features(), np.array(data.classes)[data.label_index]
    seen = np.concatenate(
        [data.rows(domain=d, split="train") for d, role in data.roles().items() if role == "train"]
    )
    model = KernelClassifier(combine="shared", seed=seed)
    model.fit(X[seen], y[seen], data.domain_names[seen])
    found = []
    for domain in (d for d, role in data.roles().items() if role == "test"):
        rows = data.rows(domain=domain)
        chosen = sample_rows(rows, SETTINGS["adapt.points"], seed, domain)
        rest = np.setdiff1d(rows, chosen)
        found.append(float(np.mean(np.array(model.adapt(X[chosen]).predict(X[rest])) == y[rest])))
    return float(np.mean(found)), min(found)


def estimate(values: Iterable[float]) -> str:
    found = 100 * np.array(list(values))
    if len(found) < 2:
        return f"{found.mean():.1f}"
    return f"{found.mean():.1f} ± {found.std(ddof=1) / len(found) ** 0.5:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="algorithms, with erm among them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "algorithms")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "algorithms.md")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.seeds):
        if not (arguments.runs / f"digits-{seed}.parquet").exists():
            write_data(arguments.runs, seed)
    table: Table = defaultdict(list)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        todo = [
            job
            for job in jobs(arguments.seeds)
            if not arguments.only or job.algorithm in arguments.only.split(",")
        ]
        for job, scores in zip(
            todo, pool.map(lambda j: work(j, arguments.runs), todo), strict=True
        ):
            for method in dict.fromkeys(score["method"] for score in scores):
                unseen = [s["top1"] for s in scores if (s["role"], s["method"]) == ("test", method)]
                if unseen:
                    key = (job.algorithm, job.embedding, job.data, method)
                    table[key].append((float(np.mean(unseen)), min(unseen)))
            Console(stderr=True).print(f"done: {job.name}")
    for seed in range(arguments.seeds):
        table["kernel", "prototype", "pixels", "embedding"].append(kernel(arguments.runs, seed))
    text = render(table, arguments.seeds)
    if not arguments.out.exists():
        write_text(arguments.out, "# All algorithms and methods on the embedded benchmark\n")
    fill(arguments.out, "algorithms", text)
    Console(soft_wrap=True, markup=False, highlight=False).print(text)


def render(table: Table, seeds: int) -> str:
    base = np.mean([mean for mean, _ in table["erm", "prototype", "digits", "none"]])
    oracle = np.mean([mean for mean, _ in table["erm", "prototype", "digits", "oracle-prior"]])
    lines = [
        f"Made by `python benchmarks/algorithms.py` ({seeds} seeds, one CPU thread a run): data,",
        "steps and sizes of the demonstration, DomainBed's default hyperparameters, nothing tuned",
        "(`hparams.anneal` is 100 where there is one: a run has 400 steps).",
        "Accuracy in percent on 20 unseen domains a seed, mean ± standard error over seeds. Gap:",
        "the share of the gap between ERM and the oracle that is closed; the oracle is ERM with",
        "the true label frequencies. DANN and CDANN spend every second step on their",
        "discriminator. ARM and MTL learn their own Φ with the predictor, from 4 images of a",
        "domain in a batch. To save time, `da-` rows are of the paper's algorithms alone. The",
        "method bn is missing: this backbone has no batch norm. The last rows use the 64 pixels as",
        "features (an MLP), so that a model that knows the true domain (gain, offset and label",
        "frequencies) can be shown beside one that does not.",
        "",
        f"Machine: {os.cpu_count()} cores ({platform.machine()}), torch {torch.__version__}.",
        "",
        made("benchmarks/algorithms.py", "src/acclimate/adapt/methods", *TRAINING),
        "",
        "| algorithm | embedding | input | adapted by | unseen domains | worst | gap closed |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    # A model that knows the label frequencies has no use for them a second time.
    twice = [key for key in table if "true" in key[2] and key[3] == "oracle-prior"]
    order = sorted(set(table) - set(twice), key=lambda k: (k[2] != "digits", [*table].index(k)))
    for algorithm, embedding, data, method in order:
        found = table[algorithm, embedding, data, method]
        means, worsts = zip(*found, strict=True)
        share = (np.mean(means) - base) / (oracle - base)
        name = AlgorithmName.of(algorithm)
        used = embedding if name.over_mu else "its own" if name.adaptive else "–"
        lines.append(
            f"| `{algorithm}` | {used} | {'images' if data == 'digits' else data} | {method} | "
            f"{estimate(means)} | {estimate(worsts)} | {100 * share:.0f} % |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
