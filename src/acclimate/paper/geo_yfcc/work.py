"""The first pass over all files: in pieces, on several threads, kept on disk, resumed after a kill.

Each piece leaves one Parquet file in the work folder, whole or not at all, whose name is a digest
of everything that decided its content. A build that finds such a file does not read the piece.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from acclimate.core.errors import ManifestError
from acclimate.core.files import clear_temporary, parse_json, write_atomically
from acclimate.core.progress import Watch, unwatched
from acclimate.core.text import count, duration
from acclimate.paper.geo_yfcc.reading import SCHEMA, Reader
from acclimate.paper.geo_yfcc.rows import Damage, Piece, blocks, columns, pieces

PIECE = 128 << 20
_VERSION = 1
_COUNTS = b"acclimate.counts"
_SECONDS = 0.5  # between two words on how it goes


class StoredPiece(NamedTuple):
    """The candidates of a piece, on disk, and the counts of what was lost on the way."""

    path: Path
    counts: Counter[str]


@dataclass(eq=False)
class _Progress:
    """How far the threads are: bytes by piece, and the rows read in this run."""

    sizes: dict[Piece, int]
    rows: int = 0
    done: dict[Piece, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    resumed: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, piece: Piece, position: int, rows: int) -> None:
        with self.lock:
            self.done[piece] = position - piece.start
            self.rows += rows

    def tell(self, watch: Watch) -> None:
        with self.lock:
            total, done, rows = sum(self.sizes.values()), sum(self.done.values()), self.rows
        seconds = max(time.monotonic() - self.started, 1e-6)
        fresh = done - self.resumed
        left = (total - done) * seconds / fresh if fresh > 0 else 0.0
        note = f"{rows / seconds:,.0f} rows/s, {duration(left)} left" if rows else ""
        watch("reading metadata (MiB)", done >> 20, max(1, total >> 20), note)


def layouts(paths: Sequence[Path], *, keep_damaged: bool = False) -> dict[Path, int]:
    """The number of columns of each file that has rows; refuses what is no metadata."""
    widths: dict[Path, int] = {}
    for path in paths:
        if not path.is_file():
            raise ManifestError(f"there is no file '{path}'; check the path")
        if path in widths:
            raise ManifestError(f"'{path}' is given twice; give each file once")
        try:
            number = columns(path)
        except Damage as error:
            if not keep_damaged:
                raise _damaged(path, 0, error) from error
            number = None
        if number is not None:
            widths[path] = number
    if not widths:
        listed = ", ".join(path.name for path in paths)
        raise ManifestError(f"there are no rows in {listed or 'no files'}; give metadata files")
    return widths


def read_all(
    files: dict[Path, int],
    reader: Reader,
    work: Path,
    *,
    key: str,
    keep_damaged: bool = False,
    workers: int = 2,
    piece_size: int = PIECE,
    watch: Watch = unwatched,
) -> list[StoredPiece]:
    """The parts of all pieces, in the order of the files; `key` tells apart what readers do."""
    todo = [piece for path in files for piece in pieces(path, piece_size)]
    progress = _Progress({piece: _size(piece) for piece in todo})
    stored: dict[Piece, StoredPiece] = {}
    paths = {piece: work / _name(piece, files[piece.path], key, keep_damaged) for piece in todo}
    clear_temporary(work)
    for piece, path in paths.items():
        counts = _stored_counts(path)
        if counts is not None:
            stored[piece] = StoredPiece(path, counts)
            progress.done[piece] = progress.sizes[piece]
    progress.resumed = sum(progress.done.values())
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        running = {
            pool.submit(
                _read, piece, files[piece.path], reader, path, keep_damaged, progress
            ): piece
            for piece, path in paths.items()
            if piece not in stored
        }
        try:
            stored |= _awaited(running, progress, watch)
        except BaseException:
            progress.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [stored[piece] for piece in todo]


def _awaited(
    running: "dict[Future[StoredPiece], Piece]", progress: _Progress, watch: Watch
) -> dict[Piece, StoredPiece]:
    finished: dict[Piece, StoredPiece] = {}
    waiting = set(running)
    progress.tell(watch)
    while waiting:
        done, waiting = wait(waiting, timeout=_SECONDS, return_when=FIRST_COMPLETED)
        finished |= {running[future]: future.result() for future in done}
        progress.tell(watch)
    return finished


def _read(
    piece: Piece,
    columns: int,
    reader: Reader,
    path: Path,
    keep_damaged: bool,
    progress: _Progress,
) -> StoredPiece:
    tables = [SCHEMA.empty_table()]
    counts: Counter[str] = Counter()
    try:
        for block, position in blocks(piece):
            if progress.stop.is_set():
                raise InterruptedError("stopped")
            table, losses = reader.read(block, columns)
            tables.append(table)
            counts.update(losses)
            progress.note(piece, position, losses["rows"])
    except Damage as error:
        if not keep_damaged:
            raise _damaged(piece.path, counts["rows"], error) from error
        counts["damaged files"] += 1
    progress.note(piece, piece.start + progress.sizes[piece], 0)
    table = pa.concat_tables(tables).replace_schema_metadata({_COUNTS: json.dumps(counts)})
    options = {"compression": "zstd", "write_page_checksum": True}
    write_atomically(path, lambda file: pq.write_table(table, file, **options))
    return StoredPiece(path, counts)


def _damaged(path: Path, rows: int, error: Damage) -> ManifestError:
    return ManifestError(
        f"{path.name} is damaged after {count(rows, 'row')} ({str(error).lower()}); download it "
        "again, or take what can be read with --keep-damaged"
    )


def _size(piece: Piece) -> int:
    return (piece.path.stat().st_size if piece.stop is None else piece.stop) - piece.start


def _name(piece: Piece, columns: int, key: str, keep_damaged: bool) -> str:
    status = piece.path.stat()
    facts = (
        *(_VERSION, str(piece.path.resolve()), status.st_size, status.st_mtime_ns),
        *(piece.start, piece.stop),
        *(columns, key, keep_damaged),
    )
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16)
    return f"{digest.hexdigest()}.parquet"


def _stored_counts(path: Path) -> Counter[str] | None:
    """The counts of a part that is there and whole; one that is not is read again."""
    if not path.is_file():
        return None
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                file.read_row_group(number).validate(full=True)
            schema = file.schema_arrow
        counts = Counter(parse_json(schema.metadata[_COUNTS]))
        whole = schema.remove_metadata().equals(SCHEMA)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        return None
    return counts if whole and all(isinstance(n, int) for n in counts.values()) else None
