"""Results as LaTeX tables (booktabs), ready to be put into a paper."""

from collections.abc import Sequence

from acclimate.report.grid import Cell, Grid

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


def latex_table(
    grid: Grid, caption: str, label: str, *, published: str = "", ruled: bool = True
) -> str:
    """A grid as a table; `ruled` sets off each kind of row, `published` is the footnote."""
    footnote = f" {DAGGER}{escaped(published)}" if published else ""
    body, before = [], grid.rows[0][0].badge if grid.rows else ""
    for name, *cells in grid.rows:
        if ruled and name.badge != before:
            body.append(r"\midrule")
        before = name.badge
        body.append(_row([_name(name), *map(_number, cells)]))
    header = [escaped(name) for name in grid.header]
    return _table(header, body, escaped(caption) + footnote, label)


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


def _name(cell: Cell) -> str:
    if cell.badge == "published":
        return escaped(cell.text) + DAGGER
    return escaped(cell.marked)


def _number(cell: Cell) -> str:
    """Of the best, the mean is bold and its error is not."""
    mean, sign, error = cell.text.partition(" ± ")
    bold = f"\\textbf{{{escaped(mean)}}}" if cell.best else escaped(mean)
    return f"{bold} $\\pm$ {escaped(error)}" if sign else bold


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
