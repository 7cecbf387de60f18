"""`report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from acclimate.cli import app, paper
from acclimate.cli.options import Json, names
from acclimate.cli.output import say, say_facts, say_json
from acclimate.core.errors import ConfigError
from acclimate.core.exports import load

if TYPE_CHECKING:
    from acclimate.report.figures.canvas import Format
    from acclimate.results.material import Report


@app.command(epilog="Example: acclimate report SWEEP --out report.html --table results.tex")
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="A sweep, or a folder with runs at any depth; with --merge sweeps.",
        ),
    ],
    merge: Annotated[bool, typer.Option("--merge", help="Put several sweeps together.")] = False,
    from_domainbed: Annotated[
        bool, typer.Option("--from-domainbed", help="The folder is a sweep of DomainBed.")
    ] = False,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Show this selection rule; repeat for more. [default: all that apply]"),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show rows that papers printed beside these.")
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(help="Compare with it. [default: the sweep's, or erm]")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Compare and choose by it. [default: the runs' own]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="[default: FOLDER/report.html; of several, merged.html in the first]"),
    ] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(help="Write the tables as .md, .tex, .csv or .json; can be repeated."),
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the figures to a folder.")] = None,
    kinds: Annotated[str, typer.Option("--format", help="Of the figures.")] = "pdf,svg,png",
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
    json: Json = False,
) -> None:
    """Tables with errors and significance, and a self-contained HTML page, of a sweep or of runs.

    Repeat it at any time: what is not finished shows as missing, never as zero.
    """
    from acclimate.report.export import format_of, to_dict, write_table
    from acclimate.report.figures import check_formats, write_figures
    from acclimate.report.page import write_page
    from acclimate.results.load import load_domainbed, load_merged, load_report
    from acclimate.results.runs import Key

    formats = cast("tuple[Format, ...]", names([kinds]))
    check_formats(formats)
    for path in table or ():
        format_of(path)  # a wrong name is an error before anything is read or written
    if from_domainbed and (metric or merge):
        raise ConfigError("DomainBed's results hold accuracies alone; leave out --metric, --merge")
    if len(folders) > 1 and not merge:
        raise ConfigError(f"{len(folders)} folders are given; add --merge, or report on each alone")
    folder, against = folders[0], Key.usual(baseline) if baseline else None
    if from_domainbed:
        comparison = load_domainbed(folder, title=title, baseline=against)
    elif merge:
        comparison = load_merged(folders, title=title, baseline=against, metric=metric or "")
    else:
        comparison = load_report(folder, title=title, baseline=against, metric=metric or "")
    if published:
        comparison = load(paper.WITH_PUBLISHED)(comparison)
    if rule:
        comparison = comparison.limited(rule)
    every_figure = load(paper.FIGURES)
    page = out or folder / ("merged.html" if len(folders) > 1 else "report.html")
    write_page(comparison, page, figures=every_figure)
    written = [*(table or ())]
    for path in table or ():
        write_table(comparison, path)
    if figures is not None:
        written += write_figures(comparison, figures, formats, every_figure)
    if json:
        say_json({**to_dict(comparison), "report": page, "written": written})
        return
    _show(comparison)
    say_facts({"report": page, "written": [str(path) for path in written]})


def _show(report: "Report") -> None:
    from acclimate.report.export import heading
    from acclimate.report.sentences import headline, notes
    from acclimate.report.tables import results_grid, tests_grid

    tables = [results for results in report.results[report.rules[0]] if results.rows]
    for results in tables:
        say(heading(results))
        say(results_grid(results).to_text())
        if results.tested:
            say(tests_grid(results).to_text())
    rows = [row for results in tables for row in results.rows]
    if any(any(results.best.values()) for results in tables):
        say("* the best of a column.")
    if any(row.average and row.average.se is not None for row in rows):
        say("± is the standard error over trials (sample standard deviation / √n).")
    if any(row.difference and row.difference.p is not None for row in rows):
        say("p: paired t-test over trials. Holm: corrected for the number of methods.")
    say()
    say(headline(report))
    facts = {
        "notes": list(dict.fromkeys([*report.notes, *notes(report)])),
        "not_counted": [
            {"run": run.name, "problem": run.problem} for run in report.runs if run.problem
        ],
        "failed": [{"job": one.job, "error": one.error} for one in report.failures],
        "waiting": report.waiting or None,
        "also_on_the_page": report.rules[1:],
    }
    say_facts(facts)
