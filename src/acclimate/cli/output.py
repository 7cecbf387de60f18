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
from acclimate.core.text import printable

_NUMBER = re.compile(r"[-+−]?[\d.]+( ± [\d.]+)?( %.*)?|–")


def first_process() -> bool:
    """Under torchrun one process speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


def say(text: str = "") -> None:
    if not first_process():
        return
    from rich.console import Console  # rich takes longer to import than --help may

    Console(highlight=False, soft_wrap=True, markup=False).print(printable(text))


def say_some(what: str, entries: Sequence[str], most: int = 3) -> None:
    """The first entries of a list, a line each, and how many more there are."""
    for entry in entries[:most]:
        say(f"{what}: {entry}")
    if len(entries) > most:
        say(f"{what}: and {len(entries) - most} more")


def remark(line: str) -> None:
    """Beside the progress: results alone go to stdout."""
    if first_process():
        typer.echo(printable(line), err=True)


def say_json(value: Mapping[str, Any]) -> None:
    if not first_process():
        return
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Text to the left, numbers to the right."""
    if not first_process():
        return
    from rich.console import Console
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
        return
    if sys.stderr.isatty():
        with bar() as watch:
            yield watch
    else:
        yield Lines(remark)
