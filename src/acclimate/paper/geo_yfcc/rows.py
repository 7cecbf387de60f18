"""Rows of YFCC100M's metadata: lines of 23 or 25 fields between tabs, in blocks of bytes.

A block is looked through once for tabs and line ends; fields are then positions in it. Only the
fields that are asked for are ever copied, and only for the rows that are still of interest.
"""

import bz2
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from acclimate.core.errors import ManifestError

BLOCK = 16 << 20
LINE = 16 << 20  # no row is as long; a download that was cut short may end in zeros without end
PHOTO_ID = r"^[1-9][0-9]{0,17}$"
_NEWLINE, _RETURN, _TAB = b"\n\r\t"
_FIELDS = (
    *("photo_id", "user", "nickname", "taken", "uploaded", "device", "title", "description"),
    *("tags", "machine_tags", "longitude", "latitude", "accuracy", "page", "url"),
    *("licence", "licence_url", "server", "farm", "secret", "original_secret", "extension"),
    "marker",
)
# The longer version has a line number before the photo id and a hash after it.
METADATA = {23: _FIELDS, 25: ("line", "photo_id", "hash", *_FIELDS[1:])}


class Piece(NamedTuple):
    """A part of a file that is read in one go: the lines that start in [start, stop).

    `stop` is None for a compressed file, which can only be read from its beginning.
    """

    path: Path
    start: int
    stop: int | None


class Damage(Exception):
    """A file that ends too early, does not decompress, or has no lines where there should be."""


def whole(path: Path) -> Piece:
    return Piece(path, 0, None if compressed(path) else path.stat().st_size)


def pieces(path: Path, size: int) -> list[Piece]:
    """A plain file in pieces of about `size` bytes, a compressed one as a whole."""
    if compressed(path):
        return [Piece(path, 0, None)]
    length = path.stat().st_size
    return [Piece(path, start, min(start + size, length)) for start in range(0, length, size)]


def compressed(path: Path) -> bool:
    return path.suffix.lower() in (".bz2", ".gz")


def columns(path: Path) -> int | None:
    """23 or 25, as most of the first lines have; None for a file without lines.

    Raises Damage if not one line can be had.
    """
    block, _ = next(blocks(whole(path), 1 << 20), (b"", 0))
    counts = Counter(line.count(b"\t") + 1 for line in block.splitlines()[:1000] if line.strip())
    known = [number for number, _ in counts.most_common() if number in METADATA]
    if counts and not known:
        raise ManifestError(
            f"{path.name} has rows of {counts.most_common(1)[0][0]} columns; "
            "YFCC100M has 23 or 25: give its metadata files"
        )
    return known[0] if known else None


def blocks(piece: Piece, size: int = BLOCK) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, each ending in a line end, and how far the file has been read.

    Raises Damage after the last whole line that can be had.
    """
    rest = b""
    position = 0
    for chunk, position in (
        _decompressed(piece.path, size) if piece.stop is None else _plain(piece, size)
    ):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield rest + chunk[:cut], position
            rest = chunk[cut:]
        else:
            rest += chunk
        if len(rest) > LINE:
            raise Damage(f"a line of more than {LINE} bytes")
    if rest:
        yield rest + b"\n", position


def _plain(piece: Piece, size: int) -> Iterator[tuple[bytes, int]]:
    assert piece.stop is not None
    with piece.path.open("rb") as file:
        if piece.start:
            file.seek(piece.start - 1)
            # Belongs to the piece before, unless it is only that piece's line end.
            file.readline(piece.stop - piece.start + LINE)
        while (position := file.tell()) < piece.stop:
            chunk = file.read(min(size, piece.stop - position))
            if not chunk:
                return
            if file.tell() >= piece.stop and not chunk.endswith(b"\n"):
                chunk += file.readline(LINE)
            yield chunk, file.tell()


def _decompressed(path: Path, size: int) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as raw:
        opened = bz2.BZ2File(raw) if path.suffix.lower() == ".bz2" else gzip.GzipFile(fileobj=raw)
        with opened as file:
            while True:
                parts: list[bytes] = []
                damage = None
                held = 0
                try:
                    # Small reads: what a failing one had decompressed is lost.
                    while held < size and (part := file.read1(1 << 16)):
                        parts.append(part)
                        held += len(part)
                except (EOFError, OSError, zlib.error) as error:
                    damage = error
                if parts:
                    yield b"".join(parts), raw.tell()
                if damage is not None:
                    raise Damage(str(damage)) from damage
                if held < size:
                    return


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a block that have the right number of fields."""

    text: np.ndarray  # uint8
    ends: np.ndarray  # int64: positions of all tabs and line ends
    first: np.ndarray  # int64 [n]: index into `ends` of the end of each row's first field
    layout: tuple[str, ...]
    too_few: int
    too_many: int

    @classmethod
    def of(cls, block: bytes, columns: int) -> "Rows":
        """Empty lines are no rows."""
        text = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero((text == _TAB) | (text == _NEWLINE))
        last = np.flatnonzero(text[ends] == _NEWLINE)
        first = np.concatenate([[0], last[:-1] + 1])
        fields = last - first + 1
        begin = np.concatenate([[0], ends[last[:-1]] + 1])
        blank = (ends[last] - begin) == (text[begin] == _RETURN)
        return cls(
            text,
            ends,
            first[fields == columns],
            METADATA[columns],
            int(np.sum((fields < columns) & ~blank)),
            int(np.sum(fields > columns)),
        )

    def span(self, field: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of a field in the given rows: int64 [n], int64 [n]."""
        index = self.first[rows] + self.layout.index(field)
        end = self.ends[index]
        start = np.where(index > 0, self.ends[index - 1] + 1, 0)
        if field == self.layout[-1]:  # a line may end in carriage return and line feed
            end = end - ((end > start) & (self.text[end - 1] == _RETURN))
        return start, end

    def __len__(self) -> int:
        return len(self.first)

    def values(self, field: str, rows: np.ndarray) -> pa.Array:
        """The field's bytes in the given rows, large_binary [n]."""
        start, end = self.span(field, rows)
        data, ends = gathered(self.text, start, end)
        offsets = np.concatenate([[0], ends])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)


def gathered(text: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of text[start:end] on end, and where each of them ends: uint8, int64 [n]."""
    length = end - start
    ends = np.cumsum(length)
    index = np.repeat(start - (ends - length), length)
    index += np.arange(len(index))
    return text[index], ends
