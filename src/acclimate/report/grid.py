"""The one model of a table: a `Grid` of `Cell`s, as text, Markdown and LaTeX (booktabs).

`tables` fills grids from results; templates/macros.html draws the same grids as HTML.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from acclimate.core.text import DASH, percent
from acclimate.results.statistics import Estimate, in_percent, in_points


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what a column is sorted by; `None` is missing, or a name
    best: bool = False  # of its column, which views show in bold
    badge: str = ""  # of a name: "control", "ceiling" or "published", for a paler row
    remark: str = ""  # about the badge
    long: bool = False  # may run over several lines

    @property
    def marked(self) -> str:
        return f"{self.text} [{self.badge}]" if self.badge else self.text


def accuracy(value: Estimate | None, *, best: bool = False) -> Cell:
    return Cell(in_percent(value), None if value is None else value.mean, best=best)


def difference(value: Estimate | None) -> Cell:
    return Cell(in_points(value), None if value is None else value.mean)


def share(value: float | None) -> Cell:
    return Cell(percent(value), value)


def number(value: float | None, form: str = "") -> Cell:
    return Cell(DASH) if value is None else Cell(format(value, form), value)


@dataclass(frozen=True)
class Grid:
    """A table before it is drawn. The first column holds names, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: frozenset[str] = frozenset()  # further columns that hold no numbers

    def only(self, places: Sequence[int]) -> "Grid":
        """The columns at these places, in their order."""
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return replace(self, header=tuple(self.header[place] for place in places), rows=rows)

    def without(self, *names: str) -> "Grid":
        return self.only([at for at, name in enumerate(self.header) if name not in names])

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """As a terminal shows it, the header first. It has no bold that survives a file: the best
        has a star, and the others have room for one."""
        starred = any(cell.best for row in self.rows for cell in row)
        rows = [self.header, *(tuple(cell.marked for cell in row) for row in self.rows)]
        if not starred:
            return rows
        best = [[False] * len(self.header), *([cell.best for cell in row] for row in self.rows)]
        return [
            (row[0], *(text + " *"[star] for text, star in zip(row[1:], stars[1:], strict=True)))
            for row, stars in zip(rows, best, strict=True)
        ]

    @property
    def widths(self) -> list[int]:
        return [max(map(len, column)) for column in zip(*self.texts, strict=True)]

    def to_text(self) -> str:
        """Aligned columns for a terminal: names to the left, numbers to the right."""
        widths = self.widths
        first, *lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in self.texts
        ]
        return "\n".join([first, "  ".join("-" * width for width in widths), *lines]) + "\n"

    def to_markdown(self) -> str:
        """A table with the best of each column in bold."""
        ruler = ["---", *["---:"] * (len(self.header) - 1)]
        rows = [
            [f"**{markdown(cell.marked)}**" if cell.best else markdown(cell.marked) for cell in row]
            for row in self.rows
        ]
        first, *body = [f"| {' | '.join(line)} |" for line in [map(markdown, self.header), *rows]]
        return "\n".join([first, f"|{'|'.join(ruler)}|", *body]) + "\n"


def markdown(text: str) -> str:
    """Escaped, so that names of domains stay what they are."""
    for mark in "\\|*_`[]":
        text = text.replace(mark, "\\" + mark)
    return text.replace("<", "&lt;").replace("\n", " ")


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
    body, badge = [], grid.rows[0][0].badge if grid.rows else ""
    for name, *cells in grid.rows:
        if ruled and name.badge != badge:
            body.append(r"\midrule")
        badge = name.badge
        mark = escaped(name.text) + DAGGER if badge == "published" else escaped(name.marked)
        body.append(" & ".join([mark, *map(_number, cells)]) + r" \\")
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        f"\\caption{{{escaped(caption)}{footnote}}}",
        f"\\label{{{label}}}",
        f"\\begin{{tabular}}{{l{'c' * (len(grid.header) - 1)}}}",
        r"\toprule",
        " & ".join(map(escaped, grid.header)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _number(cell: Cell) -> str:
    """Of the best, the mean is bold and its error is not."""
    mean, sign, error = cell.text.partition(" ± ")
    bold = f"\\textbf{{{escaped(mean)}}}" if cell.best else escaped(mean)
    return f"{bold} $\\pm$ {escaped(error)}" if sign else bold
