"""What rehearsal promises, and what happens: every domain of a data set unseen in turn.

    python benchmarks/rehearsed.py PACS --seeds 3 --out runs/rehearsed

Each run is `acclimate train DATA --preset rehearsed --test-domains D`; the unseen domain is adapted
to from `adapt.points` of its images, which are not scored. Prints a line per run, and writes all as
JSON beside the runs; repeating the command resumes it.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from acclimate.adapt.rehearsal import Rehearsal
from acclimate.config import gather, parse_assignments
from acclimate.core.files import write_json
from acclimate.core.wording import percent, signed
from acclimate.data.manifest import Manifest
from acclimate.runs.folder import RunFolder
from acclimate.runs.training import train


def measured(asked: argparse.Namespace, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for domain in manifest.domains:
        for seed in range(asked.seeds):
            folder = asked.out / f"{domain}-{seed}"
            flags = {"test_domains": (domain,), "seed": seed}
            config = gather("rehearsed", None, flags, parse_assignments(asked.set))
            train(config, manifest, folder)
            row = _row(RunFolder(folder), domain, seed, config.adapt.points)
            print(_line(row), flush=True)
            yield row


def _row(folder: RunFolder, domain: str, seed: int, points: int) -> dict[str, Any]:
    scores = {
        score.method: score.top1
        for score in folder.records().scores
        if (score.moment, score.domain) == ("final", domain)
    }
    found = Rehearsal.from_dict(folder.rehearsal() or {}, where=str(folder.path))
    promises = {chain: found.promise(chain, points) for chain in sorted(found.chains)}
    return {
        "domain": domain,
        "seed": seed,
        **scores,
        "chosen": found.chain_for(points),
        "expected": [promises[found.chain_for(points)].low, promises[found.chain_for(points)].high],
        "promised": {chain: [p.gain, p.error] for chain, p in promises.items()},
    }


def _line(row: dict[str, Any]) -> str:
    low, high = row["expected"]
    return (
        f"{row['domain']:14} seed {row['seed']}  plain {percent(row['none'])}  auto "
        f"{percent(row['auto'])} by {row['chosen']}  expected {percent(low)} to {percent(high)}  "
        f"true frequencies {percent(row['oracle-prior'])}"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    gains = [row["auto"] - row["none"] for row in rows]
    inside = fmean(row["expected"][0] <= row["auto"] <= row["expected"][1] for row in rows)
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    adapted = sum(row["chosen"] != "none" for row in rows)
    plain, auto = (percent(fmean(row[method] for row in rows)) for method in ("none", "auto"))
    return (
        f"mean: plain {plain}, auto {auto} ({signed(fmean(gains))} ± {percent(error)}); "
        f"{adapted} of {len(rows)} runs adapt; {percent(inside)} % lie where they were expected"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "data", type=Path, help="a manifest, a table or a domain/class/image folder"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/rehearsed"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    rows = list(measured(asked, Manifest.open(asked.data)))
    print(summary(rows))
    write_json(asked.out / "rehearsed.json", {"rows": json.loads(json.dumps(rows))})


if __name__ == "__main__":
    main()
