"""`list`: what there is to choose from."""

from typing import Annotated, Any, Literal

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
    "backbones": "\nEvery timm model name is a backbone too, e.g. resnet18.",
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
    lines = [[row["name"], row.get("about") or facts(row)] for row in rows]
    say_table(["name", "about"], lines, whole_names=True)
    if what in HINTS:
        say(HINTS[what])


def facts(backbone: dict[str, Any]) -> str:
    """A backbone's row in words: what it is, its size, and where its weights are from."""
    words = [backbone["note"]]
    if backbone["parameters"] is not None:
        words.append(f"{backbone['parameters']} M parameters")
    if backbone["size"] and backbone["licence"]:
        source = f"{backbone['pretrained']}, {backbone['licence']}"
        words.append(f"weights for {backbone['size']} px ({source})")
    return "; ".join(words)


def entries(what: Catalogue) -> list[dict[str, Any]]:
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
