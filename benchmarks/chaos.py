"""Does a sweep survive? Kill its driver and its workers at random, and compare with a quiet one.

The same small sweep on the embedded digits benchmark is run twice: once undisturbed, once while its
driver and its workers are killed with SIGKILL at random moments, the driver being started again
each time. At the end every job must have exactly one result, and scores and choices must be equal,
to the last bit.

    python benchmarks/chaos.py [--kills 20] [--out DIR]
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.results.selection import candidates, choices_by_rule
from acclimate.results.sweep_folder import SweepFolder

SETTINGS = {
    "train.steps": 120,
    "train.evaluate_every": 40,
    "train.checkpoint_every": 20,
    "train.per_domain": 8,
    "embedding.steps": 60,
    "embedding.dim": 16,
    "model.width": 32,
    "model.hidden": 32,
    "adapt.points": 20,
}


def command(data: Path, out: Path, *, trials: int, draws: int) -> list[str]:
    flags = ["--algorithms", "erm,da-erm", "--trials", str(trials), "--draws", str(draws)]
    for key, value in SETTINGS.items():
        flags += ["--set", f"{key}={value}"]
    flags += ["--max-parallel", "2", "--device", "cpu", "--retry-failed", "--out", str(out)]
    return [sys.executable, "-m", "acclimate", "sweep", str(data), *flags]


def small_digits(path: Path) -> Path:
    sizes = {"train_domains": 6, "test_domains": 3, "train_images": 60, "test_images": 60}
    build_digits(DigitsSettings(**sizes)).write(path)
    return path


def disturbed(sweep: list[str], kills: int, rng: random.Random) -> dict[str, int]:
    """Run the command to its end, through `kills` kills; how many hit the driver and workers."""
    hit = {"driver": 0, "worker": 0}
    while True:
        with tempfile.TemporaryFile() as log:  # a pipe that nobody reads would fill up
            driver = subprocess.Popen(sweep, stdout=subprocess.DEVNULL, stderr=log)
            while sum(hit.values()) < kills and moment_came(driver, rng):
                workers = children(driver)
                if workers and rng.random() < 0.5:
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    hit["worker"] += 1
                else:
                    driver.kill()
                    hit["driver"] += 1
                    break
            code = driver.wait()
            if code == 0:
                return hit
            if code != -signal.SIGKILL:
                log.seek(0)
                sys.exit(f"the sweep ended with {code}:\n{log.read().decode()}")


def moment_came(driver: "subprocess.Popen[bytes]", rng: random.Random) -> bool:
    """Wait for a random moment, mostly one at which workers are at work; False if all is over."""
    if rng.random() < 0.8:
        while not children(driver) and driver.poll() is None:
            time.sleep(0.05)
    time.sleep(rng.uniform(0.0, 5.0))
    return driver.poll() is None


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    """The workers that this driver, a process of ours, has started."""
    try:
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in found.split()]


def results(folder: Path) -> dict[str, Any]:
    """What must not depend on what happened: every job's scores, and every rule's choices."""
    sweep = SweepFolder(folder).read()
    found = candidates(folder, sweep)
    return {
        "scores": {
            job.id: sorted(
                repr(score) for score in SweepFolder(folder).run(job.id).records().scores
            )
            for job in sweep.jobs
        },
        "choices": {
            rule: list(map(repr, choices))
            for rule, choices in choices_by_rule(found, sweep.rule, sweep.jobs).items()
        },
    }


def problems(folder: Path) -> list[str]:
    """Jobs without exactly one valid result, and whatever was left lying about."""
    sweep = SweepFolder(folder).read()
    found = [
        f"{job.id} is not done"
        for job in sweep.jobs
        if SweepFolder(folder).job_state(job.id) != "done"
    ]
    found += [
        f"embedding {job.id} is not done"
        for job in sweep.embeddings
        if SweepFolder(folder).embedding_state(job.id) != "done"
    ]
    known = {job.id for job in sweep.jobs}
    found += [f"{path} is no job" for path in (folder / "runs").iterdir() if path.name not in known]
    for job in sweep.jobs:
        lines = (SweepFolder(folder).run(job.id).path / "records.jsonl").read_text().splitlines()
        ends = sum(json.loads(line)["kind"] == "finished" for line in lines)
        if ends != 1:
            found.append(f"{job.id} finished {ends} times")
    for pattern in (".*.tmp", "checkpoint-*", "best-*"):
        found += [f"{path} was left behind" for path in folder.rglob(pattern)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments and victims")
    parser.add_argument("--out", type=Path, help="a new folder to keep both sweeps in")
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="chaos-"))
    out.mkdir(parents=True, exist_ok=True)
    data = small_digits(out / "digits.parquet")
    sizes = {"trials": arguments.trials, "draws": arguments.draws}
    began = time.perf_counter()
    undisturbed, nowhere = command(data, out / "quiet", **sizes), subprocess.DEVNULL
    subprocess.run(undisturbed, check=True, stdout=nowhere, stderr=nowhere)
    quiet = time.perf_counter() - began
    hit = disturbed(
        command(data, out / "chaos", **sizes), arguments.kills, random.Random(arguments.seed)
    )
    chaos = time.perf_counter() - began - quiet
    wrong = problems(out / "quiet") + problems(out / "chaos")
    if hit["driver"] + hit["worker"] < arguments.kills:
        wrong.append(f"only {hit} of {arguments.kills} kills before the end; add --trials")
    first, second = results(out / "quiet"), results(out / "chaos")
    wrong += [f"{part} differ" for part in first if first[part] != second[part]]
    jobs = len(first["scores"])
    report = (
        f"{jobs} runs; undisturbed {quiet:.0f} s; {hit['driver']} kills of the driver and "
        f"{hit['worker']} of workers, {chaos:.0f} s; rules compared: {', '.join(first['choices'])}"
    )
    sys.stdout.write(report + "\n")
    if wrong:
        sys.exit("\n".join(["DIFFERENT:", *wrong]))
    sys.stdout.write("equal: every job has one result, and scores and choices are the same\n")
    if arguments.out is None:
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
