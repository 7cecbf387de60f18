"""What a better base adds to ERM on unseen domains: `make bench-base`, or with DATA=folder.

    python benchmarks/base.py PACS --backbone resnet50-v1 --weights resnet50.safetensors \\
        --domains art_painting sketch --seeds 2 --steps 1000 --jobs 4 --minutes 8

Each domain is unseen in turn. SWAD only watches a training, which gives the rows with and without
it: a domain and a seed take two trainings, with a probe and without, and a last fit of each.
Whatever is finished when the minutes are over is shown; repeating the command goes on from there.
Without data, four sensors look at the embedded digits.
"""

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.config import gather, merged, nested, parse_assignments
from acclimate.core.errors import unknown
from acclimate.core.files import write_json
from acclimate.core.wording import duration, percent
from acclimate.data.manifest import Manifest
from acclimate.report.grid import Cell, Grid, accuracy, difference
from acclimate.results.statistics import Estimate
from acclimate.runs.checkpoint import Position, load_weights
from acclimate.runs.counting import Candidate, count_each
from acclimate.runs.folder import RunFolder
from acclimate.runs.identity import json_digest, run_identity
from acclimate.runs.plan import make_plan
from acclimate.runs.predictor_step import MAIN, Fit
from acclimate.runs.scoring import Evaluator
from acclimate.runs.session import Session, session

ROOT = Path(__file__).resolve().parent.parent
ERM = "ERM"
ROWS = (ERM, "+ SWAD", "+ probe", "+ last fit", "+ probe + SWAD", "all three")
OF_START = {  # rows of a training without and with a probe: chosen weights, SWAD's, a last fit's
    False: (ERM, "+ SWAD", "+ last fit"),
    True: ("+ probe", "+ probe + SWAD", "all three"),
}


class OutOfTime(Exception):
    pass


@dataclass(frozen=True)
class Job:
    data: Path | None
    folder: Path
    domain: str
    seed: int
    probe: bool
    changes: Mapping[str, Any]  # of the default settings, nested
    device: str
    threads: int
    until: float  # when to stop, whatever is finished

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """What is finished, by the name of its row."""
        path = self.folder / "rows.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def finish(self, row: str, **facts: Any) -> None:
        write_json(self.folder / "rows.json", {**self.rows, row: facts})

    def watch(self, phase: str, done: int, total: int, note: str) -> None:
        if time.time() > self.until:
            raise OutOfTime


def open_data(path: Path | None) -> Manifest:
    if path is not None:
        return Manifest.open(path)
    settings = DigitsSettings(train_domains=4, train_images=400, noise=0.3, concentration=5.0)
    made = build_digits(settings)
    return made.select(np.flatnonzero(np.char.startswith(made.domain_names.astype(str), "train")))


def work(job: Job) -> dict[str, dict[str, Any]]:
    """Train as far as time allows; the rows that are finished."""
    if set(OF_START[job.probe]) <= job.rows.keys() or time.time() > job.until:
        return job.rows
    torch.set_num_threads(job.threads)
    flags = {"algorithm": "erm", "seed": job.seed, "test_domains": (job.domain,)}
    config = gather(flags=flags, changes=job.changes, where="benchmark")
    plan = make_plan(config, open_data(job.data), device=job.device)
    folder = RunFolder(job.folder / "run")
    try:
        with session(plan, folder, run_identity(plan), device=job.device, watch=job.watch) as now:
            assert now is not None, "a run of its own is never finished as such"
            measure(job, now)
    except OutOfTime:
        pass
    return job.rows


def measure(job: Job, now: Session) -> None:
    predictor = now.predictor
    assert predictor is not None
    prior = now.plan.label_prior().tolist()
    evaluator = Evaluator(now.plan, now.source, now.world, predictor, prior)
    objective = now.plan.objective(predictor, now.world).to(now.world.device)
    fit = Fit(now, objective, evaluator.validation)
    first, averaged, last = OF_START[job.probe]

    def score(row: str, **facts: Any) -> None:
        objective.eval()
        rows = now.plan.manifest.rows(domain=job.domain)
        (found,) = count_each([Candidate(predictor)], now.source, rows, now.world)
        job.finish(row, top1=found.top1 / found.n, images=found.n, **facts)

    chosen = fit.choose()
    score(averaged, window=chosen.window, validation=chosen.best_score)
    (best,) = now.folder.all_best(MAIN)
    load_weights(best, objective)
    step = int(best.stem.rpartition("-")[2])
    score(first, step=step)
    # With all three, the window is SWAD's; with a last fit alone, the step is the best one.
    again = chosen if job.probe else Position(chosen.step, step)
    fit.repeat(again)
    score(last, step=again.kept("best"))


def jobs(asked: argparse.Namespace, manifest: Manifest) -> Iterator[Job]:
    """Seeds last, so that what time allows is whole for as many of them as possible."""
    settings: dict[str, Any] = {
        "adapt.source": "test",  # every image of the unseen domain is scored
        "train.steps": asked.steps,
        "train.evaluate_every": asked.evaluate_every,
        "train.checkpoint_every": max(1, asked.steps // 2),  # each holds several copies of a model
        "train.average.kind": "swad",
        "train.last_fit": True,
        "model.freeze": "none",
        "model.freeze_batch_norm": "statistics",
        "model.weights": "" if asked.weights is None else str(asked.weights.resolve()),
        "data.workers": max(1, (os.cpu_count() or 1) // asked.jobs),
    }
    if asked.backbone:
        settings["model.backbone"] = asked.backbone
    own = merged(nested(settings), parse_assignments(asked.set))
    until = time.time() + 60 * asked.minutes if asked.minutes else float("inf")
    for seed in range(asked.seeds):
        for domain in asked.domains or manifest.domains:
            for probe in (False, True):
                steps = asked.probe if probe else 0
                changes = merged(own, {"train": {"probe": {"steps": steps}}})
                name = json_digest([changes, manifest.digest()])[:8]
                folder = asked.out / f"{domain}-{seed}-{'probe' if probe else 'plain'}-{name}"
                threads = max(1, (os.cpu_count() or 1) // asked.jobs)
                yield Job(
                    asked.data, folder, domain, seed, probe, changes, asked.device, threads, until
                )


def done(asked: argparse.Namespace, every: Sequence[Job]) -> Iterator[tuple[Job, dict[str, Any]]]:
    if asked.jobs == 1:
        for job in every:
            yield job, work(job)
        return
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        yield from zip(every, pool.map(work, every), strict=True)


Found = Mapping[tuple[str, str, int], float]  # accuracy by row, domain and seed
Summary = Mapping[str, Mapping[str, Estimate | None]]  # by row and column


def summarised(found: Found, domains: Sequence[str]) -> Summary:
    """By row: each domain, the mean over domains, and what is gained on ERM.

    The mean is over seeds that have every domain; a gain is of equal domain and seed.
    """
    seeds = sorted({seed for _, _, seed in found})
    summary = {}
    for row in ROWS:
        here = {domain: [s for s in seeds if (row, domain, s) in found] for domain in domains}
        cells = {d: Estimate.of(found[row, d, s] for s in own) for d, own in here.items()}
        whole = [s for s in seeds if all(s in own for own in here.values())]
        cells["mean"] = Estimate.of(fmean(found[row, d, s] for d in domains) for s in whole)
        pairs = [(d, s) for d, own in here.items() for s in own if (ERM, d, s) in found]
        gains = [found[row, d, s] - found[ERM, d, s] for d, s in pairs]
        cells["gain"] = None if row == ERM else Estimate.of(gains)
        summary[row] = cells
    return summary


def table(summary: Summary) -> Grid:
    header = ("", *next(iter(summary.values())))
    rows = (
        (
            Cell(row),
            *(difference(v) if name == "gain" else accuracy(v) for name, v in cells.items()),
        )
        for row, cells in summary.items()
    )
    return Grid(header, tuple(rows))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="a manifest, table or folder of domains")
    parser.add_argument("--backbone", default="", help="that of `auto` unless named")
    parser.add_argument("--weights", type=Path, help="file of pretrained weights")
    parser.add_argument("--domains", nargs="+", help="to leave out in turn; all unless named")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--evaluate-every", type=int, default=20)
    parser.add_argument("--probe", type=int, default=200, help="steps of the probe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=0.0, help="when to stop; 0: at the end")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-base")
    return parser.parse_args()


def main() -> None:
    asked, started = parsed(), time.time()
    manifest = open_data(asked.data)
    for domain in asked.domains or ():
        if domain not in manifest.domains:
            raise unknown(f"{manifest.source} has no domain '{domain}'", domain, manifest.domains)
    every, found, rows = list(jobs(asked, manifest)), {}, []
    for job, finished in done(asked, every):
        for row, facts in finished.items():
            found[row, job.domain, job.seed] = facts["top1"]
            rows.append({"row": row, "domain": job.domain, "seed": job.seed, **facts})
        said = ", ".join(f"{row} {percent(facts['top1'])}" for row, facts in finished.items())
        print(f"{job.domain} seed {job.seed}: {said or 'not finished'}", flush=True)
    summary = summarised(found, asked.domains or manifest.domains)
    missing = sum(len(OF_START[job.probe]) for job in every) - len(found)
    print(f"\n{table(summary).to_text()}")
    print("top-1 on the unseen domain, % ± standard error over seeds; gain on ERM: over both")
    if missing:
        print(f"time was up: {missing} scores are missing; repeat the command to go on")
    path = asked.out / "base.json"
    write_json(path, report(asked, manifest, rows, summary, time.time() - started))
    print(f"{duration(time.time() - started)}; results: {path}")


def report(
    asked: argparse.Namespace,
    manifest: Manifest,
    rows: Iterable[Mapping[str, Any]],
    summary: Summary,
    seconds: float,
) -> dict[str, Any]:
    gpu = torch.cuda.is_available() and asked.device != "cpu"
    return {
        "data": manifest.digest(),
        "asked": {key: str(value) for key, value in vars(asked).items()},
        "device": torch.cuda.get_device_name() if gpu else f"{os.cpu_count()} cores",
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
        "rows": list(rows),
        "summary": {
            row: {name: None if cell is None else asdict(cell) for name, cell in cells.items()}
            for row, cells in summary.items()
        },
    }


if __name__ == "__main__":
    main()
