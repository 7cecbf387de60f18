"""Tables as spreadsheets save them: whatever the separator, the encoding and the line ends.

A table is text with a header line. What cannot be told for certain is refused with the cause.
"""

import codecs
import csv
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from acclimate.core.errors import ManifestError
from acclimate.core.files import require_regular
from acclimate.data.columns import TEXT

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_BOMS = (  # the longer first: UTF-32's begins as UTF-16's does
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LONGEST_ROW = 1 << 26  # bytes
_WORKBOOKS = {
    b"PK\x03\x04": "an Excel or LibreOffice workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
}


def refuse_workbook(path: Path) -> None:
    """Say of a workbook what it is: its rows can be saved as a table."""
    with path.open("rb") as file:
        start = file.read(4)
    if start in _WORKBOOKS:
        raise ManifestError(
            f"{path.name} is {_WORKBOOKS[start]}; save its sheet as CSV (UTF-8) and give that"
        )


def read_separated(path: Path) -> pa.Table:
    """The rows of a .csv or .tsv file, core columns as text."""
    require_regular(path)
    refuse_workbook(path)
    content = _as_utf8(path.read_bytes(), path.name)
    separator, skipped = _separator(content)
    # Text by decree: inference would turn label 007 into 7 and domain 2020-01-01 into a date.
    table = pyarrow.csv.read_csv(
        pa.BufferReader(content),
        read_options=pyarrow.csv.ReadOptions(skip_rows=skipped, block_size=_LONGEST_ROW),
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(TEXT, pa.string())),
    )
    return _without_empty(table)


def with_slashes(table: pa.Table, root: Path) -> pa.Table:
    """Image paths as Windows writes them, a\\b.jpg, become a/b.jpg, unless a file is called so."""
    if "image" not in table.column_names or not pa.types.is_string(table["image"].type):
        return table
    backslashed = pc.fill_null(pc.match_substring(table["image"], "\\"), False)
    if not pc.any(backslashed).as_py():
        return table
    first = table["image"].filter(backslashed)[0].as_py()
    if (root / first).exists():
        return table
    image = pc.replace_substring(table["image"], "\\", "/")
    return table.set_column(table.column_names.index("image"), "image", image)


def _as_utf8(content: bytes, name: str) -> bytes:
    encoding = next((known for bom, known in _BOMS if content.startswith(bom)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise ManifestError(
                f"{name} begins as {encoding.upper()} text and does not go on as such at byte "
                f"{error.start}; save it as CSV (UTF-8)"
            ) from None
        text = _western(content, name)
    if "\0" in text:
        raise ManifestError(
            f"{name} holds NUL characters: it is UTF-16 without its mark, or no text; save it as "
            f"CSV (UTF-8)"
        )
    return text.encode()


def _western(content: bytes, name: str) -> str:
    """Windows-1252, which Latin-1 is a part of: what spreadsheets wrote before UTF-8."""
    try:
        return content.decode("cp1252")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{name} is neither UTF-8 nor Latin-1 at byte {error.start}; save it as CSV (UTF-8)"
        ) from None


def _separator(content: bytes) -> tuple[str, int]:
    """(what separates columns, lines before the header), by the header and Excel's `sep=` line."""
    first, _, rest = content.partition(b"\n")
    line = first.decode().strip("\r\ufeff")
    if line.lower().startswith("sep=") and len(line) == 5:
        return line[4], 1
    header = (line or rest.partition(b"\n")[0].decode()).split("\r")[0]
    columns = {mark: _columns(header, mark) for mark in SEPARATORS}

    def worth(mark: str) -> tuple[int, int]:
        known = {name.strip().casefold() for name in columns[mark]} & {*TEXT}
        return len(known), len(columns[mark])

    return max(SEPARATORS, key=worth), 0


def _columns(header: str, mark: str) -> Sequence[str]:
    try:
        return next(csv.reader([header], delimiter=mark), [])
    except csv.Error:  # a name of more than 128 KiB, which no column has
        return []


def _without_empty(table: pa.Table) -> pa.Table:
    """Less the columns without a name and rows without a value that a sheet's margin leaves."""
    named = [place for place, name in enumerate(table.column_names) if name.strip()]
    dropped = {*range(table.num_columns)} - {*named}
    if any(not _is_blank(table.column(place)) for place in dropped):
        return table  # whoever asks for columns says what is wrong
    table = table.select(named)
    if not table.num_columns:
        return table
    blank = pa.chunked_array([pa.repeat(True, table.num_rows)])
    for column in table.columns:
        blank = pc.and_(blank, _blank(column))
    return table.filter(pc.invert(blank)) if pc.any(blank).as_py() else table


def _blank(column: pa.ChunkedArray) -> pa.ChunkedArray:
    empty = pc.is_null(column)
    if pa.types.is_string(column.type):
        empty = pc.or_(empty, pc.equal(pc.utf8_trim_whitespace(pc.fill_null(column, "")), ""))
    return empty


def _is_blank(column: pa.ChunkedArray) -> bool:
    return bool(pc.all(_blank(column)).as_py())
