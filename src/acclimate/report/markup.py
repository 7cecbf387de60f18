"""Small pieces of HTML: tables that sort, figures, sections. All text is escaped here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from acclimate.report import canvas, tables
from acclimate.report.figures import Illustration
from acclimate.results.runs import Key


@dataclass(frozen=True)
class Column:
    """`words` columns sort by their text and start with A, the others by value, largest first."""

    name: str
    words: bool = False


@dataclass(frozen=True)
class Entry:
    text: str
    value: float | None = None  # `None` is missing, and last in any order
    best: bool = False
    long: bool = False  # may run over several lines


@dataclass(frozen=True)
class Line:
    name: str
    entries: Sequence[Entry]
    kind: str = ""  # "control", "ceiling" or "published": a badge and a paler row
    remark: str = ""


def section(heading: str, body: str) -> str:
    name = slug(heading)
    return f'<section id="{name}"><h2>{escape(heading)}</h2>\n{body}</section>'


def slug(heading: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in heading.lower())


def paragraph(text: str, kind: str = "note") -> str:
    return f'<p class="{kind}">{escape(text)}</p>'


def bullets(texts: Iterable[str], kind: str = "") -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    attribute = f' class="{kind}"' if kind else ""
    return f"<ul{attribute}>{items}</ul>" if items else ""


def folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{body}</details>"


def table(caption: str, columns: Sequence[Column], lines: Sequence[Line]) -> str:
    head = "".join(map(_head, columns))
    body = "\n".join(_row(columns, line) for line in lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption><span>{escape(caption)}. Choose a heading to sort.</span></caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _head(column: Column) -> str:
    kind = ' class="text"' if column.words else ""
    button = f'<button type="button">{escape(column.name)}</button>'
    return f'<th scope="col"{kind} aria-sort="none">{button}</th>'


def _row(columns: Sequence[Column], line: Line) -> str:
    kind = f' class="{line.kind}"' if line.kind else ""
    remark = f' title="{escape(line.remark)}"' if line.remark else ""
    badge = f' <span class="badge"{remark}>{line.kind}</span>' if line.kind else ""
    cells = "".join(map(_cell, columns[1:], line.entries))
    return f'<tr{kind}><th scope="row">{escape(line.name)}{badge}</th>{cells}</tr>'


def _cell(column: Column, entry: Entry) -> str:
    value = "" if entry.value is None else f' data-value="{entry.value!r}"'
    kind = ' class="wide"' if entry.long else ' class="text"' if column.words else ""
    text = escape(entry.text)
    return f"<td{kind}{value}>{f'<strong>{text}</strong>' if entry.best else text}</td>"


def grid_table(grid: tables.Grid, caption: str) -> str:
    columns = [Column(name, words=i == 0) for i, name in enumerate(grid.header)]
    lines = [
        Line(
            row[0].text if key is None else key.label,
            [Entry(cell.text, cell.value) for cell in row[1:]],
            kind_of(key),
        )
        for key, row in zip(grid.keys, grid.rows, strict=True)
    ]
    return table(caption, columns, lines)


def kind_of(key: Key | None) -> str:
    return "" if key is None or key.kind == "method" else key.kind


def figure(found: Illustration) -> str:
    label = escape(found.heading)
    image = canvas.svg(found.drawing, found.name).replace(
        "<svg", f'<svg role="img" aria-label="{label}"', 1
    )
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{label}">{image}'
        f"</div>\n<figcaption>{escape(found.caption)}</figcaption></figure>"
    )
