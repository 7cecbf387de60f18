"""One sweep of small runs under each launcher: the same tables, and how long they take.

python benchmarks/launchers.py [--runs 100] [--submitit] [--out DIR]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chaos import problems, results, small_digits

SETTINGS = {
    "train.steps": 40,
    "train.evaluate_every": 20,
    "train.per_domain": 8,
    "embedding.steps": 20,
    "embedding.dim": 16,
    "model.width": 32,
    "model.hidden": 32,
    "adapt.points": 20,
}
ALGORITHMS, DRAWS = ("erm", "coral", "da-erm", "da-coral"), 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="at least this many")
    parser.add_argument("--max-parallel", type=int, default=2)
    parser.add_argument("--submitit", action="store_true", help="submitit's local processes too")
    parser.add_argument("--out", type=Path, help="a new folder to keep the sweeps in")
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="launchers-"))
    out.mkdir(parents=True, exist_ok=True)
    data = small_digits(out / "digits.parquet")
    trials = -(-arguments.runs // (len(ALGORITHMS) * DRAWS))
    launchers = {"local": ["--launcher", "local"], "ray": ["--launcher", "ray"]}
    if arguments.submitit:
        launchers["submitit"] = ["--launcher", "slurm", "--slurm-cluster", "local"]
    wrong, found = [], {}
    for name, flags in launchers.items():
        began = time.perf_counter()
        subprocess.run(
            [
                *command(data, out / name, trials),
                *flags,
                *("--max-parallel", str(arguments.max_parallel)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - began
        found[name] = results(out / name)
        wrong += problems(out / name)
        sys.stdout.write(f"{name}: {len(found[name]['scores'])} runs, {seconds:.0f} s\n")
        wrong += [
            f"{part} of {name} differ from those of local"
            for part, value in found["local"].items()
            if found[name][part] != value
        ]
    if wrong:
        sys.exit("\n".join(["DIFFERENT:", *wrong]))
    sys.stdout.write(f"equal: {', '.join(found)} give the same scores and choices\n")
    if arguments.out is None:
        shutil.rmtree(out)


def command(data: Path, out: Path, trials: int) -> list[str]:
    flags = ["--algorithms", ",".join(ALGORITHMS), "--draws", str(DRAWS), "--trials", str(trials)]
    for key, value in SETTINGS.items():
        flags += ["--set", f"{key}={value}"]
    flags += ["--device", "cpu", "--out", str(out)]
    return [sys.executable, "-m", "acclimate", "sweep", str(data), *flags]


if __name__ == "__main__":
    main()
