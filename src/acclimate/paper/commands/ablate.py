"""`ablate`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import LAUNCH, DryRun, Json, RetryFailed, grouped, names
from acclimate.cli.output import say, say_facts, say_json, say_table
from acclimate.paper.commands.studies import RunSettings, run_study
from acclimate.sweep.settings import LaunchOptions

if TYPE_CHECKING:
    from acclimate.sweep.driver import SweepPlan


@app.command(epilog="Example: acclimate ablate domains --out ablations/domains")
@grouped(launch=LAUNCH)
def ablate(
    *,
    name: Annotated[str, typer.Argument(help="See `acclimate list ablations`.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs, the data and the report.")],
    data: Annotated[
        Path | None,
        typer.Argument(help="A manifest, table or folder. [default: the embedded digits]"),
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option(help="What is compared, e.g. 2,4,8; commas or repeat.")
    ] = None,
    algorithms: Annotated[
        list[str] | None, typer.Option(help="[default: erm,da-erm]; commas or repeat.")
    ] = None,
    test_domains: Annotated[
        list[str] | None, typer.Option(help="Unseen together, if not by role; commas or repeat.")
    ] = None,
    val_domains: Annotated[
        list[str] | None, typer.Option(help="Never trained on, used to choose; commas or repeat.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Repetitions with seeds of their own.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of the first trial.")] = 0,
    one_draw: Annotated[
        bool,
        typer.Option(
            "--one-draw", help="The same draw of the data in all trials; errors leave it out."
        ),
    ] = False,
    preset: Annotated[str, typer.Option(help="See `acclimate list presets`.")] = "",
    settings: RunSettings = None,
    launch: dict[str, Any],
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """One of the paper's ablations: a sweep in which one thing varies, its plot and a verdict.

    Repeating the command resumes it. Data that an ablation changes are built below --out.
    """
    from acclimate.cli.sweep import announcement
    from acclimate.config import parse_assignments
    from acclimate.paper.ablations.study import AblationRequest, prepare_ablation
    from acclimate.sweep.launchers import chosen_launcher

    launcher = chosen_launcher(LaunchOptions(**launch))  # a mistake shows before any data are read
    study = prepare_ablation(
        AblationRequest(
            name=name,
            data=data,
            out=out,
            values=names(values),
            algorithms=names(algorithms),
            test_domains=names(test_domains),
            val_domains=names(val_domains),
            trials=trials,
            seed=seed,
            one_draw=one_draw,
            preset=preset,
            settings=parse_assignments(settings or []),
        )
    )
    if dry_run:
        say_facts(announcement(out, study), json=json)
        return
    run_study(out, study, launcher, retry_failed=retry_failed)
    _show(out, study, json=json)


def _show(out: Path, study: "SweepPlan", *, json: bool) -> None:
    from acclimate.paper.ablations.verdict import level_table, levels, verdict
    from acclimate.paper.figures import FIGURES
    from acclimate.report.figures import write_figures
    from acclimate.report.page import write_page
    from acclimate.results.load import load_report

    scores, axis = levels(out, study.sweep), study.sweep.axis
    sentences = verdict(scores, study.sweep.baseline)
    report = load_report(out)
    page = write_page(report, out / "report.html", intro="\n\n".join(sentences), figures=FIGURES)
    figures = write_figures(report, out, ("png", "pdf"), {"ablation": FIGURES["ablation"]})
    failures = [f"{failure.job}: {failure.error}" for failure in report.failures]
    if json:
        say_json(
            {
                "sweep": str(out),
                "axis": asdict(axis) if axis else None,
                "levels": [
                    asdict(one) | {"mean": one.estimate.mean, "error": one.estimate.se}
                    for one in scores
                ],
                "verdict": sentences,
                "failures": failures,
                "notes": list(study.notes),
                "report": str(page),
                "written": [str(path) for path in figures],
            }
        )
    else:
        heads, rows = level_table(scores, axis.places if axis else ())
        say_table((axis.label if axis else "", *heads), rows, title="top-1 on unseen domains, %")
        say("± is the standard error over trials (sample standard deviation / √n).\n")
        for sentence in sentences:
            say(sentence)
        for failure in failures:
            say(f"failed {failure}")
        say(f"report: {page}")
        for path in figures:
            say(f"figure: {path}")
    if failures:
        raise typer.Exit(1)
