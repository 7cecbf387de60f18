"""A page about one's own data: sections of figures, tables, thumbnails and lines, in one HTML file.

`data_page` and `answer_pages` fill the sections, templates/view.html shows them. Whatever the data,
a page stays below 5 MB: it has at most 340 thumbnails of `MOST_BYTES`, tables have their first
rows, and names are cut. Names come from strangers: the templates escape all text.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from acclimate.core.errors import ImageError
from acclimate.core.files import write_text
from acclimate.core.grid import Cell, Grid
from acclimate.core.text import short
from acclimate.records.folder import check_out
from acclimate.report.figures.canvas import Illustration
from acclimate.report.page import environment, slug

MOST_BYTES = 8_000  # of a picture
MOST_ROWS, MOST_LINES = 200, 50
MOST_SENTENCE, MOST_LETTERS, MOST_CAPTION = 500, 90, 50
_SIDE = 128  # pixels; a page shows them a little smaller


@dataclass(frozen=True)
class Picture:
    source: str | Path | bytes
    name: str  # for those who cannot see it
    caption: str = ""
    note: str = ""
    data: str = ""  # a JPEG as an address; nothing where the source cannot be read


@dataclass(frozen=True)
class Gallery:
    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Section:
    """What a heading stands above, in the order in which it is shown. Sections without any of it
    are left out. Tables go by their captions; galleries under one title stand side by side."""

    heading: str
    text: Sequence[str] = ()
    figures: Sequence[Illustration] = ()
    tables: Mapping[str, Grid] = field(default_factory=dict)
    galleries: Mapping[str, Sequence[Gallery]] = field(default_factory=dict)
    lines: Sequence[str] = ()

    @property
    def shown(self) -> bool:
        return bool(self.figures or self.tables or self.galleries or self.lines)


def write_view(
    out: Path, title: str, lead: str, notes: Sequence[str], sections: Iterable[Section]
) -> Path:
    """Write a page to the file `out`; its path. The same data give the same bytes."""
    check_out(out, "page")
    values = {
        "title": short(title, MOST_LETTERS),
        "lead": short(lead, MOST_SENTENCE),
        "notes": _cut_lines(notes),
        "parts": [_ready(section) for section in sections if section.shown],
        "MOST_LETTERS": MOST_LETTERS,
        "MOST_LINES": MOST_LINES,
    }
    write_text(out, environment().get_template("view.html").render(values))
    return out


def _ready(section: Section) -> Section:
    """With the thumbnails made, and everything as short as a page needs it."""
    with ThreadPoolExecutor() as pool:
        galleries = {
            title: [
                Gallery(short(one.title, MOST_LETTERS), list(pool.map(_drawn, one.pictures)))
                for one in own
            ]
            for title, own in section.galleries.items()
        }
    tables = {caption: _cut(grid) for caption, grid in section.tables.items()}
    figures = [
        replace(one, name=f"{slug(section.heading)}-{number}")
        for number, one in enumerate(section.figures, 1)
    ]
    text, lines = _cut_lines(section.text), _cut_lines(section.lines)
    return Section(section.heading, text, figures, tables, galleries, lines)


def _cut_lines(lines: Sequence[str]) -> list[str]:
    return [short(line, MOST_SENTENCE) for line in lines]


def _cut(grid: Grid) -> Grid:
    rows = (
        tuple(replace(cell, text=short(cell.text, MOST_LETTERS)) for cell in row)
        for row in grid.rows[:MOST_ROWS]
    )
    more = len(grid.rows) - MOST_ROWS
    header = tuple(short(name, MOST_LETTERS) for name in grid.header)
    blank = (Cell(""),) * (len(grid.header) - 1)
    rest = ((Cell(f"and {more} more"), *blank),) if more > 0 else ()
    return replace(grid, header=header, rows=(*rows, *rest))


def _drawn(picture: Picture) -> Picture:
    words = {name: short(getattr(picture, name), MOST_CAPTION) for name in ("caption", "note")}
    name = picture.name
    if len(name) > MOST_LETTERS:  # the end of a path tells more than its beginning
        name = "…" + name[1 - MOST_LETTERS :]
    return replace(picture, data=thumbnail(picture.source), name=name, **words)


def thumbnail(source: str | Path | bytes) -> str:
    """An image as the address of a small JPEG, which holds it; nothing for what cannot be read."""
    from acclimate.data.images import decode

    try:
        image = decode(source, hint=_SIDE)
    except ImageError:
        return ""
    image.thumbnail((_SIDE, _SIDE))
    image.info.clear()  # a comment of the camera's would be written, however long
    for quality in (75, 50, 25, 5):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality, optimize=True)
        if file.tell() <= MOST_BYTES:
            break
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
