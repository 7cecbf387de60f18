"""Text that nothing acts on: not a terminal, not a spreadsheet, not a browser.

File and class names are what strangers call their things.
"""

import re
import unicodedata
from collections.abc import Iterable
from html import escape

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
    """As it stands, in Markdown: no HTML, no emphasis, no links, no cells, one line."""
    return _MARKDOWN.sub(r"\\\1", escape(printable(" ".join(text.split())), quote=False))
