"""What rehearsal promises, and what happens at domains that no training saw.

    python benchmarks/rehearsed.py PACS --seeds 3 --jobs 4 --points 5 20 100 300

A data set whose domains have roles is trained on and scored as they say, once for each seed; of any
other, every domain is unseen in turn. A path with {seed} in it means data drawn anew for each seed.
Each run is `acclimate train DATA --preset rehearsed`; unseen domains are adapted to from 300 of
their images, which are not scored, unless `--set adapt.points` says otherwise, and with `--points`
from so many as well. Prints a line per run; rehearsed.json has every score, and every promise
beside what came of it. Repeating the command resumes it.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import curves
import unseen
from acclimate.config import gather, merged, nested, parse_assignments
from acclimate.core.files import json_digest, write_json
from acclimate.core.text import percent, signed
from acclimate.data.manifest import Manifest
from acclimate.rehearse.training import train
from acclimate.report.figures.canvas import write_figure
from acclimate.results.statistics import in_points

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Trial:
    """A run, by its unseen domains and seed."""

    name: str  # of the data
    data: Path
    domains: tuple[str, ...]  # unseen; none: as the data say
    seed: int
    changes: Mapping[str, Any]  # of the default settings, nested
    points: tuple[int, ...]
    device: str
    out: Path

    @property
    def folder(self) -> Path:
        told = json_digest([str(self.data.resolve()), self.changes])[:12]
        return self.out / "-".join([self.name, *self.domains, str(self.seed), told])

    @property
    def file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-{json_digest(self.points)[:8]}.json")

    def make(self) -> unseen.Row:
        started = time.time()
        flags = {"seed": self.seed, "test_domains": self.domains}
        config = gather("rehearsed", None, flags, self.changes, where="benchmark")
        manifest = Manifest.open(self.data)
        train(config, manifest, self.folder, device=self.device)
        trained, n = time.time(), config.adapt.points
        result = unseen.measure(self.folder, manifest, (n, *self.points), self.device)
        seconds = {
            "rehearsed": round(trained - started, 1),
            "scores": round(time.time() - trained, 1),
        }
        told = {"data": self.name, "seed": self.seed, "n": n, "unseen": list(self.domains)}
        return {**told, "digest": manifest.digest(), "seconds": seconds, **result}


def trials(asked: argparse.Namespace) -> Iterator[Trial]:
    """Seeds last, so that what time allows is whole for as many of them as possible."""
    changes = merged(nested({"adapt.points": 300}), parse_assignments(asked.set))
    names = asked.names or [data.replace("{seed}", "").rstrip("/") for data in asked.data]
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for name, data in zip(names, asked.data, strict=True):
            path = Path(data.replace("{seed}", str(seed)))
            label = name if asked.names else Path(name).stem.rstrip("-_")
            for domains in left_out(Manifest.open(path)):
                yield Trial(
                    label,
                    path,
                    domains,
                    seed,
                    changes,
                    tuple(asked.points),
                    asked.device,
                    asked.out,
                )


def left_out(manifest: Manifest) -> list[tuple[str, ...]]:
    """The test domains of each run."""
    if "test" in manifest.roles().values():
        return [()]
    return [(domain,) for domain in manifest.domains]


def line(result: unseen.Row) -> str:
    mean = {
        method: fmean(row["top1"] for row in rows)
        for method in ("none", "auto", "oracle-prior")
        if (rows := [r for r in of(result) if r["method"] == method])
    }
    (auto,) = (p for p in result["promises"] if (p["chain"], p["n"]) == ("auto", result["n"]))
    return (
        f"{', '.join(result['unseen']) or result['data']:14} seed {result['seed']}  plain "
        f"{percent(mean['none'])}  auto {percent(mean['auto'])} by {used(result)} (promised "
        f"{signed(auto['gain'])}, came {signed(auto['true'])})  expected "
        f"{percent(auto['expected'])}, at least {percent(auto['floor'])}  true "
        f"frequencies {percent(mean['oracle-prior'])}"
    )


def of(result: unseen.Row) -> list[unseen.Row]:
    """Its scores with the number of images that it is mainly about."""
    return [r for r in result["rows"] if r["n"] == result["n"] and r["top1"] is not None]


def used(result: unseen.Row) -> str:
    """The chain that rehearsal chose for so many images."""
    chosen = [one["chain"] for one in result["chosen"] if one["n"] <= result["n"]]
    return str(chosen[-1]) if chosen else "none"


def summary(name: str, results: Sequence[unseen.Row]) -> str:
    (point,) = (one for one in curves.curve(results) if one["n"] == results[0]["n"])
    gain = curves.gain_of(point)
    adapted = sum(used(result) != "none" for result in results)
    return (
        f"{name}: plain {percent(point['plain'])}, auto {percent(point['auto'])} "
        f"({in_points(gain)}); {adapted} of {len(results)} runs adapt"
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="manifests, tables or domain/class/image folders")
    parser.add_argument("--names", nargs="+", help="of the data, in tables and figures")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--points", nargs="+", type=int, default=[], help="images, for a curve")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "rehearsed")
    asked = parser.parse_args()
    if asked.names and len(asked.names) != len(asked.data):
        parser.error("--names: as many as there are data")
    return asked


def main() -> None:
    asked = parsed()
    results: list[unseen.Row] = []
    for _, result in unseen.finished(list(trials(asked)), asked.jobs):
        results.append(result)
        print(line(result), flush=True)
        write_json(asked.out / "rehearsed.json", curves.report(asked, results))
    for name in sorted({result["data"] for result in results}):
        print(summary(name, [result for result in results if result["data"] == name]))
    if asked.points:
        drawing = curves.draw(curves.by_data(results))
        write_figure(drawing, asked.out / "curve.png", "png", dpi=150)
    print(f"results: {asked.out / 'rehearsed.json'}")


if __name__ == "__main__":
    main()
