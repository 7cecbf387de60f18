"""The command line: the only place that prints. Library errors become one line and exit code 1."""

import io
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from acclimate import __version__
from acclimate.core.errors import AcclimateError
from acclimate.core.text import printable

GROUPS = {  # by what people do, in the order of work
    "Your images, from folders to a file that predicts": (
        *("inspect", "train", "adapt", "predict", "evaluate", "export"),
    ),
    "Data sets": ("build", "pack"),
    "Comparisons": ("sweep", "report", "ablate", "reproduce"),
    "To look around": ("demo", "list", "theory"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


class _Grouped(TyperGroup):
    """`--help` under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, names in GROUPS.items():
            room = formatter.width - 6 - max(map(len, names))
            lines = [(name, self.commands[name].get_short_help_str(room)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(lines)


app = typer.Typer(
    name="acclimate",
    cls=_Grouped,
    help="Classifiers that adapt themselves to a domain they have never seen.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(version: bool) -> None:
    if version:
        typer.echo(f"acclimate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Classifiers that adapt themselves to a domain they have never seen."""


def load_commands() -> None:
    """Each module registers its commands on `app`, and so can be imported only after it is made."""
    from acclimate.cli import paper

    for name in COMMANDS:
        import_module(paper.COMMANDS.get(name, f"acclimate.cli.{name}"))


def main() -> None:
    """Entry point of the `acclimate` command."""
    load_commands()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale cannot write is escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except AcclimateError as error:
        _fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{(error.strerror or str(error)).lower()}; check the path")


def _fail(sentence: str) -> NoReturn:
    sys.exit(f"error: {printable(' '.join(sentence.splitlines()))}")
