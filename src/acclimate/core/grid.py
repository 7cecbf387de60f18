"""The one model of a table: a `Grid` of `Cell`s, as text, Markdown, LaTeX (booktabs) and HTML.

Records, manifests and results fill grids of their own, and `report.tables` those of a report. The
pages' templates/macros.html draws the same grids as tables that can be sorted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from acclimate.core.text import DASH, markdown, percent, printable, short

_MOST_BLOCKS = 5  # of columns below each other in a terminal
_MOST_ROWS, _MOST_LETTERS = 60, 200  # of a table in a notebook


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
        """Cells as text for a terminal, the header first. The best cell has a star."""
        rows = [tuple("*" * cell.best + cell.marked for cell in row) for row in self.rows]
        return [self.header, *rows]

    def to_text(self, width: int = 100) -> str:
        """For a terminal: as many columns side by side as fit, the rest below. Of more than a few
        blocks, the last column alone."""
        first, *widths = [max(map(len, column)) for column in zip(*self.texts, strict=True)]
        blocks: list[list[int]] = [[]]
        room = width - first
        for place, wide in enumerate(widths, 1):
            if (room := room - wide - 2) < 0 and blocks[-1]:
                blocks.append([])
                room = width - first - wide - 2
            blocks[-1].append(place)
        if len(blocks) > _MOST_BLOCKS:
            left_out = f"({len(widths) - 1} columns are left out here)\n"
            return self.only([0, len(widths)])._align() + left_out
        return "\n".join(self.only([0, *block])._align() for block in blocks)

    def _align(self) -> str:
        """Names to the left, numbers to the right."""
        widths = [max(map(len, column)) for column in zip(*self.texts, strict=True)]
        header, *rows = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in self.texts
        ]
        return "\n".join([header, "  ".join("-" * width for width in widths), *rows]) + "\n"

    def to_markdown(self) -> str:
        """A table with the best of each column in bold."""
        lines = [[markdown(name) for name in self.header], ["---:"] * len(self.header)]
        lines[1][0] = "---"
        for row in self.rows:
            texts = [markdown(cell.marked) for cell in row]
            bold = [cell.best for cell in row]
            lines.append([f"**{t}**" if best else t for t, best in zip(texts, bold, strict=True)])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_html(self, caption: str = "") -> str:
        """For a notebook: a table as far as a screen shows it, and nothing in it that acts."""
        sides = ["left" if name in self.words else "right" for name in self.header]
        sides[0] = "left"  # said of each cell, as notebooks align all of them to the right
        lines = [_row("th", 'scope="col"', sides, [_html(name) for name in self.header])]
        for row in self.rows[:_MOST_ROWS]:
            cells = [f"<b>{_html(c.text)}</b>" if c.best else _html(c.marked) for c in row]
            lines.append(_row("td", "", sides, cells))
        if (more := len(self.rows) - _MOST_ROWS) > 0:
            lines.append(_row("td", "", sides, [f"and {more} more"]))
        said = f'<caption style="text-align: left">{_html(caption)}</caption>'
        return f"<table>{said}{''.join(lines)}</table>"

    def to_latex(self, caption: str, label: str, published: str = "") -> str:
        """A table, with a rule between kinds of rows; `published` is the footnote."""
        footnote = f" {_DAGGER}{escaped(published)}" if published else ""
        body, badge = [], self.rows[0][0].badge if self.rows else ""
        for name, *cells in self.rows:
            body += [r"\midrule"] if name.badge != badge else []
            badge = name.badge
            first = escaped(name.text) + _DAGGER if badge == "published" else escaped(name.marked)
            body.append(" & ".join([first, *map(_latex_number, cells)]) + r" \\")
        lines = [
            r"\begin{table}[t]",
            r"\centering",
            f"\\caption{{{escaped(caption)}{footnote}}}",
            f"\\label{{{label}}}",
            f"\\begin{{tabular}}{{l{'c' * (len(self.header) - 1)}}}",
            r"\toprule",
            " & ".join(map(escaped, self.header)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


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
_DAGGER = r"$^\dagger$"


def _row(tag: str, scope: str, sides: Sequence[str], cells: Sequence[str]) -> str:
    parts = (
        f'<{tag} {scope} style="text-align: {side}">{cell}</{tag}>'
        for side, cell in zip(sides, cells, strict=False)
    )
    return f"<tr>{''.join(parts)}</tr>"


def _html(text: str) -> str:
    return escape(printable(short(text, _MOST_LETTERS)))


def escaped(text: str) -> str:
    """For LaTeX, in one pass: what an escape brings in is not escaped again."""
    return "".join(_ESCAPES.get(mark, mark) for mark in " ".join(text.split()))


def _latex_number(cell: Cell) -> str:
    """A number in LaTeX. The mean of the best is bold, its error is not."""
    mean, sign, error = cell.text.partition(" ± ")
    bold = f"\\textbf{{{escaped(mean)}}}" if cell.best else escaped(mean)
    return f"{bold} $\\pm$ {escaped(error)}" if sign else bold
