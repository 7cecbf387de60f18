"""`list`: what there is to choose from."""

from typing import Annotated, Literal

import typer

from acclimate.cli import app
from acclimate.cli.options import Json
from acclimate.cli.output import say, say_json, say_table
from acclimate.cli.paper import ABLATIONS
from acclimate.core.exports import load

Catalogue = Literal[
    "algorithms", "embeddings", "methods", "backbones", "metrics", "presets", "ablations"
]
TABLES = {  # of rows that say what they are about
    "embeddings": "acclimate.learn.embeddings:EMBEDDINGS",
    "methods": "acclimate.adapt.methods:METHODS",
    "presets": "acclimate.config.settings:PRESETS",
    "ablations": ABLATIONS,
}
HINTS = {
    "methods": "\nMethods follow each other when joined by +, e.g. embedding+prior.",
    "metrics": "\n--metric takes those that say which end is better.",
    "backbones": "\nEvery timm model name is a backbone too, e.g. resnet50 or convnext_tiny.",
}


@app.command("list", epilog="Example: acclimate list algorithms")
def list_(
    what: Annotated[Catalogue, typer.Argument(help="Which table to show.")], json: Json = False
) -> None:
    """Show the algorithms, embeddings, adaptation methods, backbones, metrics, presets or
    ablations."""
    rows = entries(what)
    if json:
        say_json({what: rows})
        return
    say_table(list(rows[0]), [list(row.values()) for row in rows])
    if what in HINTS:
        say(HINTS[what])


def entries(what: Catalogue) -> list[dict[str, str]]:
    """The rows of a table, by name."""
    if what == "backbones":
        from acclimate.learn.models import list_backbones

        return list_backbones()
    if what == "algorithms":
        from acclimate.learn.algorithms import choose, names

        return [{"name": name, "about": choose(name).about} for name in names()]
    if what == "metrics":
        from acclimate.records.metrics import METRICS

        return [
            {"name": name, "better": row.better if row.in_scores else "", "about": row.about}
            for name, row in METRICS.items()
        ]
    return [{"name": name, "about": row.about} for name, row in load(TABLES[what]).items()]
