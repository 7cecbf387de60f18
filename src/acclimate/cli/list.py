"""`list`: what there is to choose from."""

from enum import StrEnum
from importlib import import_module
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.output import Json, say, say_json, say_table


class Catalogue(StrEnum):
    algorithms = "algorithms"
    embeddings = "embeddings"
    methods = "methods"
    backbones = "backbones"
    presets = "presets"
    ablations = "ablations"


@app.command("list", epilog="Example: acclimate list algorithms")
def list_(
    what: Annotated[Catalogue, typer.Argument(help="Which table to show.")], json: Json = False
) -> None:
    """Show the algorithms, embeddings, adaptation methods, backbones, presets or ablations."""
    rows = entries(what)
    if json:
        say_json({what.value: rows})
        return
    keys = list(rows[0])
    say_table(keys, [[str(row[key]) for key in keys] for row in rows])
    if what is Catalogue.methods:
        say("\nMethods follow each other when joined by +, e.g. embedding+prior.")
    if what is Catalogue.backbones:
        say("\nEvery timm model name is a backbone too, e.g. resnet50 or convnext_tiny.")


_TABLES = {  # of rows that say what they are about
    Catalogue.embeddings: "acclimate.learn.embeddings:EMBEDDINGS",
    Catalogue.methods: "acclimate.adapt.methods:METHODS",
    Catalogue.presets: "acclimate.config.presets:PRESETS",
    Catalogue.ablations: "acclimate.sweep.ablations.table:ABLATIONS",
}


def entries(what: Catalogue) -> list[dict[str, str]]:
    if what is Catalogue.algorithms:
        from acclimate.learn.algorithms import choose, names

        return [{"name": name, "about": choose(name).about} for name in names()]
    if what is Catalogue.backbones:
        from acclimate.learn.models import list_backbones

        return list_backbones()
    module, _, table = _TABLES[what].partition(":")
    rows = getattr(import_module(module), table)
    return [{"name": name, "about": row.about} for name, row in rows.items()]
