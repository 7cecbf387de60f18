"""The page of a recipe: what the paper printed beside what was measured, and its figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from acclimate.core.files import write_text
from acclimate.core.grid import Cell, Grid
from acclimate.core.text import DASH
from acclimate.data.manifest import Manifest
from acclimate.paper.beside import Measured, Pair, beside
from acclimate.paper.figures import FIGURES, contact_sheet
from acclimate.paper.published import SOURCE, Published, plain
from acclimate.paper.recipes.plan import PreparedPart
from acclimate.paper.recipes.table import Recipe
from acclimate.records.folder import check_out
from acclimate.report.figures import illustrations, label_shares
from acclimate.report.figures.canvas import Format, Illustration, write_figure
from acclimate.report.page import environment, write_page
from acclimate.results.comparison import observations
from acclimate.results.load import load_report
from acclimate.results.statistics import Estimate, accuracy
from acclimate.results.sweep_folder import LabelCounts
from acclimate.sweep.driver import Tally

# How data name the country that the paper's Figure 2A lays over the others.
USA = {"us", "usa", "unitedstates", "unitedstatesofamerica"}


@dataclass(kw_only=True)
class Reproduction:
    """The page of a recipe: what its parts gave, gathered one by one."""

    title: str
    about: str
    notes: list[str]
    measured: list[Measured] = field(default_factory=list)
    figures: list[Illustration] = field(default_factory=list)
    pages: list[Path] = field(default_factory=list)  # each part's own
    pairs: Sequence[Pair] = ()  # of printed numbers and ours
    runs: int = 0
    left: int = 0  # of the runs, that are not done


def begin(recipe: Recipe, *, small: bool) -> Reproduction:
    """The page before any part of the recipe has run."""
    notes = []
    if small:
        notes.append(
            "Made with --small: stand-ins made of digits, and short runs. They show that the "
            "recipe works; the paper's numbers are of other data and cannot be compared with them."
        )
    if not recipe.published:
        notes.append("The paper prints this without numbers, so that none stand beside ours.")
    about = f"{recipe.about[0].upper()}{recipe.about[1:]}."
    return Reproduction(title=f"{recipe.paper}, made again", about=about, notes=notes)


def add_runs(page: Reproduction, part: PreparedPart, figures: Sequence[str], tally: Tally) -> None:
    """Scores, figures and the page of a part that has run."""
    page.runs += tally.jobs
    page.left += tally.jobs - tally.done
    report = load_report(part.folder)
    for role in ("train", "val", "test"):
        scores = observations(report.finished, role)
        for name, printed in part.printed_as.items():
            of_data = [score for score in scores if score.dataset == name]
            page.measured.append(Measured(printed, role, of_data))
    page.figures += illustrations(report, {name: FIGURES[name] for name in figures})
    page.pages.append(write_page(report, part.folder / "report.html", figures=FIGURES))


def add_data(page: Reproduction, part: PreparedPart, figures: Sequence[str]) -> None:
    """Figures of data that nothing is trained on: `labels` or `samples`."""
    for name, manifest in part.manifests.items():
        for figure in figures:
            page.figures += figures_of_data(figure, name, manifest)


def beside_grids(pairs: Sequence[Pair]) -> dict[str, Grid]:
    """A grid for each block of the table; "" where it has one block."""
    blocks = dict.fromkeys(pair.block for pair in pairs)
    return {name: _grid([pair for pair in pairs if pair.block == name]) for name in blocks}


def _grid(pairs: Sequence[Pair]) -> Grid:
    """Two rows for each of the table's: ours, then as printed, as far as there are any."""
    columns = list(dict.fromkeys(pair.column for pair in pairs))
    rows = list(dict.fromkeys(pair.row for pair in pairs))
    if all(map(str.isdigit, rows)):  # ours are among the printed ones
        rows.sort(key=int)
    cells = {(pair.row, pair.column): pair for pair in pairs}
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        of_row = [cells.get((row, column)) for column in columns]
        if any(pair and pair.ours for pair in of_row):
            lines.append((Cell(row), *(accuracy(pair.ours if pair else None) for pair in of_row)))
        printed = [pair.printed if pair else None for pair in of_row]
        if any(printed):
            remarks = dict.fromkeys(one.note for one in printed if one and one.note)
            name = Cell(row, badge="published", remark="; ".join([SOURCE, *remarks]))
            lines.append((name, *map(_printed, printed)))
    return Grid(("Row", *columns), tuple(lines))


def _printed(one: Published | None) -> Cell:
    if one is None:
        return Cell(DASH)
    return accuracy(Estimate(one.mean / 100, None if one.se is None else one.se / 100, 1))


def figures_of_data(figure: str, name: str, manifest: Manifest) -> Iterator[Illustration]:
    if figure == "labels":
        over = next((one for one in manifest.domains if plain(one) in USA), "")
        drawing = label_shares.draw(LabelCounts.of(name, manifest), over)
        if drawing is not None:
            caption = (
                f"Share of each class in domains of {name}, over those of {over or 'all domains'}; "
                "in parentheses the most frequent class."
            )
            yield Illustration(label_shares.HEADING, caption, drawing, "labels")
    else:
        sheet = contact_sheet.contact_sheet(manifest)
        caption = f"Images of {name}, one at random for each class (row) and domain (column)."
        yield Illustration("Samples", caption, contact_sheet.draw(sheet), "samples")


def write_reproduction(page: Reproduction, recipe: Recipe, out: Path) -> list[Path]:
    """Write the page and its figures to the folder `out`. The same runs give the same bytes."""
    page.pairs = beside(recipe.published, page.measured) if recipe.published else []
    if page.left:
        page.notes.append(f"{page.left} of {page.runs} runs are not done; see the pages below.")
    addresses = [(path.parent.name, path.relative_to(out).as_posix()) for path in page.pages]
    template = files("acclimate.paper").joinpath("templates/reproduction.html").read_text("utf-8")
    html = environment().from_string(template)
    paths = [out / "report.html"]
    grids = beside_grids(page.pairs)
    text = html.render(title=page.title, page=page, grids=grids, addresses=addresses)
    check_out(paths[0], "page")
    write_text(paths[0], text)
    kinds: tuple[Format, ...] = ("png", "pdf")
    for figure in page.figures:
        for kind in kinds:
            paths.append(out / f"{figure.name}.{kind}")
            write_figure(figure.drawing, paths[-1], kind)
    return paths
