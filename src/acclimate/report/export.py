"""Results as Markdown, LaTeX, CSV and values for JSON: views of one `Report`."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acclimate.core.errors import ConfigError
from acclimate.core.files import write_text
from acclimate.core.text import csv_text, markdown
from acclimate.records.folder import check_out
from acclimate.records.metrics import METRICS, TOP_1, measured
from acclimate.report import tables
from acclimate.report.sentences import headline, notes
from acclimate.results.comparison import ALL, AVERAGE, Comparison, Row
from acclimate.results.material import Report
from acclimate.results.protocol import RULES


def heading(results: Comparison) -> str:
    name = results.dataset + ("" if results.metric == TOP_1 else f", {measured(results.metric)}")
    return f"{name}, selected by {results.rule}" if results.rule else name


def caption(results: Comparison) -> str:
    """What the numbers are; the same words in every format."""
    over = "data sets" if results.dataset == ALL else "unseen domains"
    accuracy = f"Accuracy in percent on {over}."
    sentences = [accuracy if results.metric == TOP_1 else f"On {over}: {measured(results.metric)}."]
    if results.rule in RULES:
        sentences.append(f"Models selected by {results.rule} ({RULES[results.rule]}).")
    sentences.append("± is the standard error over trials: sample standard deviation / √n.")
    if any(results.best.values()):
        sentences.append("Bold: the best of each column, with those that print the same.")
    return " ".join(sentences)


def published_note(results: Comparison) -> str:
    """Where the published rows come from, and what is odd about any of them; "" without them."""
    rows = [row for row in results.rows if row.published]
    sources = dict.fromkeys(row.note.partition("; ")[0] for row in rows)
    odd = [f"{row.key.label}: {row.note.partition('; ')[2]}" for row in rows if "; " in row.note]
    return " ".join(f"{note[0].upper()}{note[1:]}." for note in (*sources, *odd))


def tests_caption(results: Comparison) -> str:
    same = ", at the same value" if any(row.key.variant for row in results.rows) else ""
    points = " in points" * METRICS[results.metric].percent
    bootstrap = tables.BOOTSTRAP in tables.tests_grid(results).header
    return (
        f"Differences to {results.baseline.label}{points}{same}, ± the standard error over "
        "trials. p: paired t-test over trials, then corrected by Holm for the methods of this "
        "table." + " Bootstrap: domains resampled within each data set." * bootstrap
    )


def to_markdown(report: Report) -> str:
    parts = [f"# {markdown(report.title)}\n"]
    for results in every(report):
        below = " ".join(filter(None, [caption(results), published_note(results)]))
        parts.append(f"## {markdown(heading(results))}\n")
        parts += [tables.results_grid(results).to_markdown(), f"{markdown(below)}\n"]
        if results.tested:
            parts.append(tables.tests_grid(results).to_markdown())
            parts.append(f"{markdown(tests_caption(results))}\n")
    if report.notes:
        parts.append("\n".join(f"- {markdown(note)}" for note in report.notes) + "\n")
    parts.append("<!-- acclimate report -->\n")
    return "\n".join(parts)


def to_latex(report: Report) -> str:
    parts = ["% Needs \\usepackage{booktabs}"]
    for results in every(report):
        words = re.sub(r"[^a-z0-9]+", "-", f"{results.dataset} {results.rule}".lower())
        label, below = f"tab:{words.strip('-')}", published_note(results)
        title = f"{results.dataset}. {caption(results)}"
        parts.append(tables.results_grid(results).to_latex(title, label, below))
        if results.tested:
            title = f"{heading(results)}. {tests_caption(results)}"
            parts.append(tables.tests_grid(results).to_latex(title, f"{label}-differences"))
    return "\n".join(parts)


def every(report: Report) -> list[Comparison]:
    """The tables of all rules."""
    return [results for rule in report.rules for results in report.results[rule]]


COLUMNS = (
    *("rule", "dataset", "algorithm", "method", "variant"),
    *("column", "mean", "se", "n", "published", "metric"),
)


def to_csv(report: Report) -> str:
    """One line per number, in full precision and as shares of 1; what is missing is empty. Columns
    are domains, the average, and averages by each metric; `metric` is that of the first two."""
    lines: list[Iterable[object]] = [COLUMNS]
    for results in every(report):
        for row in results.rows:
            key = row.key.algorithm, row.key.method, row.key.variant
            published = str(row.published).lower()
            others = {name: value for name, value in row.metrics.items() if name != results.metric}
            for column, value in (*row.cells.items(), (AVERAGE, row.average), *others.items()):
                cell = (None, None, 0) if value is None else (value.mean, value.se, value.n)
                line = [results.rule, results.dataset, *key, column, *cell, published]
                lines.append([*line, results.metric])
    return csv_text(lines)


def to_dict(report: Report) -> dict[str, Any]:
    """The report as JSON can hold it; shares of 1, `None` for missing."""
    return {
        **comparison_values(report.overall),
        "headline": headline(report),
        "title": report.title,
        "rules": list(report.rules),
        "runs": [
            {"name": run.name, "finished": run.finished is not None, "problem": run.problem}
            for run in report.runs
        ],
        "results": [
            {
                "rule": results.rule,
                "dataset": results.dataset,
                "columns": list(results.columns),
                "baseline": asdict(results.baseline),
                "rows": [
                    _row(row)
                    | {"best": sorted(name for name in results.best if results.is_best(row, name))}
                    for row in results.rows
                ],
            }
            for results in every(report)
        ],
        "choices": {
            rule: [asdict(one) for one in report.choices.get(rule, ())] for rule in report.rules
        },
        "failures": [asdict(failure) for failure in report.failures],
        "waiting": report.waiting,
        "notes": [*report.notes, *notes(report)],
    }


def comparison_values(results: Comparison) -> dict[str, Any]:
    """The methods that were scored, each with its means and its difference to the baseline."""
    return {
        "baseline": asdict(results.baseline),
        "metric": results.metric,
        "lines": [_row(row) for row in results.lines],
    }


def _row(row: Row) -> dict[str, Any]:
    values = asdict(row)
    if row.difference is not None:
        interval = row.gain and row.gain.interval
        values["difference"] |= {"interval": interval, "verdict": row.difference.verdict}
    values["top5"] = values["metrics"].get("top-5")
    return {**values.pop("key"), "label": row.key.label, "kind": row.key.kind, **values}


def write_table(report: Report, path: Path) -> None:
    """In the format that the name ends in."""
    text = format_of(path)(report)
    check_out(path, f"{path.suffix.lower()} file")
    write_text(path, text)


def format_of(path: Path) -> Callable[[Report], str]:
    known = {".md": to_markdown, ".tex": to_latex, ".csv": to_csv, ".json": _json}
    if path.suffix.lower() not in known:
        endings = ", ".join(known)
        raise ConfigError(f"{path}: no table format ends in '{path.suffix}'; use one of {endings}")
    return known[path.suffix.lower()]


def _json(report: Report) -> str:
    return json.dumps(to_dict(report), indent=2, ensure_ascii=False) + "\n"
