"""How long rehearsal takes on features, on an idle machine and beside busy processes.

    python benchmarks/rehearsal_time.py                                   # 50 classes x 20 sites
    python benchmarks/rehearsal_time.py --classes 500 --sites 50 --rows 200
    python benchmarks/rehearsal_time.py --busy 4                          # also beside four others

`AdaptiveClassifier.fit` on features of made classes, from the call to the verdict, each time in a
process of its own: wall time, processor time, the longest time without a word, and memory. Sites
differ in label frequencies and lie elsewhere, so that every chain has something to do.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from acclimate.core.randomness import stream

SPIN = "while True: pass"
TIME_LIMIT = 3600  # seconds of one fit


def draw_sites(
    classes: int, sites: int, rows: int, features: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [n, f], labels [n] and sites [n] of Gaussian classes."""
    rng = stream(seed, "rehearsal time")
    means = 1.5 * rng.normal(size=(classes, features)) / np.sqrt(features) * 8
    x, y = np.empty((sites * rows, features), "f4"), np.empty(sites * rows, int)
    for site in range(sites):
        own = slice(site * rows, (site + 1) * rows)
        y[own] = rng.choice(classes, rows, p=rng.dirichlet(np.full(classes, 0.5)))
        offset = 0.5 * rng.normal(size=features)
        x[own] = means[y[own]] + offset + rng.normal(size=(rows, features)) * 2
    return x, y, np.repeat([f"site-{number:03}" for number in range(sites)], rows)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Fit once in this process; seconds, GiB, and what rehearsal chose."""
    from acclimate import AdaptiveClassifier

    sizes = options.classes, options.sites, options.rows, options.features
    x, y, sites = draw_sites(*sizes, options.seed)
    times: list[float] = []  # of every word of progress
    start, cpu = time.monotonic(), time.process_time()

    def watch(phase: str, done: int, total: int, note: str) -> None:
        times.append(time.monotonic())

    model = AdaptiveClassifier(seed=options.seed, device="cpu", watch=watch).fit(x, y, sites)
    end, cpu = time.monotonic(), time.process_time() - cpu
    rehearsal = model.trained.rehearsal
    return {
        "wall": end - start,
        "cpu": cpu,
        "silence": float(np.diff([start, *times, end]).max()),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "chosen": None if rehearsal is None else dict(rehearsal.chosen),
    }


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that each keep a core busy."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--features", type=int, default=1280)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--busy", type=int, default=0, help="also beside so many busy processes")
    parser.add_argument("--once", action="store_true", help="in this process; prints JSON")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options)))
        return
    print(f"load {os.getloadavg()[0]:.1f} before; {len(os.sched_getaffinity(0))} cores")
    command = [sys.executable, __file__, "--once", *sys.argv[1:]]
    for count in dict.fromkeys((0, options.busy)):
        with busy_processes(count):
            process = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, timeout=TIME_LIMIT, check=True
            )
        result = json.loads(process.stdout.splitlines()[-1])
        print(
            f"beside {count} busy processes: {result['wall']:.1f} s, {result['cpu']:.1f} s of "
            f"processor time, at most {result['silence']:.1f} s without a word, "
            f"{result['memory']:.1f} GiB; chosen: {result['chosen']}"
        )


if __name__ == "__main__":
    main()
