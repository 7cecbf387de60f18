"""`list`: what there is to choose from."""

import ast
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import acclimate
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


_TABLES = {
    Catalogue.algorithms: ("learn/algorithms/__init__.py", "ALGORITHMS"),
    Catalogue.embeddings: ("learn/embeddings/__init__.py", "EMBEDDINGS"),
    Catalogue.methods: ("adapt/methods/__init__.py", "METHODS"),
    Catalogue.backbones: ("learn/models/backbones.py", "_TABLE"),
    Catalogue.presets: ("config/presets.py", "PRESETS"),
    Catalogue.ablations: ("sweep/ablations/table.py", "ABLATIONS"),
}


def entries(what: Catalogue) -> list[dict[str, str]]:
    rows = _written(*_TABLES[what])
    if what is Catalogue.backbones:
        return [
            {"name": name, "pretrained": pretrained, "note": note}
            for name, (pretrained, note) in rows.items()
        ]
    found = [{"name": name, "about": said[-1]} for name, said in rows.items()]
    if what is Catalogue.algorithms:
        from acclimate.config.algorithm_name import OVER_MU, AlgorithmName

        over = [(AlgorithmName(row["name"], adaptive=True), row["about"]) for row in found]
        found += [{"name": str(name), "about": about + OVER_MU} for name, about in over]
    return found


def _written(path: str, table: str) -> dict[str, list[str]]:
    """The rows of a table as they are written: the texts of each, or its `about` alone.

    The tables hold classes, and to import those takes torch, for seconds; their text does not.
    """
    tree = ast.parse((Path(acclimate.__file__).parent / path).read_text(encoding="utf-8"))
    for node in tree.body:
        named = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        rows = getattr(node, "value", None)
        if isinstance(rows, ast.Dict) and [getattr(name, "id", "") for name in named] == [table]:
            names = [ast.literal_eval(key) for key in rows.keys if key is not None]
            return {name: _texts(row) for name, row in zip(names, rows.values, strict=True)}
    raise LookupError(f"{path} has no table {table}")


def _texts(row: ast.expr) -> list[str]:
    parts = row.elts if isinstance(row, ast.Tuple) else []
    if isinstance(row, ast.Call):
        parts = [word.value for word in row.keywords if word.arg == "about"] or row.args
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [value for value in values if isinstance(value, str)]
