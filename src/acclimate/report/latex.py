"""Results as LaTeX tables (booktabs), ready to be put into a paper."""

import re
from collections.abc import Sequence

from acclimate.report.tables import MARKS, Grid, percent
from acclimate.results.statistics import Estimate
from acclimate.results.tabulate import AVERAGE, Results, Row

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "√": r"$\surd$",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}
DAGGER = r"$^\dagger$"


def escaped(text: str) -> str:
    """One pass over the characters: what an escape brings in is not escaped again."""
    return "".join(_ESCAPES.get(mark, mark) for mark in " ".join(text.split()))


def latex_table(results: Results, *, caption: str, published: str = "") -> str:
    """One row per method, one column per domain and their average; `published` is the footnote."""
    names = [escaped(name) for name in (*results.columns, "Average")]
    footnote = f" {DAGGER}{escaped(published)}" if published else ""
    return _table(["Method", *names], _body(results), escaped(caption) + footnote, _label(results))


def latex_tests(results: Results, grid: Grid, *, caption: str) -> str:
    """The differences to the baseline with their paired tests."""
    rows = [_row([escaped(cell.text) for cell in row]) for row in grid.rows]
    header = [escaped(name) for name in grid.header]
    return _table(header, rows, escaped(caption), f"{_label(results)}-differences")


def _table(header: Sequence[str], body: Sequence[str], caption: str, label: str) -> str:
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        f"\\caption{{{caption}}}",
        f"\\label{{{label}}}",
        f"\\begin{{tabular}}{{l{'c' * (len(header) - 1)}}}",
        r"\toprule",
        _row(header),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _body(results: Results) -> list[str]:
    """Our methods, then controls, ceilings and published rows, each kind set off by a rule."""
    lines, before = [], None
    for row in results.rows:
        kind = "published" if row.published else row.key.kind
        if before not in (None, kind):
            lines.append(r"\midrule")
        before = kind
        values = [(name, row.cells.get(name)) for name in results.columns]
        cells = [
            _number(value, best=not row.published and row.key in results.best.get(name, ()))
            for name, value in [*values, (AVERAGE, row.average)]
        ]
        lines.append(_row([_name(row), *cells]))
    return lines


def _name(row: Row) -> str:
    if row.published:
        return escaped(row.key.label) + DAGGER
    return escaped(row.key.label + MARKS[row.key.kind])


def _number(value: Estimate | None, *, best: bool) -> str:
    if value is None:
        return "--"
    mean = percent(value.mean)
    mean = f"\\textbf{{{mean}}}" if best else mean
    return mean if value.se is None else f"{mean} $\\pm$ {percent(value.se)}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _label(results: Results) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", f"{results.dataset} {results.rule}".lower()).strip("-")
    return f"tab:{words}"
