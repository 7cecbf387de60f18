"""What DA-ERM's gain on the embedded benchmark depends on: one setting changed at a time.

`python benchmarks/digits_ablation.py` (docs/log.md keeps the result). Draws of the benchmark from
seed 100 on, so that nothing here is chosen on the draws that docs/results.md reports.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from acclimate.build.digits import DigitsSettings, build_digits
from acclimate.config import RunConfig, from_dict, nested
from acclimate.demo import SETTINGS
from acclimate.records.records import read
from acclimate.runs.training import train

ROOT = Path(__file__).resolve().parent.parent
# name, changes to the data, changes to the run
VARIANTS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("as in the demo", {}, {}),
    ("1,000 Step-A iterations instead of 200", {}, {"embedding.steps": 1000}),
    ("60 training domains instead of 150", {"train_domains": 60}, {}),
    ("60 domains, 1,000 iterations", {"train_domains": 60}, {"embedding.steps": 1000}),
    ("μ of 16 dimensions instead of 512", {}, {"embedding.dim": 16}),
    ("FiLM instead of concatenation", {}, {"model.condition": "film"}),
    ("μ as a bias on the logits", {}, {"model.condition": "bias"}),
    ("μ not standardised", {}, {"embedding.standardise": False}),
    ("milder label shift (Dirichlet 0.5)", {"concentration": 0.5}, {}),
    ("no label shift (Dirichlet 1000)", {"concentration": 1000.0}, {}),
)


def unseen(run: Path, method: str) -> float:
    scores = read(run / "records.jsonl").scores
    return 100 * float(
        np.mean(
            [
                score.top1
                for score in scores
                if (score.moment, score.role, score.method) == ("final", "test", method)
            ]
        )
    )


def measure(
    folder: Path, seed: int, data: dict[str, Any], changes: dict[str, Any]
) -> tuple[float, ...]:
    """ERM, oracle, DA-ERM and DA-ERM with a wrong embedding on unseen domains."""
    manifest = build_digits(DigitsSettings(seed=seed, **data))
    for algorithm in ("erm", "da-erm"):
        settings = {**SETTINGS, **changes, "algorithm": algorithm, "seed": seed}
        config = from_dict(RunConfig, nested(settings), where="ablation")
        train(config, manifest, folder / algorithm)
    plain, adaptive = folder / "erm", folder / "da-erm"
    return (
        unseen(plain, "none"),
        unseen(plain, "oracle-prior"),
        unseen(adaptive, "embedding"),
        unseen(adaptive, "wrong-embedding"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "digits-ablation")
    arguments = parser.parse_args()
    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print("| | ERM | oracle | DA-ERM | wrong embedding |\n|---|---:|---:|---:|---:|")
    for number, (name, data, changes) in enumerate(VARIANTS):
        found = [
            measure(arguments.runs / f"{number}-{seed}", seed, data, changes)
            for seed in range(100, 100 + arguments.seeds)
        ]
        cells = " | ".join(f"{value:.1f}" for value in np.mean(found, axis=0))
        console.print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
