"""What adaptation is worth under each kind of shift: `make bench-shift`, or with DATA=folder.

    python benchmarks/shift.py data/tiny-imagenet --classes 100 --algorithms rehearsed --jobs 4 \\
        --set model.freeze=backbone --points 1 2 5 10 20 50 100 300 1000

Four families of domains are made from the given images, or from the embedded digits: label,
covariate and conditional shift, and all three. On each, ERM that ends with a rehearsal (its weights
are those of ERM) and DA-ERM are trained and scored on unseen domains, adapted to from 300 images
unless `--set adapt.points` says otherwise. Ceilings are told the truth: the label frequencies of a
domain and, where labels swap, which way. Who is told that knows the classes before swapping, so
that this ceiling is ERM trained and scored on those.

shift.json has the tables, for each seed what rehearsal promised beside what happened, and with
`--points` what auto gains over plain with so many images; curve.png shows the last. Families and
seeds run `--jobs` at a time; data, runs and scores are kept, and repeating the command resumes it.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import curves
import unseen
from acclimate.build.pools import open_pool
from acclimate.build.shift.builder import build_shift
from acclimate.build.shift.draws import ShiftSettings
from acclimate.config import RunConfig, gather, merged, nested, parse_assignments
from acclimate.core.files import json_digest, write_json
from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder
from acclimate.records.records import Score
from acclimate.rehearse.training import train
from acclimate.report.export import comparison_values
from acclimate.report.figures.canvas import write_figure
from acclimate.report.tables import comparison
from acclimate.runs.evaluate import evaluate_run

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = ("rehearsed", "da-erm")
SIZES = ("domains", "val", "test", "per_domain", "classes")
WIDE = ("Top-5", "Training domains", "Runs", "Domains")  # columns that only the JSON has


def families(pairs: float) -> dict[str, dict[str, Any]]:
    label, covariate, conditional = {"label": 10.0}, {"covariate": 1.0}, {"conditional": pairs}
    every = {**label, **covariate, **conditional}
    return {"label": label, "covariate": covariate, "conditional": conditional, "all": every}


def digits() -> Manifest:
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.rint(data.images / 16 * 255).astype(np.uint8)
    names = data.target.astype(str)
    return replace(Manifest.from_arrays(pixels, names, ["all"] * len(names)), source="digits")


def family_data(base: Manifest, settings: ShiftSettings, folder: Path) -> Manifest:
    path = folder / f"{json_digest([asdict(settings), base.digest()])[:12]}.parquet"
    return Manifest.read(path) if path.exists() else build_shift(base, settings, path)[1]


def before_swapping(manifest: Manifest) -> Manifest:
    """The same images under their true labels: what one knows who is told the latent."""
    table, true = manifest.table, manifest.table["true_label"]
    return replace(
        manifest, table=table.set_column(table.column_names.index("label"), "label", true)
    )


@dataclass(frozen=True)
class Trial:
    """A family of domains and a seed."""

    name: str
    data: Path | None
    family: str
    settings: ShiftSettings
    algorithms: tuple[str, ...]
    changes: Mapping[str, Any]  # of the default settings, nested
    points: tuple[int, ...]
    device: str
    out: Path

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def folder(self) -> Path:
        return self.out / self.family

    @property
    def file(self) -> Path:
        told = [str(self.data), asdict(self.settings), self.algorithms, self.changes, self.points]
        return self.folder / f"scores-{self.seed}-{json_digest(told)[:12]}.json"

    def config(self, preset: str | None, **flags: Any) -> RunConfig:
        return gather(preset, None, {"seed": self.seed, **flags}, self.changes, where="benchmark")

    def make(self) -> dict[str, Any]:
        started = time.time()
        base = opened(self.data)
        manifest = family_data(base, self.settings, self.folder)
        made = time.time()
        rehearsed = self.config("rehearsed")
        n = rehearsed.adapt.points
        run = self.trained("rehearsed", rehearsed, manifest)
        trained = time.time()
        result = unseen.measure(run, manifest, (n, *self.points), self.device)
        measured = time.time()
        if "da-erm" in self.algorithms:
            run = self.trained("da-erm", self.config(None, algorithm="da-erm"), manifest)
            found = evaluate_run(run, manifest, methods=["embedding+prior"], device=self.device)
            result["rows"] += self.rows(found.scores, n, "embedding", "embedding+prior")
        if self.settings.swaps:
            truth = before_swapping(manifest)
            run = self.trained("erm", self.config(None, algorithm="erm"), truth)
            final = RunFolder(run).records().scores
            for row in self.rows(final, n, "oracle-prior", moment="final"):
                result["rows"].append({**row, "method": "oracle-truth"})
        seconds = {
            "data": round(made - started, 1),
            "rehearsed": round(trained - made, 1),
            "scores": round(measured - trained, 1),
            "others": round(time.time() - measured, 1),
        }
        told = {"data": self.label, "family": self.family, "seed": self.seed, "n": n}
        return {**told, "digest": manifest.digest(), "seconds": seconds, **result}

    @property
    def label(self) -> str:
        """What the data are called."""
        return f"{self.name}: {shown(self.family)}"

    def trained(self, name: str, config: RunConfig, manifest: Manifest) -> Path:
        told = json_digest([self.changes, self.seed, manifest.digest()])[:12]
        run = self.folder / f"{name}-{told}"
        train(config, manifest, run, device=self.device)
        return run

    def rows(
        self, scores: Sequence[Score], n: int, *methods: str, moment: str = "evaluate"
    ) -> Iterator[unseen.Row]:
        """Those of the unseen test domains."""
        algorithm = "da-erm" if "embedding" in methods else "erm"
        for score in scores:
            if (score.role, score.moment) == ("test", moment) and score.method in methods:
                yield {**unseen.row_of(score, score.method, n), "algorithm": algorithm}


def shown(family: str) -> str:
    return "all three shifts" if family == "all" else f"{family} shift"


def opened(data: Path | None) -> Manifest:
    return digits() if data is None else open_pool(data)


def parsed() -> argparse.Namespace:
    every = list(families(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="a manifest, table or folder of images")
    parser.add_argument("--name", help="of the data, in tables and figures")
    parser.add_argument("--families", nargs="+", choices=every, default=every)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--pairs", type=float, default=0.5, help="of look-alikes, or their share")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--points", nargs="+", type=int, default=[], help="images, for a curve")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="families and seeds at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-shift")
    return parser.parse_args()


def trials(asked: argparse.Namespace) -> Iterator[Trial]:
    """Seeds last, so that what time allows is whole for as many of them as possible."""
    sizes = {name: value for name in SIZES if (value := getattr(asked, name)) is not None}
    changes = merged(nested({"adapt.points": 300}), parse_assignments(asked.set))
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for family in asked.families:
            yield Trial(
                asked.name or ("digits" if asked.data is None else asked.data.stem),
                asked.data,
                family,
                ShiftSettings(**families(asked.pairs)[family], **sizes, seed=seed),
                tuple(asked.algorithms),
                changes,
                tuple(asked.points),
                asked.device,
                asked.out,
            )


def main() -> None:
    asked = parsed()
    console = Console(soft_wrap=True, markup=False, highlight=False)
    results: list[dict[str, Any]] = []
    for trial, result in unseen.finished(list(trials(asked)), asked.jobs):
        results.append(result)
        took = ", ".join(f"{name} {value:g} s" for name, value in result["seconds"].items())
        console.print(f"{trial.family}, seed {trial.seed}: {took}")
        write_json(asked.out / "shift.json", report(asked, results))
    for name in asked.families:
        found = [result for result in results if result["family"] == name]
        console.print(shown(name))
        console.print(comparison(unseen.summarised(found)).without(*WIDE).to_text())
    if asked.points:
        drawing = curves.draw(curves.by_data(results))
        write_figure(drawing, asked.out / "curve.png", "png", dpi=150)
        console.print(f"curve over images: {asked.out / 'curve.png'}")
    console.print(f"results: {asked.out / 'shift.json'}")


def report(asked: argparse.Namespace, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whatever is finished: tables, curves, and each seed's scores and promises."""
    by_family = {name: [r for r in results if r["family"] == name] for name in asked.families}
    present = {name: found for name, found in by_family.items() if found}
    return {
        **curves.report(asked, results),
        "families": {
            name: {
                "shift": families(asked.pairs)[name],
                **comparison_values(unseen.summarised(found)),
            }
            for name, found in present.items()
        },
    }


if __name__ == "__main__":
    main()
