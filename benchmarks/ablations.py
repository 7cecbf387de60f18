"""Every ablation of the paper on the embedded digits: docs/ablations.md keeps tables and plots.

`python benchmarks/ablations.py` runs what is not yet done of each (`acclimate ablate NAME`, kept in
runs/ablations) and writes the page; `--only NAME` limits it. About half an hour on 2 cores.
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

from acclimate.core.files import write_atomically
from acclimate.paper.ablations.table import ABLATIONS
from acclimate.paper.ablations.verdict import Level, level_table, levels, verdict
from acclimate.results.protocol import Sweep
from acclimate.results.sweep_folder import SweepFolder
from pages import TRAINING, fill, made

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(ABLATIONS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "ablations")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "ablations.md")
    arguments = parser.parse_args()
    for name in arguments.only or ABLATIONS:
        folder = arguments.runs / name
        command = [sys.executable, "-m", "acclimate", "ablate", name, "--out", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        image = arguments.out.parent / "images" / f"ablation-{name}.png"
        picture = (folder / "ablation.png").read_bytes()
        write_atomically(image, lambda path, data=picture: path.write_bytes(data))  # type: ignore[misc]
        fill(arguments.out, name, _section(name, folder))


def _section(name: str, folder: Path) -> str:
    sweep = SweepFolder(folder).read()
    found = levels(folder, sweep)
    about = ABLATIONS[name].about
    said = [f"- {sentence}" for sentence in verdict(found, sweep.baseline)]
    return "\n".join(
        [
            f"## `{name}`",
            "",
            f"{about[0].upper()}{about[1:]}. "
            f"`acclimate ablate {name} --out runs/ablations/{name}`: "
            f"{len(sweep.jobs)} runs on {os.cpu_count()} cores ({platform.machine()}, no GPU).",
            "",
            made("src/acclimate/paper/ablations", *TRAINING),
            "",
            *_table(sweep, found),
            "",
            f"![{name}](images/ablation-{name}.png)",
            "",
            *said,
        ]
    )


def _table(sweep: Sweep, found: list[Level]) -> list[str]:
    heads, rows = level_table(found, dict.fromkeys(job.variant for job in sweep.jobs))
    label = sweep.axis.label if sweep.axis else ""
    lines = [[label, *heads], ["---", *["---:"] * len(heads)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


if __name__ == "__main__":
    main()
