"""Arrays of a pickle that was read as data: numpy's, and text as pyarrow keeps it.

Everything is decoded from bytes whose number is checked against what is claimed.
"""

import math
import re
from collections.abc import Collection, Sequence
from itertools import product

import numpy as np

from acclimate.paper.released.pickled import Call, Global

Column = np.ndarray | list[object]

_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


class Unexpected(Exception):
    """The file describes something that is not laid out like a table."""


def named(modules: Sequence[str], names: Sequence[str]) -> frozenset[Global]:
    """Every name in every module: things move between versions."""
    return frozenset(Global(*pair) for pair in product(modules, names))


_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_RECONSTRUCT = named(_MULTIARRAY, ["_reconstruct"])
SCALAR = named(_MULTIARRAY, ["scalar"])
_FROM_BUFFER = named(["numpy.core.numeric", "numpy._core.numeric"], ["_frombuffer"])
_NDARRAY = Global("numpy", "ndarray")
_DTYPE = Global("numpy", "dtype")
_ENCODE = Global("_codecs", "encode")
_BYTES = named(["builtins", "__builtin__"], ["bytearray"])
_ARROW_ARRAY = Global("pyarrow.lib", "_restore_array")
_ARROW_CHUNKS = Global("pyarrow.lib", "chunked_array")
_ARROW_TYPE = Global("pyarrow.lib", "type_for_alias")
_ARROW_BUFFER = Global("pyarrow.lib", "py_buffer")
ARRAY = _RECONSTRUCT | _FROM_BUFFER
ARRAYS = frozenset(
    {
        *(_RECONSTRUCT | SCALAR | _FROM_BUFFER | _BYTES),
        *(_NDARRAY, _DTYPE, _ENCODE),
        *(_ARROW_ARRAY, _ARROW_CHUNKS, _ARROW_TYPE, _ARROW_BUFFER),
    }
)


def scalar(node: Call) -> object:
    """A number of numpy's."""
    if len(node.arguments) != 2:
        raise Unexpected("a number of unknown shape")
    dtype, content = _dtype(node.arguments[0]), raw(node.arguments[1])
    if dtype is None or len(content) != dtype.itemsize:
        raise Unexpected("a number of an unknown kind")
    return np.frombuffer(content, dtype)[0].item()


def array(node: object) -> tuple[Column, list[int]]:
    """(the elements in row-major order, the shape)."""
    call = called(node, ARRAY, "an array")
    if call.target in _FROM_BUFFER:
        if len(call.arguments) != 4:
            raise Unexpected("an array of unknown shape")
        held, kind, shape, order = call.arguments
        column_major = order == "F"
    else:
        state = call.state
        if call.arguments[:1] != (_NDARRAY,) or not isinstance(state, tuple) or len(state) != 5:
            raise Unexpected("an array of unknown shape")
        _, shape, kind, fortran, held = state
        column_major = fortran is True
    sizes = _shape(shape)
    dtype = _dtype(kind)
    if dtype is None:  # a list of anything, always row-major
        if not isinstance(held, list) or len(held) != math.prod(sizes):
            raise Unexpected("an array with another number of elements than it claims")
        return held, sizes
    content = raw(held)
    if len(content) != math.prod(sizes) * dtype.itemsize:
        raise Unexpected("an array with another number of bytes than it claims")
    flat = np.frombuffer(content, dtype)
    return (flat.reshape(sizes, order="F").ravel() if column_major else flat), sizes


def _shape(shape: object) -> list[int]:
    if not isinstance(shape, tuple) or len(shape) > 2:
        raise Unexpected("an array of unknown shape")
    sizes = [size for size in shape if type(size) is int and 0 <= size < 1 << 40]
    if len(sizes) != len(shape):
        raise Unexpected("an array of unknown shape")
    return sizes


def _dtype(node: object) -> np.dtype | None:
    """A type of numbers, or None for objects."""
    call = called(node, {_DTYPE}, "a type")
    code = call.arguments[0] if call.arguments else None
    if not isinstance(code, str):
        raise Unexpected("an unknown type")
    if code in ("O", "O4", "O8"):
        return None
    order = call.state[1] if isinstance(call.state, tuple) and len(call.state) > 1 else "|"
    if not _NUMBERS.fullmatch(code) or order not in ("<", ">", "|", "="):
        raise Unexpected("an unknown type")
    return np.dtype(f"{order}{code}")


def raw(node: object) -> bytes:
    """Bytes, also as a bytearray, or the text that protocol 2 uses for want of them."""
    if isinstance(node, Call) and node.target in _BYTES and len(node.arguments) == 1:
        node = node.arguments[0]
    if isinstance(node, bytes):
        return node
    call = called(node, {_ENCODE}, "bytes")
    if len(call.arguments) == 2 and call.arguments[1] in ("latin1", "latin-1"):
        text = call.arguments[0]
        if isinstance(text, str):
            try:
                return text.encode("latin-1")
            except UnicodeEncodeError:
                pass
    raise Unexpected("bytes of an unknown kind")


def arrow_text(node: object) -> list[object]:
    """The text, or None, of an array of pyarrow's, whole or in chunks."""
    if isinstance(node, Call) and node.target == _ARROW_CHUNKS and node.arguments:
        chunks = sequence(node.arguments[0])
        if len({id(chunk) for chunk in chunks}) < len(chunks):  # small in the file, huge in memory
            raise Unexpected("a part of a text that is repeated")
    else:
        chunks = [node]
    return [text for chunk in chunks for text in _arrow_chunk(chunk)]


def _arrow_chunk(node: object) -> list[object]:
    call = called(node, {_ARROW_ARRAY}, "text")
    facts = call.arguments[0] if len(call.arguments) == 1 else None
    if not isinstance(facts, tuple) or len(facts) < 5:
        raise Unexpected("text of unknown shape")
    kind = called(facts[0], {_ARROW_TYPE}, "a type").arguments
    code = {"string": "<i4", "large_string": "<i8"}.get(
        kind[0] if kind and isinstance(kind[0], str) else ""
    )
    count, skipped = facts[1], facts[3]
    buffers = sequence(facts[4])
    if code is None or len(buffers) != 3:
        raise Unexpected("text of unknown shape")
    if not isinstance(count, int) or not isinstance(skipped, int) or min(count, skipped) < 0:
        raise Unexpected("text of unknown shape")
    valid, ends, data = (None if held is None else _arrow_buffer(held) for held in buffers)
    if count == 0:
        return []
    ends = ends or b""
    offsets = np.frombuffer(ends[: len(ends) // int(code[2]) * int(code[2])], code)
    offsets = offsets[skipped : skipped + count + 1]
    text = data or b""
    sound = len(offsets) == count + 1 and offsets[0] >= 0 and offsets[-1] <= len(text)
    if not sound or (np.diff(offsets) < 0).any():
        raise Unexpected("text with other lengths than it claims")
    present = np.ones(count, dtype=bool)
    if valid is not None:
        bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
        present = bits[skipped : skipped + count].astype(bool)
        if len(present) != count:
            raise Unexpected("text with other lengths than it claims")
    places = offsets.tolist()
    return [
        text[start:end].decode("utf-8", "replace") if there else None
        for start, end, there in zip(places[:-1], places[1:], present.tolist(), strict=True)
    ]


def _arrow_buffer(node: object) -> bytes:
    call = called(node, {_ARROW_BUFFER}, "bytes")
    if len(call.arguments) != 1:
        raise Unexpected("bytes of an unknown kind")
    return raw(call.arguments[0])


def sequence(node: object) -> Sequence[object]:
    if isinstance(node, list | tuple):
        return node
    raise Unexpected("a list is missing")


def called(node: object, targets: Collection[Global], what: str) -> Call:
    if isinstance(node, Call) and node.target in targets:
        return node
    raise Unexpected(f"{what} is missing")
