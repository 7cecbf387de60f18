"""How commands speak: results on stdout, progress on stderr, JSON when asked."""

import json as json_format
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import typer

from acclimate.core.environment import first_process
from acclimate.core.progress import Lines, Watch, bar, unwatched
from acclimate.core.text import printable

MOST = 20  # names in one line
FEW = 5  # entries of a list, a line each
_NUMBER = re.compile(r"\*?[-+−]?[\d.]+( ± [\d.]+)?( %.*)?|–")


def say(text: str = "", *, err: bool = False) -> None:
    if first_process():
        typer.echo(printable(text), err=err)


def say_some(what: str, entries: Sequence[str]) -> None:
    """The first entries of a list, a line each, and how many more there are."""
    more = [f"and {len(entries) - FEW} more"] if len(entries) > FEW else []
    for entry in [*entries[:FEW], *more]:
        say(f"{what}: {entry}")


def remark(line: str) -> None:
    """Beside the progress: results alone go to stdout."""
    say(line, err=True)


def say_json(value: Mapping[str, Any]) -> None:
    if first_process():
        text = json_format.dumps(value, indent=2, ensure_ascii=False, default=_plain)
        typer.echo(text)


def _plain(value: Any) -> Any:
    """What JSON has no form for: paths and dataclasses."""
    if isinstance(value, Path):
        return str(value)
    return value.to_dict() if hasattr(value, "to_dict") else asdict(value)


def say_facts(facts: Mapping[str, Any], *, json: bool = False, err: bool = False) -> None:
    """JSON, or a line for each fact that is known: {"done_before": 24} -> `done before: 24`.

    Of rows (a list of dictionaries) and notes each has a line of its own.
    """
    if json:
        say_json(facts)
        return
    for name, value in facts.items():
        label = name.replace("_", " ")
        if value in (None, "", [], (), {}):
            continue
        if name == "notes":
            for note in value:
                say(f"note: {note}", err=err)
            continue
        if isinstance(value, list) and isinstance(value[0], dict):
            say_some(label, [": ".join(map(str, row.values())) for row in value])
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, float):
            value = f"{value:.2g}" if abs(value) < 100 else round(value)
        elif isinstance(value, dict):
            value = [f"{key} {one}" for key, one in value.items()]
        if isinstance(value, list | tuple):
            value = ", ".join([*value[:MOST], *(["…"] if len(value) > MOST else [])])
        say(f"{label}: {value}", err=err)


def say_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    whole_names: bool = False,
) -> None:
    """Text to the left, numbers to the right; `whole_names` of a first column are never folded."""
    if not first_process():
        return
    from rich.console import Console  # rich takes longer to import than --help may
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    rows = [[printable(cell) for cell in row] for row in rows]
    for column, name in enumerate(header):
        numeric = rows and all(_NUMBER.fullmatch(row[column]) for row in rows)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        whole = whole_names and column == 0
        table.add_column(name, justify=justify, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


@contextmanager
def stoppable(words: str = "interrupted; repeat the command to resume") -> Iterator[None]:
    """For commands that keep what they have: says so when they are interrupted."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (words,)
        raise


@contextmanager
def progress_bar() -> Iterator[Watch]:
    """On stderr a bar for each phase, or lines where that is no terminal; nothing in processes
    other than the first."""
    if not first_process():
        yield unwatched
    elif sys.stderr.isatty():
        with bar() as watch:
            yield watch
    else:
        yield Lines(remark)
