"""`demo`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app, paper
from acclimate.cli.options import Json
from acclimate.cli.output import progress_bar, say, say_facts, say_json, say_table
from acclimate.core.exports import load

ON_THE_PAGE = ("Top-5", "Training domains", "p", "p (Holm)", "Runs", "Domains")  # and not here


@app.command(epilog="Example: acclimate demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Independent repetitions.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first of them.")] = 0,
    json: Json = False,
) -> None:
    """ERM against DA-ERM on unseen domains of the embedded benchmark, with an HTML report.

    Real handwritten digits seen through noisy sensors. Every seed draws new domains and new
    weights; both models get the same data, steps and capacity. Repeat the command to resume.
    """
    from acclimate.demo import run_demo
    from acclimate.report.export import to_dict
    from acclimate.report.sentences import headline, notes
    from acclimate.report.tables import GAP_CLOSED, comparison

    with progress_bar() as watch:
        report, page = run_demo(
            out, range(first_seed, first_seed + seeds), watch, load(paper.FIGURES)
        )
    if json:
        say_json({**to_dict(report), "report": page})
        return
    wide = (*ON_THE_PAGE, f"Better than {report.overall.baseline.label}", GAP_CLOSED)
    header, *rows = comparison(report.overall).without(*wide).texts
    say_table(header, rows)
    say()
    say(headline(report))
    say_facts({"notes": notes(report), "report": page})
