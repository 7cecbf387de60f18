"""`python -m fuzz`: all families, in a process of their own that is watched."""

import argparse
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HANG = 60.0  # seconds without a verdict
MOST_MEMORY = 2 << 30  # bytes at the worst moment of a family


@dataclass
class Tally:
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory: int = 0

    @property
    def cases(self) -> int:
        return sum(self.outcomes.values())


def work(family: str, folder: Path, seed: int, first: int, end: int) -> None:
    """In the watched process: a line for each case."""
    from fuzz.table import FAMILIES

    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))  # of a bomb this process dies
    kind, _ = FAMILIES[family]
    place = folder / f"{family}-{first}"
    place.mkdir()
    attacked = kind(place)
    attacked.prepare()
    print(json.dumps({"ready": True}), flush=True)
    for number in range(first, end):
        found = attacked.run(seed, number)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        line = {"number": number, "outcome": found.outcome, "why": found.why, "memory": used}
        print(json.dumps(line), flush=True)


def watch(family: str, cases: int, seed: int, folder: Path, until: float, first: int = 0) -> Tally:
    """Start it, start it again behind a case at which it hangs or dies, and count."""
    tally, number = Tally(), first
    while number < first + cases and time.monotonic() < until:
        here = folder / f"{family}-{number}.err"
        task = [sys.executable, "-m", "fuzz", "--work", family, str(folder)]
        task += [str(seed), str(number), str(first + cases)]
        with here.open("w") as errors:
            process = subprocess.Popen(task, stdout=subprocess.PIPE, stderr=errors)
            number = _follow(process, family, number, until, tally)
        if process.returncode and number < first + cases and time.monotonic() < until:
            ended = f"process ended with {process.returncode}: {here.read_text()[-2000:]}"
            how = "hang" if process.returncode == -9 else "died"
            _fail(tally, how, f"{family} {number}: {ended}")
            number += 1
    return tally


def _follow(
    process: subprocess.Popen[bytes], family: str, number: int, until: float, tally: Tally
) -> int:
    """Read verdicts until it ends; the number of the next case."""
    assert process.stdout is not None
    patience = 4 * HANG  # for what comes before the first case
    try:
        while time.monotonic() < until:
            ready, _, _ = select.select([process.stdout], [], [], patience)
            line = process.stdout.readline() if ready else b""
            if not line:
                break
            patience = HANG
            said = json.loads(line)
            if "number" not in said:
                continue
            number = said["number"] + 1
            tally.memory = max(tally.memory, said["memory"])
            tally.outcomes[said["outcome"]] += 1
            if said["outcome"] not in ("answered", "refused"):
                tally.failures.append(
                    f"{family} {said['number']}: {said['outcome']}: {said['why']}"
                )
    finally:
        if process.poll() is None and not _ends(process):
            process.kill()
        process.wait()
        process.stdout.close()
    return number


def _ends(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        return False
    return True


def _fail(tally: Tally, outcome: str, why: str) -> None:
    tally.outcomes[outcome] += 1
    tally.failures.append(why)


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=8400, help="over all families")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1800, help="stop after these")
    parser.add_argument("--family", help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first case, to repeat one")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        family, folder, *numbers = asked.work
        work(family, Path(folder), *map(int, numbers))
        return 0
    from fuzz.table import FAMILIES

    shares = {name: share for name, (_, share) in FAMILIES.items()}
    if asked.family:
        shares = {asked.family: 1000}
    started = time.monotonic()
    until, failures, ran = started + asked.seconds, [], 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.environ["ACCLIMATE_CACHE"] = folder
        for family, share in shares.items():
            cases = max(round(asked.cases * share / 1000), 1)
            begun = time.monotonic()
            tally = watch(family, cases, asked.seed, Path(folder), until, asked.first)
            if tally.memory > MOST_MEMORY:
                tally.failures.append(f"{family}: {tally.memory >> 20} MiB at the most")
            took = time.monotonic() - begun
            counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(tally.outcomes.items()))
            print(
                f"{family:12} {tally.cases:5} cases in {took:4.0f} s: {counts}; "
                f"{tally.memory >> 20} MiB",
                flush=True,
            )
            failures += tally.failures
            ran += tally.cases
    for failure in failures[:40]:
        print(failure)
    print(f"{ran} cases in {time.monotonic() - started:.0f} s, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
