"""The command line: the only place that prints. Library errors become one line and exit code 1."""

import sys

import typer

from acclimate.errors import AcclimateError

app = typer.Typer(
    name="acclimate",
    help="Classifiers that adapt themselves to a domain they have never seen.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Entry point of the `acclimate` command."""
    # Imported here so that each command's module can import `app`.
    from acclimate.cli import adapting, catalogue, datasets, demonstration, training

    assert all((adapting, catalogue, datasets, demonstration, training))
    try:
        app()
    except AcclimateError as error:
        sys.exit(f"error: {' '.join(str(error).splitlines())}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(f"error: {where}{(error.strerror or str(error)).lower()}; check the path")
