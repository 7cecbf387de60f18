"""`report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from acclimate.cli import app
from acclimate.cli.output import Json, say, say_json
from acclimate.core.errors import ConfigError

if TYPE_CHECKING:
    from acclimate.report import Report, Results
    from acclimate.report.figures.canvas import Format

_MOST = 10  # failed jobs that are named here; the page has them all


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
        typer.Option(help="Write the tables as .md, .tex, .csv, .json or .txt; can be repeated."),
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
    from acclimate.report.export import format_of, write_table
    from acclimate.results.material import limited
    from acclimate.results.runs import Key

    formats = _formats(kinds)
    for path in table or ():
        format_of(path)  # a wrong name is an error before anything is read or written
    load = load_domainbed if from_domainbed else load_report
    base = Key.usual(baseline) if baseline else None
    found = load(folder, title=title, baseline=base, published=published)
    if rule:
        found = limited(found, rule)
    written = [write_page(found, out or folder / "report.html")]
    for path in table or ():
        write_table(found, path)
        written.append(path)
    if figures is not None:
        written += write_figures(found, figures, formats)
    if json:
        _say_json(found, written)
    else:
        _show(found, written)


def _formats(kinds: str) -> "list[Format]":
    from acclimate.report.figures import FORMATS

    wanted = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    for kind in wanted:
        if kind not in FORMATS:
            raise ConfigError(f"--format: there is no '{kind}'; choose of {', '.join(FORMATS)}")
    return cast("list[Format]", wanted)


def _say_json(report: "Report", written: list[Path]) -> None:
    from acclimate.report.export import to_dict

    page, *others = map(str, written)
    say_json({**to_dict(report), "report": page, "written": others})


def _show(report: "Report", written: list[Path]) -> None:
    from acclimate.report.sentences import first_sentence, notes
    from acclimate.results.material import alike

    main = report.rules[0]
    shown = [results for results in report.results[main] if results.rows]
    for results in shown:
        _show_results(results)
    if any(any(results.best.values()) for results in shown):
        say("* the best of a column.")
    if any(row.average and row.average.se is not None for found in shown for row in found.rows):
        say("± is the standard error over trials (sample standard deviation / √n).")
    if any(row.test and row.test.p is not None for results in shown for row in results.rows):
        say("p: paired t-test over (domain, trial); trials of one domain are not independent, so")
        say("with few domains a small p is optimistic. Holm: corrected for the number of methods.")
    say()
    say(first_sentence(report))
    for note in dict.fromkeys([*report.notes, *notes(report.summary)]):
        say(f"note: {note}")
    _show_trouble(report)
    same = alike(report)
    others = [rule for rule in report.rules[1:] if rule not in same]
    if same:
        say(f"selection by {' or '.join(same)} chooses the same runs")
    if others:
        say(f"also on the page: selection by {', '.join(others)}")
    for name, path in zip(["report", *["written"] * len(written)], written, strict=False):
        say(f"{name}: {path}")


def _show_results(results: "Results") -> None:
    from acclimate.report.export import heading, to_text
    from acclimate.report.tables import tests_grid

    say(heading(results))
    say(to_text(results))
    tests = tests_grid(results)
    if tests.rows:
        say(tests.to_text())


def _show_trouble(report: "Report") -> None:
    for run in report.runs:
        if run.problem is not None:
            say(f"not counted: {run.name}: {run.problem}")
    for failure in report.failures[:_MOST]:
        say(f"failed: {failure.job}: {failure.error}")
    if len(report.failures) > _MOST:
        say(f"failed: and {len(report.failures) - _MOST} more")
    if report.waiting:
        say(f"waiting: {report.waiting} of {len(report.sweep.jobs) if report.sweep else 0} jobs")
