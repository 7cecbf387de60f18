"""The command line: the only place that prints. Library errors become one line and exit code 1."""

import io
import os
import re
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from acclimate import __version__
from acclimate.core.environment import first_process
from acclimate.core.errors import AcclimateError
from acclimate.core.text import printable

GROUPS = {  # by what people do, in the order of work
    "Your images, from folders to a file that predicts": (
        *("inspect", "train", "adapt", "predict", "suggest", "watch", "evaluate", "export"),
        "forget",
    ),
    "Many sites behind one address": ("serve", "token"),
    "Data sets": ("build", "pack"),
    "Comparisons": ("sweep", "report", "track", "ablate", "reproduce"),
    "To look around": ("demo", "list", "theory"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


# Where memory ends: what Python, the linker, oneDNN and an import that loses a MemoryError say.
_NO_MEMORY = re.compile(
    "memory|map segment|bad_alloc|start new thread|Resource temporarily|"
    "could not create a primitive$|without exception set"
)


class Stopped(KeyboardInterrupt):
    """A signal asked for the end."""

    number = signal.SIGINT


class _Grouped(TyperGroup):
    """`--help` under headings; an interruption is one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise typer.Exit(_stopped(stop)) from None

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
    _open_streams()
    _heed_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale cannot write is escaped
            stream.reconfigure(errors="backslashreplace")
    # Of libraries: in one line, without what steers a terminal. What decoders think of a picture
    # is in our own list of those that cannot be read.
    warnings.formatwarning = lambda message, *_: f"warning: {printable(str(message))}\n"
    warnings.filterwarnings("ignore", module=r"PIL\.|pydicom\.")
    try:
        load_commands()
        app()
    except AcclimateError as error:
        _fail(str(error))
    except KeyboardInterrupt as stop:
        sys.exit(_stopped(stop))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{(error.strerror or str(error)).lower()}; check the path")

    except (MemoryError, RuntimeError, ImportError, SystemError) as error:
        said = str(error) or type(error).__name__
        if said.startswith("Symlink loop"):
            _fail(f"{said}; check the path")
        if isinstance(error, MemoryError) or _NO_MEMORY.search(said):
            _fail(f"out of memory ({said}); give it more (ulimit -v), or close other programs")
        raise


def _open_streams() -> None:
    """Where a stream is closed (`2>&-`), what would go there goes nowhere: its number must not
    become that of a file that is opened, and words on it are no reason to end."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _heed_signals() -> None:
    """End by SIGTERM as by an interruption, with what has to be put in order; a second signal
    ends it at once."""
    here = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != here:  # a process that was forked ends as it would have
            os.kill(os.getpid(), number)
        stopped = Stopped()
        stopped.number = signal.Signals(number)
        raise stopped

    with suppress(ValueError):  # not in the main thread, where signals are not for us
        signal.signal(signal.SIGTERM, stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background
            signal.signal(signal.SIGINT, stop)


def _stopped(stop: KeyboardInterrupt) -> int:
    """Say how to go on; the exit code that shells expect."""
    if first_process():
        typer.echo(str(stop) or "interrupted; repeat the command", err=True)
    return 128 + getattr(stop, "number", signal.SIGINT)


def _fail(sentence: str) -> NoReturn:
    sys.exit(f"error: {printable(' '.join(sentence.splitlines()))}")
