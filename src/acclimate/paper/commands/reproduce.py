"""`reproduce`."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import LAUNCH, DryRun, Json, RetryFailed, grouped, names
from acclimate.cli.output import say, say_facts, say_json, say_table
from acclimate.sweep.settings import LaunchOptions

if TYPE_CHECKING:
    from acclimate.paper.beside import Measured, Pair
    from acclimate.paper.recipes.plan import Ready, Wanted
    from acclimate.paper.reproduction import Reproduction
    from acclimate.sweep.launchers import Launch


@app.command(epilog="Example: acclimate reproduce table-2 --small --out reproduced/table-2")
@grouped(launch=LAUNCH)
def reproduce(
    *,
    name: Annotated[
        str | None, typer.Argument(help="A table or figure. [default: list them]")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="ROOT, the folder that holds the data.")] = None,
    small: Annotated[
        bool, typer.Option("--small", help="The same in minutes, on stand-ins made of digits.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="[default: reproduced/NAME]")] = None,
    algorithms: Annotated[
        list[str] | None, typer.Option(help="Only these of the recipe's; commas or repeat.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="[default: the recipe's]")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="[default: the recipe's]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first trial.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run."),
    ] = None,
    launch: dict[str, Any],
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make one of the paper's tables or figures again, and put it beside what was printed.

    Checks that the data are there, says how many runs it takes, and runs sweeps with the paper's
    settings. Repeating the command resumes it.
    """
    from acclimate.config import parse_assignments
    from acclimate.paper.recipes.plan import Wanted, ready
    from acclimate.sweep.launchers import chosen_launcher

    if name is None:
        _list(json=json)
        return
    wanted = Wanted(
        name=name,
        out=out or Path("reproduced") / name,
        root=data,
        small=small,
        algorithms=names(algorithms),
        trials=trials,
        draws=draws,
        seed=seed,
        settings=parse_assignments(settings or []),
    )
    launcher = chosen_launcher(LaunchOptions(**launch))
    parts = ready(wanted)
    if dry_run:
        _announce(parts, json=json)
    else:
        _run_and_show(wanted, parts, launcher, retry_failed=retry_failed, json=json)


def _list(*, json: bool) -> None:
    from acclimate.paper.recipes.data_sets import DATA_SETS
    from acclimate.paper.recipes.table import RECIPES

    rows = []
    for name, recipe in RECIPES.items():
        needs = dict.fromkeys(one for part in recipe.parts for one in part.data)
        rows.append({"name": name, "needs": ", ".join(needs), "about": recipe.about})
    if json:
        made = {name: row.made_by for name, row in DATA_SETS.items()}
        say_json({"recipes": rows, "data": made})
        return
    say_table(list(rows[0]), [list(row.values()) for row in rows])
    say("\nData are looked for in --data ROOT, as NAME.parquet or a folder NAME:")
    say_table(("data", "made by"), [(name, row.made_by) for name, row in DATA_SETS.items()])


def _announce(parts: "list[Ready]", *, json: bool) -> None:
    from acclimate.cli.sweep import announcement

    told = {
        one.part.name: announcement(one.folder, one.plan) for one in parts if one.plan is not None
    }
    if json:
        say_json({"parts": told})
        return
    for name, facts in told.items():
        say(f"{name}:")
        say_facts(facts)
    if not told:
        say("nothing to run: the data are only looked at")


@dataclass
class _Found:
    """What the parts gave, gathered for the page."""

    measured: "list[Measured]" = field(default_factory=list)
    figures: list[Any] = field(default_factory=list)
    pages: list[Path] = field(default_factory=list)
    runs: int = 0
    left: int = 0


def _run_and_show(
    wanted: "Wanted", parts: "list[Ready]", launch: "Launch", *, retry_failed: bool, json: bool
) -> None:
    from acclimate.paper.beside import beside
    from acclimate.paper.recipes.table import find_recipe
    from acclimate.paper.reproduction import write_reproduction
    from acclimate.report.figures.canvas import write_figure

    recipe, found = find_recipe(wanted.name), _Found()
    for one in parts:
        if one.plan is None:
            _look(one, recipe.figures, found)
        else:
            _run(one, launch, found, retry_failed=retry_failed)
            _read(one, recipe.figures, found)
    pairs = beside(recipe.published, found.measured) if recipe.published else []
    page = _page(wanted, pairs, found)
    written = [write_reproduction(page, wanted.out / "report.html")]
    for figure in page.figures:
        for kind in ("png", "pdf"):
            written.append(wanted.out / f"{figure.name}.{kind}")
            write_figure(figure.drawing, written[-1], kind)
    _show(page, found, written, json=json)
    if found.left:
        raise typer.Exit(1)


def _run(one: "Ready", launch: "Launch", found: _Found, *, retry_failed: bool) -> None:
    from acclimate.cli.sweep import run_announced
    from acclimate.paper.ablations.study import write_data
    from acclimate.sweep.driver import claim

    assert one.plan is not None
    with claim(one.folder, one.plan.sweep):  # before anything is written into another's folder
        write_data(one.plan, one.folder)
    tally = run_announced(one.folder, one.plan, launch, retry_failed=retry_failed)
    found.runs += tally.jobs
    found.left += tally.jobs - tally.done


def _read(one: "Ready", figures: tuple[str, ...], found: _Found) -> None:
    """Scores, figures and the page of a part that has run."""
    from acclimate.paper.beside import Measured
    from acclimate.paper.figures import FIGURES
    from acclimate.report.figures import illustrations
    from acclimate.report.page import write_page
    from acclimate.results.comparison import observations
    from acclimate.results.load import load_report

    report = load_report(one.folder)
    for role in ("train", "val", "test"):
        scores = observations(report.finished, role)
        for ours, printed in one.printed_as.items():
            mine = [score for score in scores if score.dataset == ours]
            found.measured.append(Measured(printed, role, mine))
    found.figures += illustrations(report, {name: FIGURES[name] for name in figures})
    found.pages.append(write_page(report, one.folder / "report.html", figures=FIGURES))


def _look(one: "Ready", figures: tuple[str, ...], found: _Found) -> None:
    """Figures of data that nothing is trained on."""
    from acclimate.paper.reproduction import looked_at

    for ours, manifest in one.manifests.items():
        for figure in figures:
            found.figures += looked_at(figure, ours, manifest)


def _page(wanted: "Wanted", pairs: "list[Pair]", found: _Found) -> "Reproduction":
    from acclimate.paper.recipes.table import find_recipe
    from acclimate.paper.reproduction import Reproduction

    recipe, notes = find_recipe(wanted.name), []
    if wanted.small:
        notes.append(
            "Made with --small: stand-ins made of digits, and short runs. They show that the "
            "recipe works; the paper's numbers are of other data and cannot be compared with them."
        )
    if not recipe.published:
        notes.append("The paper prints this without numbers, so that none stand beside ours.")
    if found.left:
        notes.append(f"{found.left} of {found.runs} runs are not done; see the pages below.")
    pages = [(path.parent.name, path.relative_to(wanted.out).as_posix()) for path in found.pages]
    return Reproduction(
        title=f"{recipe.paper}, made again",
        about=f"{recipe.about[0].upper()}{recipe.about[1:]}.",
        notes=notes,
        pairs=pairs,
        figures=found.figures,
        pages=pages,
    )


def _show(page: "Reproduction", found: _Found, written: list[Path], *, json: bool) -> None:
    from acclimate.paper.reproduction import beside_grids

    if json:
        facts = {"runs": found.runs, "left": found.left, "notes": list(page.notes)}
        pairs = [asdict(pair) for pair in page.pairs]
        pages = {"report": str(written[0]), "written": [str(path) for path in written[1:]]}
        say_json({"title": page.title, **facts, "beside": pairs, **pages})
        return
    for block, grid in beside_grids(page.pairs).items():
        say("\n".join(filter(None, (block, grid.to_text()))))
    for note in page.notes:
        say(f"note: {note}")
    for kind, path in zip(["report", *["figure"] * len(written)], written, strict=False):
        say(f"{kind}: {path}")
