"""The columns of a pickled pandas frame, without pandas and without running the pickle.

`pickled.py` says what the file would have built; here that is taken apart: a frame holds a block
manager, which holds blocks, which hold numpy's arrays. Arrays are decoded from their bytes after
their size has been checked against what they claim. pandas' own kinds of column (text, categories,
numbers with gaps) are refused: the released table has none.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from acclimate.core.errors import ManifestError
from acclimate.paper.released.pickled import Call, Global, read_pickle

Column = np.ndarray | list[object]
_Block = tuple[object, object]  # values, places among the columns

# Modules move between versions of numpy and pandas; a name means one thing in all of them.
ALLOWED = frozenset(
    Global(module, name)
    for modules, names in (
        ("builtins", "slice"),
        ("numpy", "dtype ndarray"),
        ("numpy.core.multiarray numpy._core.multiarray", "_reconstruct scalar"),
        ("numpy.core.numeric numpy._core.numeric", "_frombuffer"),
        ("pandas.core.frame pandas", "DataFrame"),
        ("pandas.core.internals.managers", "BlockManager"),
        ("pandas._libs.internals", "_unpickle_block"),
        ("pandas.core.indexes.base pandas", "_new_Index Index"),
        ("pandas.core.indexes.range pandas", "RangeIndex"),
        ("pandas.core.indexes.numeric", "Int64Index"),
    )
    for module in modules.split()
    for name in names.split()
)
_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


class Unexpected(Exception):
    """The file describes something that is not laid out like a table."""


def read_columns(path: str | Path, wanted: Sequence[str]) -> dict[str, Column]:
    """Returns the wanted columns of a pickled frame, all of one length."""
    path = Path(path).expanduser()
    described = read_pickle(path, ALLOWED)
    try:
        names, blocks = _parts(described)
        missing = [name for name in wanted if name not in names]
        if missing:
            known = ", ".join(name[:40] for name in names[:12] if isinstance(name, str))
            raise ManifestError(
                f"{path.name} has no column '{missing[0]}'; it has {known or 'none with a name'}"
            )
        columns = dict(_columns(names, blocks, frozenset(wanted)))
        if set(columns) != set(wanted) or len({len(column) for column in columns.values()}) > 1:
            raise Unexpected("columns are missing or of unequal length")
    except Unexpected as error:
        raise ManifestError(
            f"{path.name} is no pickled pandas frame of plain columns ({error}); "
            "give the file as released"
        ) from None
    return {name: columns[name] for name in wanted}


def _parts(described: object) -> tuple[list[object], list[_Block]]:
    """Returns the names of the columns, and the blocks that hold them."""
    match described:
        case Call(Global(name="DataFrame"), state={"_mgr": manager} | {"_data": manager}):
            pass
        case _:
            raise Unexpected("a frame is missing")
    match manager:
        case Call(Global(name="BlockManager"), ([*blocks], [index, _])):  # since pandas 1.3
            pass
        case Call(
            Global(name="BlockManager"),
            (),
            (*_, {"0.14.1": {"axes": [index, _], "blocks": [*blocks]}}),
        ):
            pass
        case _:
            raise Unexpected("a block manager is missing")
    return _names(index), [_block(block) for block in blocks]


def _names(index: object) -> list[object]:
    match index:
        case Call(Global(name="_new_Index"), (_, {"data": data})):
            names, shape = array(data)
            if len(shape) == 1:
                return list(names)
    raise Unexpected("an index with names is missing")


def _block(node: object) -> _Block:
    match node:
        case Call(Global(name="_unpickle_block"), (values, places, *_)):
            return values, places
        case {"values": values, "mgr_locs": places}:  # before pandas 1.3
            return values, places
    raise Unexpected("a block is missing")


def _columns(
    names: Sequence[object], blocks: Sequence[_Block], wanted: frozenset[str]
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
        block, shape = array(values)
        if len(shape) != 2 or shape[0] != len(positions):
            raise Unexpected("a block whose shape does not fit its columns")
        for row, name in chosen:
            yield name, block[row * shape[1] : (row + 1) * shape[1]]


def _places(node: object, total: int) -> list[int]:
    """Returns the places of a block's columns among all `total` of them."""
    match node:
        case Call(Global(name="slice"), (int(start), int(stop), int(step))):
            if step < 1 or not 0 <= start <= stop <= total + step:
                raise Unexpected("a block outside the frame")
            places = list(range(start, stop, step))
        case _:
            listed, shape = array(node)
            if len(shape) != 1 or isinstance(listed, list) or listed.dtype.kind not in "iu":
                raise Unexpected("a block without places")
            places = listed.tolist()
    if any(not 0 <= place < total for place in places):
        raise Unexpected("a block outside the frame")
    return places


def array(node: object) -> tuple[Column, tuple[int, ...]]:
    """Returns the elements of an array in row-major order, and its shape."""
    match node:
        case Call(Global(name="_frombuffer"), (content, kind, tuple(shape), order)):  # protocol 5
            by_column = order == "F"
        case Call(Global(name="_reconstruct"), state=(_, tuple(shape), kind, by_column, content)):
            pass
        case _:
            raise Unexpected("an array is missing")
    if len(shape) > 2 or any(type(size) is not int or not 0 <= size < 1 << 40 for size in shape):
        raise Unexpected("an array of unknown shape")
    dtype = _dtype(kind)
    if dtype is None:  # a list of anything, always row-major
        if not isinstance(content, list) or len(content) != math.prod(shape):
            raise Unexpected("an array with another number of elements than it claims")
        return content, shape
    if not isinstance(content, bytes | bytearray):
        raise Unexpected("bytes are missing")
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise Unexpected("an array with another number of bytes than it claims")
    flat = np.frombuffer(content, dtype)
    return (flat.reshape(shape, order="F").ravel() if by_column is True else flat), shape


def scalar(node: Call) -> object:
    """Returns a number of numpy's as one of Python's."""
    match node.arguments:
        case (kind, bytes(content)):
            dtype = _dtype(kind)
            if dtype is not None and len(content) == dtype.itemsize:
                return np.frombuffer(content, dtype)[0].item()
    raise Unexpected("a number of an unknown kind")


def _dtype(node: object) -> np.dtype | None:
    """Returns a type of numbers, or None for objects."""
    match node:
        case Call(Global(name="dtype"), ("O8" | "O", *_)):
            return None
        case Call(Global(name="dtype"), (str(code), *_), (_, "<" | ">" | "|" as order, *_)):
            if _NUMBERS.fullmatch(code):
                return np.dtype(f"{order}{code}")
    raise Unexpected("an unknown type")
