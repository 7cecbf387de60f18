"""Small pieces of HTML: tables that sort, figures, sections. All text is escaped here."""

import re
from collections.abc import Iterable
from html import escape

from acclimate.report.figures.canvas import Illustration, svg
from acclimate.report.grid import Cell, Grid


def section(heading: str, body: str) -> str:
    name = slug(heading)
    return f'<section id="{name}"><h2>{escape(heading)}</h2>\n{body}</section>'


def slug(heading: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in heading.lower())


def prose(text: str) -> str:
    """A sentence, with what it has between backticks as code; a number keeps its % in its line."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", re.sub(r"(?<=\d) %", "\u00a0%", escape(text)))


def paragraph(text: str, kind: str = "note") -> str:
    return f'<p class="{kind}">{prose(text)}</p>'


def bullets(texts: Iterable[str], kind: str = "") -> str:
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    attribute = f' class="{kind}"' if kind else ""
    return f"<ul{attribute}>{items}</ul>" if items else ""


def folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{body}</details>"


def table(caption: str, grid: Grid) -> str:
    """Columns of words sort by their text and start with A, others by value, largest first."""
    words = [place == 0 or name in grid.words for place, name in enumerate(grid.header)]
    head = "".join(map(_head, grid.header, words))
    body = "\n".join(_row(row, words) for row in grid.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption><span>{escape(caption)}. Choose a heading to sort.</span></caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _head(name: str, words: bool) -> str:
    kind = ' class="text"' if words else ""
    button = f'<button type="button">{escape(name)}</button>'
    return f'<th scope="col"{kind} aria-sort="none">{button}</th>'


def _row(row: Iterable[Cell], words: Iterable[bool]) -> str:
    (name, *cells), (_, *kinds) = row, words
    kind = f' class="{name.badge}"' if name.badge else ""
    remark = f' title="{escape(name.remark)}"' if name.remark else ""
    badge = f' <span class="badge"{remark}>{name.badge}</span>' if name.badge else ""
    rest = "".join(map(_cell, cells, kinds))
    return f'<tr{kind}><th scope="row">{escape(name.text)}{badge}</th>{rest}</tr>'


def _cell(cell: Cell, words: bool) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    kind = ' class="wide"' if cell.long else ' class="text"' if words else ""
    text = escape(cell.text)
    return f"<td{kind}{value}>{f'<strong>{text}</strong>' if cell.best else text}</td>"


def figure(found: Illustration) -> str:
    label = escape(found.heading)
    image = svg(found.drawing, found.name).replace(
        "<svg", f'<svg role="img" aria-label="{label}"', 1
    )
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{label}">{image}'
        f"</div>\n<figcaption>{escape(found.caption)}</figcaption></figure>"
    )
