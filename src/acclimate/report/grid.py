"""The one model of a table: a `Grid` of `Cell`s, as text and as Markdown.

`tables` fills grids from results; `markup` and `latex` draw the same grids as HTML and LaTeX.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from acclimate.core.wording import DASH, percent
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

    def without(self, *names: str) -> "Grid":
        kept = [place for place, name in enumerate(self.header) if name not in names]
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return replace(self, header=tuple(self.header[place] for place in kept), rows=rows)

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """As a terminal shows it, the header first."""
        return [self.header, *(tuple(cell.marked for cell in row) for row in self.rows)]

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
        ruler = "|" + "|".join(["---", *["---:"] * (len(self.header) - 1)]) + "|"
        lines: list[Iterable[str]] = [map(markdown, self.header)]
        for row in self.rows:
            texts = ((markdown(cell.marked), cell.best) for cell in row)
            lines.append(f"**{text}**" if best else text for text, best in texts)
        first, *body = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([first, ruler, *body]) + "\n"

    def starred(self) -> "Grid":
        """A terminal has no bold that survives a file: a star, and room for one."""
        if not any(cell.best for row in self.rows for cell in row):
            return self
        rows = tuple(
            (first, *(replace(cell, text=cell.text + ("*" if cell.best else " ")) for cell in rest))
            for first, *rest in self.rows
        )
        header = (self.header[0], *(f"{name} " for name in self.header[1:]))
        return replace(self, header=header, rows=rows)


def markdown(text: str) -> str:
    """Escaped, so that names of domains stay what they are."""
    for mark in "\\|*_`[]":
        text = text.replace(mark, "\\" + mark)
    return text.replace("<", "&lt;").replace("\n", " ")
