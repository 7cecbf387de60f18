"""`forget`."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import app
from acclimate.cli.options import Json, Run
from acclimate.cli.output import say_facts
from acclimate.core.errors import UnknownName, UnknownSite
from acclimate.core.exports import require


@app.command(epilog="Example: acclimate forget runs/sites north --data sites --states states/")
def forget(
    run: Run,
    site: Annotated[str, typer.Argument(help="Its name, as in the data and of its files.")],
    data: Annotated[
        Path | None,
        typer.Option(help="The data with its images, which say what of the caches is theirs."),
    ] = None,
    states: Annotated[
        list[Path] | None, typer.Option(help="A folder with its state. [default: beside the run]")
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="Of `acclimate serve`. [default: RUN.sites.sqlite]")
    ] = None,
    json: Json = False,
) -> None:
    """Remove what is kept of a site: features, decoded images, its state, labels and logs.

    Of a site that was trained on, the weights keep what they learned: how to train anew without it
    is said. Images, exported files and tables of predictions are yours to delete.
    """
    from acclimate.data.manifest import Manifest
    from acclimate.runs.forgetting import erase_images, files_of, what_stays

    manifest = None if data is None else Manifest.open(data)
    stays = what_stays(run, site)
    own, others = files_of(run, site, states or ())
    in_data = manifest is not None and site in manifest.domains
    stored = _delete_stored(run, site, database)
    if not (own or stays or stored or in_data):
        where = ["its data", "a folder of states", "the server's database"]
        raise UnknownName(f"nothing of a site '{site}' is known here; name {', '.join(where)}")
    facts: dict[str, Any] = {"forgotten": site}
    if manifest is not None and in_data:
        facts |= asdict(erase_images(run, manifest, site))
    for path in own:
        path.unlink()
    notes = [*stays, *(f"{path} is of another model, and stays" for path in others)]
    if not in_data:
        notes.append("features and decoded images in the caches stay: name its data with --data")
    facts |= {"removed": [str(path) for path in own], "database": stored, "notes": notes}
    say_facts(facts, json=json)


def _delete_stored(run: Path, site: str, database: str | None) -> bool:
    """Delete a site from the database of the server; whether it had one."""
    path = run.with_name(f"{run.name}.sites.sqlite")
    if database is None and not path.exists():
        return False
    require("sqlalchemy", extra="serve", purpose="to delete a site from the server's database")
    from acclimate.serve.store import Store

    with closing(Store(database or f"sqlite:///{path}")) as store:
        try:
            store.delete(site)
        except UnknownSite:
            return False
    return True
