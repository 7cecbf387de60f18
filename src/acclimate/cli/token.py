"""`token`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli import app
from acclimate.cli.options import Json, names
from acclimate.cli.output import remark, say, say_json


@app.command(epilog="Example: acclimate token --file tokens.json --scope predict")
def token(
    file: Annotated[Path, typer.Option(help="Made, or added to; `acclimate serve` reads it.")],
    scope: Annotated[
        list[str], typer.Option(help="predict, observe or admin; commas or repeat for more.")
    ],
    name: Annotated[str, typer.Option(help="Whose it is, for logs. [default: token-N]")] = "",
    json: Json = False,
) -> None:
    """Make a token for `acclimate serve`. It is shown once; the file keeps a digest of it.

    To take it back, delete its entry in the file: a running server notices.
    """
    from acclimate.serve.tokens import add_token

    secret = add_token(file, names(scope), name)
    if json:
        say_json({"token": secret, "file": file})
        return
    say(secret)
    remark(f"{file} keeps its digest; this is the only time that the token is shown")
