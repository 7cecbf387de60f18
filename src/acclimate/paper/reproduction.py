"""The page of a recipe: what the paper printed beside what was measured, and its figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from acclimate.core.files import write_text
from acclimate.core.text import DASH
from acclimate.data.manifest import Manifest
from acclimate.paper.beside import Pair
from acclimate.paper.figures import contact_sheet
from acclimate.paper.published import SOURCE, Published, plain
from acclimate.report.figures import label_shares
from acclimate.report.figures.canvas import Illustration
from acclimate.report.grid import Cell, Grid, accuracy
from acclimate.report.page import environment
from acclimate.results.statistics import Estimate
from acclimate.results.sweep_folder import LabelCounts

# How data name the country that the paper's Figure 2A lays over the others.
USA = {"us", "usa", "unitedstates", "unitedstatesofamerica"}


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    title: str
    about: str
    notes: Sequence[str] = ()
    pairs: Sequence[Pair] = ()
    figures: Sequence[Illustration] = ()
    pages: Sequence[tuple[str, str]] = field(default=())  # (name, address) of each part's own page


def beside_grids(pairs: Sequence[Pair]) -> dict[str, Grid]:
    """A grid for each block of the table; "" where it has one block."""
    blocks = dict.fromkeys(pair.block for pair in pairs)
    return {name: _grid([pair for pair in pairs if pair.block == name]) for name in blocks}


def _grid(pairs: Sequence[Pair]) -> Grid:
    """Two rows for each of the table's: ours, then as printed."""
    columns = list(dict.fromkeys(pair.column for pair in pairs))
    if all(name.split()[0].isdigit() for name in columns):  # not every row has every number
        columns.sort(key=lambda name: int(name.split()[0]))
    cells = {(pair.row, pair.column): pair for pair in pairs}
    lines: list[tuple[Cell, ...]] = []
    for row in dict.fromkeys(pair.row for pair in pairs):
        own = [cells.get((row, column)) for column in columns]
        lines.append((Cell(row), *(accuracy(pair.ours if pair else None) for pair in own)))
        printed = [pair.printed if pair else None for pair in own]
        if any(printed):
            remarks = dict.fromkeys(one.note for one in printed if one and one.note)
            name = Cell(row, badge="published", remark="; ".join([SOURCE, *remarks]))
            lines.append((name, *map(_printed, printed)))
    return Grid(("Row", *columns), tuple(lines))


def _printed(one: Published | None) -> Cell:
    if one is None:
        return Cell(DASH)
    return accuracy(Estimate(one.mean / 100, None if one.se is None else one.se / 100, 1))


def looked_at(figure_name: str, name: str, manifest: Manifest) -> Iterator[Illustration]:
    """A figure of the data alone: `labels` or `samples`."""
    if figure_name == "labels":
        over = next((one for one in manifest.domains if plain(one) in USA), "")
        drawing = label_shares.draw(LabelCounts.of(name, manifest), over)
        if drawing is not None:
            caption = (
                f"Share of each class in domains of {name}, over those of {over or 'all domains'}."
            )
            yield Illustration(label_shares.HEADING, caption, drawing, "labels")
    else:
        sheet = contact_sheet.contact_sheet(manifest)
        caption = f"Images of {name}, one at random for each class (row) and domain (column)."
        yield Illustration("Samples", caption, contact_sheet.draw(sheet), "samples")


def write_reproduction(found: Reproduction, out: Path) -> Path:
    """Write the page to the file `out`; its path. The same runs give the same bytes."""
    grids = beside_grids(found.pairs)
    template = files("acclimate.paper").joinpath("templates/reproduction.html").read_text("utf-8")
    page = environment().from_string(template)
    write_text(out, page.render(title=found.title, found=found, grids=grids))
    return out
