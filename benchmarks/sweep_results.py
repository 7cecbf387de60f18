"""Keep what a finished sweep showed: its tables in docs/results.md, a picture in docs/images.

    python benchmarks/sweep_results.py runs/pacs --name pacs --made-by "acclimate sweep …"

The tables are those of `acclimate report`, by the sweep's own rule; nothing is typed in by hand.
"""

import argparse
from pathlib import Path

from acclimate.report.export import to_markdown
from acclimate.report.figures import illustrations
from acclimate.report.figures.canvas import write_figure
from acclimate.report.sentences import headline
from acclimate.results.load import load_report
from acclimate.results.material import Report
from pages import TRAINING, fill, made

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--made-by", required=True, help="the command that made the sweep")
    parser.add_argument("--picture", default="domains", help="figure to keep")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results.md")
    arguments = parser.parse_args()
    report = load_report(arguments.sweep)
    pictures = [one for one in illustrations(report) if one.name == arguments.picture]
    for one in pictures:
        path = arguments.out.parent / "images" / f"{arguments.name}.png"
        write_figure(one.drawing, path, "png", dpi=150)
    fill(arguments.out, arguments.name, _section(report, arguments, bool(pictures)))


def _section(report: Report, arguments: argparse.Namespace, picture: bool) -> str:
    rule = report.rules[0]
    runs = [run for run in report.runs if run.finished is not None]
    starts = [start for run in runs for start in run.starts]
    machines = ", ".join(sorted({start.device for start in starts}))
    versions = ", ".join(sorted({start.version for start in starts}))
    hours = sum(run.finished.seconds for run in runs if run.finished) / 3600
    lines = [
        f"## {report.title}",
        "",
        f"Made by `{arguments.made_by}` with acclimate {versions} on {machines}: "
        f"{len(runs)} of {len(report.runs)} runs finished, {hours:.1f} hours of them in all "
        "(side by side), Step A not counted where runs share it.",
        "",
        made(*TRAINING),
        "",
        headline(report),
        "",
        *_tables(report, rule),
    ]
    if picture:
        lines += ["", f"![{report.title}, domain by domain](images/{arguments.name}.png)"]
    return "\n".join(lines)


def _tables(report: Report, rule: str) -> list[str]:
    """The report's Markdown without its title, below the heading that is already there."""
    lines = to_markdown(report.limited([rule])).splitlines()
    return [f"#{line}" if line.startswith("## ") else line for line in lines if line[:2] != "# "]


if __name__ == "__main__":
    main()
