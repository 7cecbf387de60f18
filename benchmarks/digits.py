"""ERM against DA-ERM on the embedded benchmark: `make bench` (docs/results.md keeps the result).

Runs are kept in runs/bench-digits and resume; the page with every figure is beside them.
"""

import argparse
import os
import platform
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from acclimate import __version__
from acclimate.demo import run_demo
from acclimate.report.figures import FIGURES, illustrations
from acclimate.report.figures.canvas import write_figure
from acclimate.report.sentences import headline
from acclimate.report.tables import comparison
from acclimate.results.load import load_report
from pages import TRAINING, fill, made

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "bench-digits")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results.md")
    arguments = parser.parse_args()
    with Progress(console=Console(stderr=True)) as progress:
        tasks: dict[str, object] = {}

        def watch(phase: str, done: int, total: int, note: str) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase, total=total)
            progress.update(tasks[phase], completed=done)  # type: ignore[arg-type]

        report, page = run_demo(arguments.runs, range(arguments.seeds), watch)
    text = "\n".join(
        [
            "## Embedded digits benchmark",
            "",
            f"Made by `make bench` ({arguments.seeds} seeds) with acclimate {__version__}, torch "
            f"{torch.__version__}, on {os.cpu_count()} cores ({platform.machine()}, no GPU).",
            "",
            made("src/acclimate/demo.py", *TRAINING),
            "",
            headline(report),
            "",
            comparison(report.overall).to_markdown(),
            "",
            "Accuracy in percent on domains never seen in training, mean ± standard error over",
            "seeds; each seed draws new domains, images and weights.",
            "",
        ]
    )
    fill(arguments.out, "digits", text)
    pictures = arguments.out.parent / "images"
    report = load_report(arguments.runs)
    for name, file in {"methods": "comparison.png", "map": "map.png"}.items():
        for figure in illustrations(report, {name: FIGURES[name]}):
            write_figure(figure.drawing, pictures / file, "png", dpi=150)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(text)
    console.print(f"report: {page}")


if __name__ == "__main__":
    main()
