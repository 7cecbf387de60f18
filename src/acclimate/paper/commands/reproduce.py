"""`reproduce`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import LAUNCH, DryRun, Json, RetryFailed, grouped, names
from acclimate.cli.output import say, say_facts, say_json, say_table
from acclimate.paper.commands.studies import RunSettings, run_study
from acclimate.sweep.settings import LaunchOptions

if TYPE_CHECKING:
    from acclimate.paper.recipes.plan import PreparedPart, RecipeRequest
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
    settings: RunSettings = None,
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
    from acclimate.paper.recipes.plan import RecipeRequest, prepare_recipe
    from acclimate.sweep.launchers import chosen_launcher

    if name is None:
        _list(json=json)
        return
    request = RecipeRequest(
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
    parts = prepare_recipe(request)
    if dry_run:
        _announce(parts, json=json)
    else:
        _run_and_show(request, parts, launcher, retry_failed=retry_failed, json=json)


def _list(*, json: bool) -> None:
    from acclimate.paper.recipes.data_sets import DATA_SETS
    from acclimate.paper.recipes.table import RECIPES

    rows = []
    for name, recipe in RECIPES.items():
        needs = dict.fromkeys(one for part in recipe.parts for one in part.data)
        rows.append({"name": name, "needs": ", ".join(needs), "about": recipe.about})
    if json:
        commands = {name: row.made_by for name, row in DATA_SETS.items()}
        say_json({"recipes": rows, "data": commands})
        return
    say_table(list(rows[0]), [list(row.values()) for row in rows])
    say("\nData are looked for in --data ROOT, as NAME.parquet or a folder NAME:")
    say_table(("data", "made by"), [(name, row.made_by) for name, row in DATA_SETS.items()])


def _announce(parts: "list[PreparedPart]", *, json: bool) -> None:
    from acclimate.cli.sweep import announcement

    facts = {
        one.part.name: announcement(one.folder, one.plan) for one in parts if one.plan is not None
    }
    if json:
        say_json({"parts": facts})
        return
    for name, values in facts.items():
        say(f"{name}:")
        say_facts(values)
    if not facts:
        say("nothing to run: the data are only looked at")


def _run_and_show(
    request: "RecipeRequest",
    parts: "list[PreparedPart]",
    launch: "Launch",
    *,
    retry_failed: bool,
    json: bool,
) -> None:
    from acclimate.paper.recipes.table import find_recipe
    from acclimate.paper.reproduction import add_data, add_runs, begin, write_reproduction

    recipe = find_recipe(request.name)
    page = begin(recipe, small=request.small)
    for part in parts:
        if part.plan is None:
            add_data(page, part, recipe.figures)
        else:
            tally = run_study(part.folder, part.plan, launch, retry_failed=retry_failed)
            add_runs(page, part, recipe.figures, tally)
    written = write_reproduction(page, recipe, request.out)
    _show(page, written, json=json)
    if page.left:
        raise typer.Exit(1)


def _show(page: "Reproduction", written: list[Path], *, json: bool) -> None:
    from acclimate.paper.reproduction import beside_grids

    if json:
        facts = {"runs": page.runs, "left": page.left, "notes": page.notes}
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
