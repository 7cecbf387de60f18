"""The command line as a function, and what may come of a case."""

import contextlib
import io
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from acclimate.cli import main
from acclimate.core.errors import AcclimateError
from acclimate.core.text import printable


class Refused(Exception):
    """A command that failed, and the line that it ended with."""


@dataclass(frozen=True)
class Verdict:
    outcome: Literal["answered", "refused", "wrong", "traceback"]
    why: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome in ("answered", "refused")


ANSWERED = Verdict("answered")


def command(*arguments: object) -> str:
    """What `acclimate ARGUMENTS` writes on stdout; an exception that is no exit is a traceback."""
    out, error = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["acclimate", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            main()
        except SystemExit as end:
            if end.code:
                line = error.getvalue().strip().rpartition("\n")[2]
                raise Refused(end.code if isinstance(end.code, str) else line) from None
    return out.getvalue()


def command_to(out: Path, *arguments: object) -> Path:
    """A command that writes the file `out`, which a failure leaves unwritten."""
    out.unlink(missing_ok=True)
    try:
        command(*arguments, "--out", out)
    except Refused:
        assert not out.exists(), "a file beside an error"
        raise
    return out


def judged(case: Callable[[], Verdict]) -> Verdict:
    try:
        return case()
    except Refused as error:
        return refused(str(error))
    except AcclimateError as error:
        return refused(f"error: {printable(' '.join(str(error).splitlines()))}")  # as `main` does
    except OSError as error:
        return refused(f"error: {error}; check the path")
    except Exception:
        return Verdict("traceback", traceback.format_exc(limit=-6))


def refused(error: str) -> Verdict:
    """One line, with a remedy."""
    if not error.startswith("error: ") or "\n" in error or "\x1b" in error:
        return Verdict("traceback", f"not one plain line: {error!r}")
    told = (";", " must be ", " holds settings of its own")  # what it must be is what to do
    if not any(words in error for words in told):
        return Verdict("wrong", f"without a remedy: {error}")
    return Verdict("refused", error)
