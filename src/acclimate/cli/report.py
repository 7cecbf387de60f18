"""`report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from acclimate.cli import app, paper
from acclimate.cli.options import Json
from acclimate.cli.output import say, say_json, say_some

if TYPE_CHECKING:
    from acclimate.report import Report
    from acclimate.report.figures.canvas import Format


@app.command(epilog="Example: acclimate report SWEEP --out report.html --table results.tex")
def report(
    folder: Annotated[Path, typer.Argument(help="A sweep, or a folder with runs at any depth.")],
    from_domainbed: Annotated[
        bool, typer.Option("--from-domainbed", help="The folder is a sweep of DomainBed.")
    ] = False,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Show this selection rule; repeat for more. [default: all that apply]"),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show the paper's rows beside these.")
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(help="Compare with it. [default: the sweep's, or erm]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="[default: FOLDER/report.html]")] = None,
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
    from acclimate.report import load_domainbed, load_report, write_figures, write_page
    from acclimate.report.export import format_of, to_dict, write_table
    from acclimate.report.figures import check_formats
    from acclimate.results.runs import Key

    formats = cast("list[Format]", [kind.strip() for kind in kinds.split(",") if kind.strip()])
    check_formats(formats)
    for path in table or ():
        format_of(path)  # a wrong name is an error before anything is read or written
    load = load_domainbed if from_domainbed else load_report
    base = Key.usual(baseline) if baseline else None
    found = load(folder, title=title, baseline=base)
    if published:
        found = paper.load(paper.WITH_PUBLISHED)(found)
    if rule:
        found = found.limited(rule)
    drawn = paper.load(paper.FIGURES)
    written = [write_page(found, out or folder / "report.html", figures=drawn)]
    for path in table or ():
        write_table(found, path)
        written.append(path)
    if figures is not None:
        written += write_figures(found, figures, formats, drawn)
    if json:
        page, *others = map(str, written)
        say_json({**to_dict(found), "report": page, "written": others})
    else:
        _show(found, written)


def _show(report: "Report", written: list[Path]) -> None:
    from acclimate.report.export import heading
    from acclimate.report.sentences import headline, notes
    from acclimate.report.tables import results_grid, tests_grid

    main = report.rules[0]
    shown = [results for results in report.results[main] if results.rows]
    for results in shown:
        say(heading(results))
        say(results_grid(results).to_text())
        if results.tested:
            say(tests_grid(results).to_text())
    if any(any(results.best.values()) for results in shown):
        say("* the best of a column.")
    if any(row.average and row.average.se is not None for found in shown for row in found.rows):
        say("± is the standard error over trials (sample standard deviation / √n).")
    if any(row.difference and row.difference.p is not None for one in shown for row in one.rows):
        say("p: paired t-test over trials. Holm: corrected for the number of methods.")
    say()
    say(headline(report))
    for note in dict.fromkeys([*report.notes, *notes(report)]):
        say(f"note: {note}")
    _show_trouble(report)
    if others := report.rules[1:]:
        say(f"also on the page: selection by {', '.join(others)}")
    for name, path in zip(["report", *["written"] * len(written)], written, strict=False):
        say(f"{name}: {path}")


def _show_trouble(report: "Report") -> None:
    for run in report.runs:
        if run.problem is not None:
            say(f"not counted: {run.name}: {run.problem}")
    say_some("failed", [f"{one.job}: {one.error}" for one in report.failures], most=10)
    if report.waiting:
        say(f"waiting: {report.waiting} of {len(report.sweep.jobs) if report.sweep else 0} jobs")
