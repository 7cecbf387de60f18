"""What adaptation is worth under each kind of shift: `make bench-shift`, or with DATA=folder.

Four families of domains are made from the given images, or from the embedded digits: label,
covariate and conditional shift, and all three. ERM and DA-ERM are trained on each with their
defaults and scored on unseen domains. Ceilings are told the truth: the label frequencies of a
domain and, where labels swap, which way. Who is told that knows the classes before swapping, so
that this ceiling is ERM trained and scored on those. Data and runs are kept and resume.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from acclimate.build.pools import open_pool
from acclimate.build.shift import ShiftSettings, build_shift
from acclimate.config import gather, parse_assignments
from acclimate.core.files import write_json
from acclimate.data.manifest import Manifest
from acclimate.report.export import summary_values
from acclimate.report.tables import comparison
from acclimate.results.observations import Observation
from acclimate.results.runs import ERM, Key
from acclimate.results.summary import Summary, summary_of
from acclimate.runs.evaluate import evaluate_run
from acclimate.runs.identity import json_digest
from acclimate.runs.training import train

ROOT = Path(__file__).resolve().parent.parent
METHODS = {"erm": ("none", "prior", "oracle-prior"), "da-erm": ("embedding", "embedding+prior")}
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
    folder: Path  # of its runs
    seed: int
    changes: Mapping[str, Any]  # of the default settings

    def observed(
        self, manifest: Manifest, algorithm: str, methods: Sequence[str]
    ) -> Iterator[Observation]:
        """What a model, trained if it is not yet, scores on unseen domains by these methods."""
        flags = {"algorithm": algorithm, "seed": self.seed}
        config = gather(flags=flags, changes=self.changes, where="benchmark")
        name = json_digest([self.changes, self.seed, manifest.digest()])[:12]
        run = self.folder / f"{algorithm}-{name}"
        train(config, manifest, run)
        further = [method for method in methods if not method.startswith("oracle-")]
        roles = manifest.roles()
        for score in evaluate_run(run, manifest, methods=further).scores:
            if roles[score.domain] == "test" and score.method in methods and score.top1 is not None:
                yield Observation(
                    dataset=manifest.source,
                    key=Key(algorithm, score.method),
                    data=manifest.digest(),
                    trial=self.seed,
                    domain=score.domain,
                    top1=score.top1,
                    top5=score.top5,
                    images=score.n,
                )

    def observed_by_all(self, manifest: Manifest, *, swaps: bool) -> Iterator[Observation]:
        for algorithm, methods in METHODS.items():
            yield from self.observed(manifest, algorithm, methods)
        if swaps:
            truth, data = Key("erm", "oracle-truth"), manifest.digest()
            for one in self.observed(before_swapping(manifest), "erm", ["oracle-prior"]):
                yield replace(one, key=truth, data=data)


def summarised(found: Sequence[Observation]) -> Summary:
    runs = Counter(key for key, _, _ in {(one.key, one.data, one.trial) for one in found})
    return summary_of(found, runs, ERM)


def parsed() -> argparse.Namespace:
    every = list(families(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, help="a manifest, table or folder of images")
    parser.add_argument("--families", nargs="+", choices=every, default=every)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=float, default=0.5, help="of look-alikes, or their share")
    for name in ("domains", "val", "test", "per_domain", "classes"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-shift")
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    base = digits() if asked.data is None else open_pool(asked.data)
    names = ("domains", "val", "test", "per_domain", "classes")
    sizes = {name: value for name in names if (value := getattr(asked, name)) is not None}
    console = Console(soft_wrap=True, markup=False, highlight=False)
    results: dict[str, Any] = {"data": base.digest(), "sizes": sizes, "families": {}}
    for name in asked.families:
        shift = families(asked.pairs)[name]
        found: list[Observation] = []
        for seed in range(asked.seeds):
            settings = ShiftSettings(**shift, **sizes, seed=seed)
            manifest = family_data(base, settings, asked.out / name)
            trial = Trial(asked.out / name, seed, parse_assignments(asked.set))
            found += trial.observed_by_all(manifest, swaps=settings.swaps)
        summary = summarised(found)
        results["families"][name] = {"shift": shift, **summary_values(summary)}
        console.print(f"{name} shift" if name != "all" else "all three shifts")
        console.print(comparison(summary).without(*WIDE).to_text())
        write_json(asked.out / "shift.json", results)
    console.print(f"results: {asked.out / 'shift.json'}")


if __name__ == "__main__":
    main()
