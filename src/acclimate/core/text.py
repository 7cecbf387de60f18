"""Text that nothing acts on: not a terminal, not a spreadsheet, not a browser.

File and class names are what strangers call their things.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape

DASH = "–"


def percent(value: float | None) -> str:
    """0.6145 -> "61.5". Rounded twice, lest the last bit of a sum decide how 3.85 is printed."""
    return DASH if value is None else f"{round(100 * value, 9):.1f}"


def decimal(value: float | None) -> str:
    """0.6145 -> "0.614"; what is no share, and has no percent."""
    return DASH if value is None else f"{round(value, 9):.3f}"


def signed(value: float, write: Callable[[float | None], str] = percent) -> str:
    """A difference of shares in points, with its sign: "+5.9", "−0.3", "0.0"; or one of what
    `write` writes otherwise."""
    text = write(abs(value))
    return ("" if not float(text) else "+" if value > 0 else "−") + text


def listed(names: Sequence[str], most: int = 5) -> str:
    """
    >>> listed(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def short(name: str, most: int) -> str:
    """The beginning of a name that is longer than `most` letters, and a sign that it goes on."""
    return name if len(name) <= most else name[: most - 1] + "…"


def reason_of(error: BaseException, most: int = 200) -> str:
    """What an error of a library says, in a line; its kind where it says nothing."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def count(number: int, noun: str, plural: str = "") -> str:
    """
    >>> [count(n, "image") for n in (0, 1, 1200)] + [count(2, "process", "processes")]
    ['0 images', '1 image', '1200 images', '2 processes']
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def timestamp(unit: str = "seconds") -> str:
    """The time now, as records have it."""
    return datetime.now(UTC).isoformat(timespec=unit)


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (8, 95, 4000, 200_000)]
    ['8 s', '1 min 35 s', '1 h 06 min', '2 d 7 h']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


_JOINERS = "\u200c\u200d"  # which emoji and some scripts need, and no terminal acts on
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?(e[-+]?\d+)?", re.IGNORECASE)
_RUN = ("=", "+", "-", "@", "\t", "\r")  # what a cell begins with that a spreadsheet runs
_MARKDOWN = re.compile(r"([\\`*_\[\]|])")


def printable(text: str) -> str:
    """With escapes in the place of what moves a cursor, changes colours or turns text around.

    >>> printable("a\\x1b[31mb\\u202ec\\n")
    'a\\\\x1b[31mb\\\\u202ec\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _harmless(c) else c.encode("unicode_escape").decode() for c in text)


def _harmless(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind not in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in "\n\t" + _JOINERS


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Lines of cells between commas. A line end in a cell ends no line, and no cell is a formula:
    one that a spreadsheet would run has an apostrophe before it, unless it is a number."""
    return "".join(",".join(map(_cell, row)) + "\n" for row in rows)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    if text.startswith(_RUN) and not _NUMBER.fullmatch(text):
        text = "'" + text
    if any(mark in text for mark in ',"\r\n'):
        text = '"' + text.replace('"', '""') + '"'
    return text


def markdown(text: str) -> str:
    """Escape text for Markdown: no HTML, emphasis, links or cells; one line."""
    return _MARKDOWN.sub(r"\\\1", escape(printable(" ".join(text.split())), quote=False))
