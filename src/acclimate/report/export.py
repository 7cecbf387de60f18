"""Results as text, Markdown, LaTeX, CSV and values for JSON: five views of one `Report`."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from acclimate.core.errors import ConfigError
from acclimate.core.files import write_text
from acclimate.report import tables
from acclimate.report.latex import latex_table, latex_tests
from acclimate.report.lead import lead
from acclimate.report.tables import MARKS, Cell, Grid, p_value
from acclimate.results.material import Report, alike, limited
from acclimate.results.protocol import RULES
from acclimate.results.statistics import Estimate
from acclimate.results.tabulate import ALL, AVERAGE, Results, Row

PUBLISHED = " [published]"
_MOST_BLOCKS = 3


def results_grid(results: Results, columns: Sequence[str] | None = None) -> Grid:
    """One row per method, one column per domain and their average; the best of each is marked."""
    shown = (*results.columns, AVERAGE) if columns is None else tuple(columns)
    rows = []
    for row in results.rows:
        values = {**row.cells, AVERAGE: row.average}
        cells = [
            Cell(
                tables.estimate(value),
                None if value is None else value.mean,
                best=not row.published and row.key in results.best.get(name, ()),
            )
            for name in shown
            for value in [values.get(name)]
        ]
        rows.append((Cell(name_of(row)), *cells))
    header = ("Method", *("Average" if name == AVERAGE else name for name in shown))
    return Grid(header, tuple(rows), tuple(row.key for row in results.rows))


def name_of(row: Row) -> str:
    return row.key.label + (PUBLISHED if row.published else MARKS[row.key.kind])


def tests_grid(results: Results) -> Grid:
    """Each method's difference to its baseline, with the paired test."""
    rows = [row for row in results.rows if row.test is not None]
    cells = []
    for row in rows:
        test = row.test
        assert test is not None
        cells.append(
            (
                Cell(name_of(row)),
                Cell(tables.points(test.difference), test.difference.mean),
                Cell(p_value(test.p), test.p),
                Cell(p_value(test.p_holm), test.p_holm),
                Cell(str(test.pairs), test.pairs),
            )
        )
    header = ("Method", f"Difference to {results.baseline.label}", "p", "p (Holm)", "Pairs")
    return Grid(header, tuple(cells), tuple(row.key for row in rows))


def heading(results: Results) -> str:
    return f"{results.dataset}, selected by {results.rule}" if results.rule else results.dataset


def caption(results: Results) -> str:
    """What the numbers are; the same words in every format."""
    over = "data sets" if results.dataset == ALL else "unseen domains"
    sentences = [
        f"Accuracy in percent on {over}.",
        "± is the standard error over trials: sample standard deviation / √n.",
    ]
    if results.rule in RULES:
        sentences.insert(1, f"Models selected by {results.rule} ({RULES[results.rule]}).")
    if any(results.best.values()):
        sentences.append("Bold: the best of each column, with those that print the same.")
    return " ".join(sentences)


def published_note(results: Results) -> str:
    """Where the published rows come from, and what is odd about any of them; "" without them."""
    rows = [row for row in results.rows if row.published]
    sources = list(dict.fromkeys(row.note.partition("; ")[0] for row in rows))
    odd = [f"{row.key.label}: {row.note.partition('; ')[2]}" for row in rows if "; " in row.note]
    return " ".join(f"{note[0].upper()}{note[1:]}." for note in (*sources, *odd))


def tests_caption(results: Results) -> str:
    return (
        f"Differences to {results.baseline.label} in points, ± the standard error over trials"
        f"{', at the same value' if _varied(results) else ''}. "
        "p: paired t-test over (domain, trial), then corrected by Holm for the methods of this "
        "table. Trials of one domain are not independent, so with few domains a small p is "
        "optimistic."
    )


def _varied(results: Results) -> bool:
    """Whether each variant has a baseline of its own."""
    base = results.baseline.algorithm
    return len({row.key.variant for row in results.rows if row.key.algorithm == base}) > 1


def to_text(results: Results, *, width: int = 100) -> str:
    """For a terminal: as many columns beside each other as fit, the rest below."""
    blocks = _blocks(results, width)
    if len(blocks) <= _MOST_BLOCKS:
        return "\n".join(tables.to_text(_starred(results_grid(results, one))) for one in blocks)
    text = tables.to_text(_starred(results_grid(results, (AVERAGE,))))
    return f"{text}({len(results.columns)} columns are left out here)\n"


def _blocks(results: Results, width: int) -> list[tuple[str, ...]]:
    grid = _starred(results_grid(results))
    table = [grid.header, *(tuple(cell.text for cell in row) for row in grid.rows)]
    first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    blocks: list[tuple[str, ...]] = [()]
    room = width - first
    for name, wide in zip((*results.columns, AVERAGE), widths, strict=True):
        room -= wide + 2
        if room < 0 and blocks[-1]:
            blocks.append(())
            room = width - first - wide - 2
        blocks[-1] += (name,)
    return blocks


def _starred(grid: Grid) -> Grid:
    """A terminal has no bold that survives a file: a star, and room for one."""
    if not any(cell.best for row in grid.rows for cell in row):
        return grid
    rows = tuple(
        (row[0], *(replace(cell, text=cell.text + ("*" if cell.best else " ")) for cell in row[1:]))
        for row in grid.rows
    )
    return replace(
        grid, header=(grid.header[0], *(f"{name} " for name in grid.header[1:])), rows=rows
    )


def to_markdown(report: Report, rules: Sequence[str] | None = None) -> str:
    parts = [f"# {tables.markdown(report.title)}\n"]
    for results in chosen(report, rules):
        below = " ".join(filter(None, [caption(results), published_note(results)]))
        parts.append(f"## {tables.markdown(heading(results))}\n")
        parts += [tables.to_markdown(results_grid(results)), f"{tables.markdown(below)}\n"]
        tests = tests_grid(results)
        if tests.rows:
            below = tables.markdown(tests_caption(results))
            parts += [tables.to_markdown(tests), f"{below}\n"]
    if report.notes:
        parts.append("\n".join(f"- {tables.markdown(note)}" for note in report.notes) + "\n")
    return "\n".join(parts)


def to_latex(report: Report, rules: Sequence[str] | None = None) -> str:
    parts = ["% Needs \\usepackage{booktabs}"]
    shown = limited(report, report.rules if rules is None else rules)
    same = alike(shown)
    parts += [f"% Selection by {rule} chooses the same runs as {shown.rules[0]}." for rule in same]
    for results in chosen(report, rules):
        if results.rule in same:
            continue
        title = f"{results.dataset}. {caption(results)}"
        parts.append(latex_table(results, caption=title, published=published_note(results)))
        tests = tests_grid(results)
        if tests.rows:
            title = f"{heading(results)}. {tests_caption(results)}"
            parts.append(latex_tests(results, tests, caption=title))
    return "\n".join(parts)


def chosen(report: Report, rules: Sequence[str] | None = None) -> list[Results]:
    """The tables of the rules wanted, or of all."""
    wanted = report.rules if rules is None else rules
    return [results for rule in wanted for results in report.results[rule]]


COLUMNS = (
    *("rule", "dataset", "algorithm", "method", "variant"),
    *("column", "mean", "se", "n", "published"),
)


def to_csv(report: Report, rules: Sequence[str] | None = None) -> str:
    """One line per number, in full precision and as shares of 1; what is missing is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for results in chosen(report, rules):
        for row in results.rows:
            for column, value in (*row.cells.items(), (AVERAGE, row.average)):
                writer.writerow(
                    {
                        "rule": results.rule,
                        "dataset": results.dataset,
                        **asdict(row.key),
                        "column": column,
                        **_estimate(value),
                        "published": str(row.published).lower(),
                    }
                )
    return text.getvalue()


def _estimate(value: Estimate | None) -> dict[str, Any]:
    return {"mean": None, "se": None, "n": 0} if value is None else asdict(value)


def to_dict(report: Report, rules: Sequence[str] | None = None) -> dict[str, Any]:
    """The report as JSON can hold it; shares of 1, `None` for missing."""
    wanted = list(report.rules if rules is None else rules)
    summary = report.summaries[wanted[0]]
    return {
        **tables.to_dict(summary),
        "headline": lead(report),
        "title": report.title,
        "rules": wanted,
        "runs": [
            {"name": run.name, "finished": run.finished is not None, "problem": run.problem}
            for run in report.runs
        ],
        "results": [_results(results) for results in chosen(report, wanted)],
        "choices": {rule: [asdict(one) for one in report.choices[rule]] for rule in wanted},
        "failures": [asdict(failure) for failure in report.failures],
        "waiting": report.waiting,
        "notes": [*report.notes, *tables.notes(summary)],
    }


def _results(results: Results) -> dict[str, Any]:
    return {
        "rule": results.rule,
        "dataset": results.dataset,
        "columns": list(results.columns),
        "baseline": asdict(results.baseline),
        "rows": [
            {
                **asdict(row.key),
                "label": row.key.label,
                "kind": row.key.kind,
                "published": row.published,
                "note": row.note,
                "cells": {name: value and asdict(value) for name, value in row.cells.items()},
                "average": row.average and asdict(row.average),
                "test": row.test and asdict(row.test),
                "best": sorted(
                    name
                    for name, keys in results.best.items()
                    if row.key in keys and not row.published
                ),
            }
            for row in results.rows
        ],
    }


def write_table(report: Report, path: Path, rules: Sequence[str] | None = None) -> None:
    """In the format that the name ends in."""
    write_text(path, format_of(path)(report, rules))


def format_of(path: Path) -> Callable[[Report, Sequence[str] | None], str]:
    known = {".md": to_markdown, ".tex": to_latex, ".csv": to_csv, ".json": _json, ".txt": _text}
    if path.suffix.lower() not in known:
        endings = ", ".join(known)
        raise ConfigError(f"{path}: no table format ends in '{path.suffix}'; use one of {endings}")
    return known[path.suffix.lower()]


def _json(report: Report, rules: Sequence[str] | None) -> str:
    return json.dumps(to_dict(report, rules), indent=2, ensure_ascii=False) + "\n"


def _text(report: Report, rules: Sequence[str] | None) -> str:
    parts = []
    for results in chosen(report, rules):
        parts += [heading(results), to_text(results), ""]
    return "\n".join(parts)
