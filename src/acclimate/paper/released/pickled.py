"""Pickle read as data: nothing that a file names is imported, called or built.

A pickle is a small program. The usual reader runs it, and so runs whatever its author wished. This
one takes the instructions from `pickletools`, which only parses, and writes down what would have
been called with what: a name becomes a `Global`, a call a `Call`. The rest are numbers, text,
bytes, lists, tuples and dictionaries. Instructions that a table does not need are refused.
"""

import mmap
import pickletools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.core.errors import ManifestError

MAX_BYTES = 8 << 30
MAX_CONTAINERS = 50_000_000


@dataclass(frozen=True, slots=True)
class Global:
    """A function or class that the file refers to, by name only."""

    module: str
    name: str


@dataclass(slots=True, eq=False)
class Call:
    """What the file would call, with what, and the state it would then set."""

    target: Global
    arguments: tuple[object, ...]
    state: object = None


def read_pickle(path: Path, allowed: Collection[Global]) -> object:
    """Returns what the pickle at `path` describes. Names outside `allowed` are refused.

    No length is believed beyond the file's end. The worst that a file can do is to be made of empty
    lists: 80 times its size in memory, up to MAX_CONTAINERS of them.
    """
    if not path.is_file():
        raise ManifestError(f"there is no file '{path}'; check the path")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ManifestError(f"{path.name} has {size} bytes, over the limit of {MAX_BYTES}")
    if size == 0:
        raise ManifestError(f"{path.name} is empty; fetch it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content[:2]
        if start in (b"\x1f\x8b", b"BZ", b"PK"):
            raise ManifestError(f"{path.name} is compressed; unpack it first (tar xzf or gunzip)")
        if start[:1] != b"\x80" or start[1:] < b"\x03":
            raise ManifestError(
                f"{path.name} is no pickle of protocol 3 or later; give the file as released"
            )
        return _Machine(path.name, frozenset(allowed)).run(content)


class _Machine:
    """The stack machine of the pickle format, less everything that acts."""

    def __init__(self, source: str, allowed: frozenset[Global]) -> None:
        self.source = source
        self.allowed = allowed
        self.at = 0  # byte of the instruction
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[object] = []
        self.containers = 0

    def run(self, content: mmap.mmap) -> object:
        try:
            for opcode, argument, position in pickletools.genops(content):  # type: ignore[arg-type]
                self.at = position or 0
                if opcode.name not in _STEPS:
                    raise self.refused(f"has the instruction {opcode.name}")
                _STEPS[opcode.name](self, argument)
            if len(self.stack) != 1:
                raise IndexError
        except IndexError:
            raise self.broken("cut short or damaged") from None
        except ValueError as error:  # text that cannot be decoded, and whatever genops says
            raise self.broken(str(error).splitlines()[0][:80]) from None
        result: object = self.stack[0]
        return result

    def broken(self, why: str) -> ManifestError:
        return ManifestError(
            f"{self.source} is a broken pickle after byte {self.at} ({why}); fetch it again"
        )

    def refused(self, what: str) -> ManifestError:
        return ManifestError(
            f"{self.source} {what} at byte {self.at}, which no table needs; it was not run: do not "
            "trust the file, and fetch it again from its authors"
        )

    def push(self, value: object) -> None:
        self.stack.append(value)

    def push_container(self, value: object) -> None:
        self.count_container()
        self.stack.append(value)

    def count_container(self) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise self.refused(f"has more than {MAX_CONTAINERS} lists, tuples and dictionaries")

    def pop(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise IndexError
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def mark(self) -> None:
        self.count_container()
        self.marks.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def memoize(self, number: int) -> None:
        # Writers number on end; a list is a tenth of the memory of a dictionary.
        if number > len(self.memo):
            raise self.refused(f"skips to the memo {number}")
        self.memo[number : number + 1] = [self.stack[-1]]

    def extend(self, values: Sequence[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise self.refused("appends to what is no list")
        self.stack[-1].extend(values)

    def set_items(self, items: Sequence[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise self.refused("sets an entry of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Text is hashed with a secret; numbers are not, and could be made to collide.
            if type(key) is not str and not (type(key) is int and 0 <= key < 1 << 32):
                raise self.refused("has a dictionary key that is neither text nor a small number")
            target[key] = value

    def push_global(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:
            raise self.refused("builds a name from what is no text")
        named = Global(module, name)
        if named not in self.allowed:
            raise self.refused(f"asks for {ascii(f'{module}.{name}'[:80])[1:-1]}")
        self.stack.append(named)

    def push_call(self) -> None:
        target, arguments = self.pop(2)
        if type(target) is not Global or type(arguments) is not tuple:
            raise self.refused("calls what is no function")
        self.push_container(Call(target, arguments))

    def build(self) -> None:
        target, state = self.pop(2)
        if type(target) is not Call or target.state is not None:
            raise self.refused("sets the state of what has none")
        target.state = state
        self.stack.append(target)


_VALUES = """
BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8
SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8
"""
_STEPS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(_VALUES.split(), _Machine.push),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "MEMOIZE": lambda m, _: m.memoize(len(m.memo)),
    "BINPUT": _Machine.memoize,
    "LONG_BINPUT": _Machine.memoize,
    "BINGET": lambda m, number: m.push(m.memo[number]),
    "LONG_BINGET": lambda m, number: m.push(m.memo[number]),
    "MARK": lambda m, _: m.mark(),
    "EMPTY_LIST": lambda m, _: m.push_container([]),
    "APPEND": lambda m, _: m.extend(m.pop(1)),
    "APPENDS": lambda m, _: m.extend(m.pop_to_mark()),
    "EMPTY_DICT": lambda m, _: m.push_container({}),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "TUPLE": lambda m, _: m.push_container(tuple(m.pop_to_mark())),
    "TUPLE1": lambda m, _: m.push_container(m.pop(1)),
    "TUPLE2": lambda m, _: m.push_container(m.pop(2)),
    "TUPLE3": lambda m, _: m.push_container(m.pop(3)),
    "GLOBAL": lambda m, names: m.push_global(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.push_global(*m.pop(2)),
    "REDUCE": lambda m, _: m.push_call(),
    "NEWOBJ": lambda m, _: m.push_call(),
    "BUILD": lambda m, _: m.build(),
    "PROTO": lambda m, version: None,
    "FRAME": lambda m, size: None,  # says how much to read at once
    "STOP": lambda m, _: None,
}
