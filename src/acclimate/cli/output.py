"""How commands speak: results on stdout, progress on stderr, JSON when asked."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from acclimate.core.progress import Lines, Watch, bar, unwatched
from acclimate.core.text import duration, printable

_NUMBER = re.compile(r"[-+−]?[\d.]+( ± [\d.]+)?( %.*)?|–")


def first_process() -> bool:
    """Under torchrun one process speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


def say(text: str = "", *, err: bool = False) -> None:
    if first_process():
        typer.echo(printable(text), err=err)


def say_some(what: str, entries: Sequence[str], most: int = 3) -> None:
    """The first entries of a list, a line each, and how many more there are."""
    more = [f"and {len(entries) - most} more"] if len(entries) > most else []
    for entry in [*entries[:most], *more]:
        say(f"{what}: {entry}")


def remark(line: str) -> None:
    """Beside the progress: results alone go to stdout."""
    say(line, err=True)


def say_json(value: Mapping[str, Any]) -> None:
    if first_process():
        typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say_facts(facts: Mapping[str, Any], *, err: bool = False) -> None:
    """A line for each fact that is known: {"steps_left": 24} -> `steps left: 24`."""
    for name, value in facts.items():
        if value in (None, "", [], (), {}):
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, dict):
            value = ", ".join(f"{key} {one}" for key, one in value.items())
        elif isinstance(value, list | tuple):
            value = ("; " if name == "notes" else ", ").join(value)
        elif name.startswith("seconds"):
            name, value = name.replace("seconds", "time"), duration(value)
        say(f"{name.replace('_', ' ')}: {value}", err=err)


def say_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Text to the left, numbers to the right."""
    if not first_process():
        return
    from rich.console import Console  # rich takes longer to import than --help may
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    rows = [[printable(cell) for cell in row] for row in rows]
    for column, name in enumerate(header):
        numeric = rows and all(_NUMBER.fullmatch(row[column]) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


@contextmanager
def stoppable(words: str = "interrupted; repeat the command to resume") -> Iterator[None]:
    """For commands that keep what they have: says so when they are interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(words, err=True)
        raise typer.Exit(130) from None


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Watch]:
    """On stderr a bar for each phase, or lines where that is no terminal; nothing in processes
    other than the first."""
    if quiet or not first_process():
        yield unwatched
    elif sys.stderr.isatty():
        with bar() as watch:
            yield watch
    else:
        yield Lines(remark)
