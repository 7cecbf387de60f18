"""The columns of a pickled pandas frame, without pandas and without running the pickle.

`pickled.py` says what the file would have built; here that is taken apart: a frame holds a block
manager, which holds blocks, which hold arrays. Layouts of pandas 0.25 to 3 are known. Arrays are
decoded from their bytes after their size has been checked against what they claim.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from acclimate.core.errors import ManifestError
from acclimate.paper.released.arrays import (
    ARRAYS,
    Column,
    Unexpected,
    array,
    called,
    named,
    sequence,
)
from acclimate.paper.released.cells import CELLS
from acclimate.paper.released.extensions import EXTENSIONS, extension, index_names, is_extension
from acclimate.paper.released.pickled import Call, Global, read_pickle

_SLICE = named(["builtins", "__builtin__"], ["slice"])
_FRAME = named(["pandas.core.frame", "pandas"], ["DataFrame"])
_MANAGER = named(["pandas.core.internals.managers", "pandas.core.internals"], ["BlockManager"])
_BLOCK = Global("pandas._libs.internals", "_unpickle_block")
ALLOWED = ARRAYS | EXTENSIONS | _SLICE | _FRAME | _MANAGER | {_BLOCK} | CELLS


def read_columns(path: str | Path, wanted: Sequence[str]) -> dict[str, Column]:
    """The wanted columns of a pickled frame, all of one length; the others are not looked at."""
    path = Path(path).expanduser()
    described = read_pickle(path, ALLOWED)
    try:
        names, blocks = _parts(described)
        missing = [name for name in wanted if name not in names]
        if missing:
            held = ", ".join(name[:40] for name in names[:12] if isinstance(name, str))
            raise ManifestError(
                f"{path.name} has no column '{missing[0]}'; it has {held or 'none with a name'}"
            )
        found = dict(_columns(names, blocks, frozenset(wanted)))
        if set(found) != set(wanted) or len({len(column) for column in found.values()}) > 1:
            raise Unexpected("columns are missing or of unequal length")
    except Unexpected as error:
        raise ManifestError(
            f"{path.name} is no pickled pandas frame of plain columns ({error}); "
            "give the file as released"
        ) from None
    return {name: found[name] for name in wanted}


def _parts(described: object) -> tuple[list[object], list[tuple[object, object]]]:
    """(names of the columns, blocks as (values, places among the columns))."""
    state = called(described, _FRAME, "a frame").state
    if not isinstance(state, dict):
        raise Unexpected("a frame without content")
    manager = called(state.get("_mgr", state.get("_data")), _MANAGER, "a block manager")
    if manager.arguments:  # since pandas 1.3
        if len(manager.arguments) != 2:
            raise Unexpected("a block manager of unknown shape")
        blocks, axes = manager.arguments
        pairs = [called(block, {_BLOCK}, "a block").arguments[:2] for block in sequence(blocks)]
    else:
        axes, pairs = _older_parts(manager.state)
    columns = sequence(axes)
    if len(columns) != 2 or any(len(pair) != 2 for pair in pairs):
        raise Unexpected("a block manager of unknown shape")
    return index_names(columns[0]), [(pair[0], pair[1]) for pair in pairs]


def _older_parts(state: object) -> tuple[object, list[tuple[object, ...]]]:
    versions = state[-1] if isinstance(state, tuple) and state else None
    latest = versions.get("0.14.1") if isinstance(versions, dict) else None
    if not isinstance(latest, dict):
        raise Unexpected("a block manager of unknown shape")
    pairs: list[tuple[object, ...]] = []
    for block in sequence(latest.get("blocks")):
        if not isinstance(block, dict):
            raise Unexpected("a block of unknown shape")
        pairs.append((block.get("values"), block.get("mgr_locs")))
    return latest.get("axes"), pairs


def _columns(
    names: Sequence[object], blocks: Sequence[tuple[object, object]], wanted: frozenset[str]
) -> Iterator[tuple[str, Column]]:
    placed = 0
    for values, places in blocks:
        positions = _places(places, len(names))
        placed += len(positions)
        if placed > len(names):  # also: no block may be repeated, which costs a file nothing
            raise Unexpected("more blocks than columns")
        here = [(row, names[place]) for row, place in enumerate(positions)]
        chosen = [(row, name) for row, name in here if isinstance(name, str) and name in wanted]
        if not chosen:
            continue
        if is_extension(values):
            if len(positions) != 1:
                raise Unexpected("an extension block of several columns")
            yield chosen[0][1], extension(values)
            continue
        block, shape = array(values)
        if len(shape) != 2 or shape[0] != len(positions):
            raise Unexpected("a block whose shape does not fit its columns")
        for row, name in chosen:
            yield name, block[row * shape[1] : (row + 1) * shape[1]]


def _places(places: object, total: int) -> list[int]:
    if isinstance(places, Call) and places.target in _SLICE:
        bounds = [bound for bound in places.arguments if isinstance(bound, int)]
        if len(bounds) != 3 or len(places.arguments) != 3:
            raise Unexpected("a block without places")
        start, stop, step = bounds
        if step < 1 or not 0 <= start <= stop <= total + step:
            raise Unexpected("a block outside the frame")
        found = list(range(start, stop, step))
    else:
        held, shape = array(places)
        if len(shape) != 1 or not isinstance(held, np.ndarray) or held.dtype.kind not in "iu":
            raise Unexpected("a block without places")
        found = held.tolist()
    if any(not 0 <= place < total for place in found):
        raise Unexpected("a block outside the frame")
    return found
