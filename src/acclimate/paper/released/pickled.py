"""Pickle read as data: nothing that a file names is imported, called or built.

A pickle is a small program. The usual reader runs it, and so runs whatever its author wished. This
one follows the same steps but only writes down what would have been called with what: a name
becomes a `Global`, a call a `Call`. The rest are numbers, text, bytes, lists, tuples and
dictionaries. What is not needed for tables of plain columns is refused.
"""

import mmap
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from acclimate.core.errors import ManifestError

MAX_BYTES = 8 << 30
MAX_CONTAINERS = 50_000_000
_DISTRUST = "it was not run: do not trust the file, and fetch it again from its authors"
_PLAIN = "save its columns as text, numbers and lists, or give the file as released"
# What real files may hold, harmless and not read: by what they are called, in whose modules.
_HARMLESS_MODULES = frozenset(
    {"pandas", "numpy", "pyarrow", "datetime", "collections", "builtins", "decimal"}
)
_HARMLESS_NAMES = """
MultiIndex ArrowExtensionArray ArrowDtype SparseArray SparseDtype PeriodArray IntervalArray
DatetimeArray TimedeltaArray DatetimeTZDtype Timestamp Timedelta _unpickle_timestamp
_timedelta_unpickle OrderedDict defaultdict datetime date time timedelta timezone Decimal
"""
_HARMLESS = frozenset(_HARMLESS_NAMES.split())

Buffer = bytes | mmap.mmap
Container = TypeVar("Container")


@dataclass(frozen=True, slots=True)
class Global:
    """A function or class that the file refers to, by name only."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Call:
    """What the file would call, with what, and the state it would then set."""

    target: Global
    arguments: tuple[object, ...]
    state: object = None


def read_pickle(path: Path, allowed: Collection[Global]) -> object:
    """What the pickle at `path` describes. Names outside `allowed` are refused.

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
        if start[:1] != b"\x80":
            raise ManifestError(
                f"{path.name} is no pickle of protocol 2 or later; give the file as released"
            )
        return _Reader(content, path.name, allowed).read()


class _Done(Exception):
    """The STOP instruction."""


class _Reader:
    """The machine of the pickle format, less everything that acts."""

    def __init__(self, content: Buffer, source: str, allowed: Collection[Global]) -> None:
        self.content = content
        self.end = len(content)
        self.at = 0
        self.source = source
        self.allowed = frozenset(allowed)
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[object] = []  # numbered on end, as all known writers do
        self.other_memo: dict[int, object] = {}
        self.containers = 0

    def read(self) -> object:
        content = self.content
        steps = [_STEPS.get(code, _Reader.unknown) for code in range(256)]
        try:
            while True:
                code = content[self.at]
                self.at += 1
                steps[code](self)
        except _Done:
            pass
        except (IndexError, KeyError, struct.error):
            raise self.broken() from None
        except (UnicodeDecodeError, ValueError) as error:
            raise self.broken(str(error).splitlines()[0]) from None
        if len(self.stack) != 1 or self.marks:
            raise self.broken()
        value: object = self.stack[0]
        return value

    def broken(self, why: str = "cut short or damaged") -> ManifestError:
        return ManifestError(
            f"{self.source} is a broken pickle at byte {self.at} ({why}); fetch it again"
        )

    def refused(self, what: str) -> ManifestError:
        return ManifestError(f"{self.source} {what} at byte {self.at}; {_DISTRUST}")

    def unread(self, what: str) -> ManifestError:
        return ManifestError(
            f"{self.source} holds {what} at byte {self.at}, which is harmless and not read here; "
            f"{_PLAIN}"
        )

    def take(self, count: int) -> bytes:
        if count < 0 or count > self.end - self.at:
            raise self.broken("it claims more bytes than it has")
        self.at += count
        return self.content[self.at - count : self.at]

    def byte(self) -> int:
        value = self.content[self.at]
        self.at += 1
        return value

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def text(self, size: int) -> str:
        return self.take(size).decode("utf-8", "surrogatepass")

    def container(self, made: Container) -> Container:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise self.refused(f"holds more than {MAX_CONTAINERS} lists, tuples and dictionaries")
        return made

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise self.broken()
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def line(self) -> str:
        end = self.content.find(b"\n", self.at, self.at + 1000)
        if end < 0:
            raise self.broken()
        return self.take(end - self.at + 1)[:-1].decode("utf-8")

    def unknown(self) -> None:
        code = self.content[self.at - 1]
        raise self.refused(f"has the instruction 0x{code:02x}, which no table needs,")

    # Instructions that are more than a row of the table below.

    def recalled(self, number: int) -> object:
        memo = self.memo
        return memo[number] if number < len(memo) else self.other_memo[number]

    def note(self, number: int) -> None:
        memo = self.memo
        if number == len(memo):
            memo.append(self.stack[-1])
        elif number < len(memo):
            memo[number] = self.stack[-1]
        else:
            self.other_memo[number] = self.stack[-1]

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = self.container([])

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def extend(self, values: Sequence[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise self.refused("appends to what is no list")
        target.extend(values)

    def fill(self, items: Sequence[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise self.refused("sets an entry of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Text is hashed with a secret; numbers are not, and could be made to collide.
            if type(key) is not str and not (type(key) is int and 0 <= key < 1 << 32):
                raise self.refused("has a dictionary key that is neither text nor a small number")
            target[key] = value

    def named(self, module: object, name: object) -> Global:
        if type(module) is not str or type(name) is not str:
            raise self.refused("builds a name from what is no text")
        found = Global(module, name)
        if found not in self.allowed:
            shown = ascii(str(found)[:80])[1:-1]
            if module.partition(".")[0] in _HARMLESS_MODULES and name in _HARMLESS:
                raise self.unread(shown)
            raise self.refused(f"asks for {shown}, which is no part of a table,")
        return found

    def called(self) -> Call:
        target, arguments = self.last(2)
        if type(target) is not Global or type(arguments) is not tuple:
            raise self.refused("calls what is no function")
        return self.container(Call(target, arguments))

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is not Call or target.state is not None:
            raise self.refused("sets the state of what has none")
        target.state = state

    def proto(self) -> None:
        version = self.number(1)
        if not 2 <= version <= 5:
            raise self.broken(f"protocol {version}")

    def stop(self) -> None:
        raise _Done


def _push(read: Callable[[_Reader], object]) -> Callable[[_Reader], None]:
    """The instruction that puts what `read` gives on the stack."""

    def step(reader: _Reader) -> None:
        value = read(reader)  # first: it may go back to the stack before a mark
        reader.stack.append(value)

    return step


_STEPS: dict[int, Callable[[_Reader], object]] = {
    ord("h"): _push(lambda r: r.recalled(r.byte())),
    ord("j"): _push(lambda r: r.recalled(r.number(4))),
    0x94: lambda r: r.note(len(r.memo) + len(r.other_memo)),
    ord("q"): lambda r: r.note(r.byte()),
    ord("r"): lambda r: r.note(r.number(4)),
    ord("K"): _push(_Reader.byte),
    ord("M"): _push(lambda r: r.number(2)),
    ord("J"): _push(lambda r: r.number(4, signed=True)),
    0x8A: _push(lambda r: r.number(r.number(1), signed=True)),
    ord("G"): _push(lambda r: struct.unpack(">d", r.take(8))[0]),
    0x8C: _push(lambda r: r.text(r.number(1))),
    ord("X"): _push(lambda r: r.text(r.number(4))),
    0x8D: _push(lambda r: r.text(r.number(8))),
    ord("C"): _push(lambda r: r.take(r.number(1))),
    ord("B"): _push(lambda r: r.take(r.number(4))),
    0x8E: _push(lambda r: r.take(r.number(8))),
    0x96: _push(lambda r: r.take(r.number(8))),  # a bytearray, to which nobody writes here
    ord("N"): _push(lambda r: None),
    0x88: _push(lambda r: True),
    0x89: _push(lambda r: False),
    ord("("): _Reader.mark,
    ord("0"): _Reader.pop,
    ord("1"): _Reader.since_mark,
    ord("]"): _push(lambda r: r.container([])),
    ord("a"): lambda r: r.extend(r.last(1)),
    ord("e"): lambda r: r.extend(r.since_mark()),
    0x8F: _push(lambda r: r.container([])),  # a set: the list of what is put into it
    0x90: lambda r: r.extend(r.since_mark()),
    0x91: _push(lambda r: r.container(r.since_mark())),
    ord("}"): _push(lambda r: r.container({})),
    ord("s"): lambda r: r.fill(r.last(2)),
    ord("u"): lambda r: r.fill(r.since_mark()),
    ord("t"): _push(lambda r: r.container(tuple(r.since_mark()))),
    ord(")"): _push(lambda r: ()),
    0x85: _push(lambda r: r.container(r.last(1))),
    0x86: _push(lambda r: r.container(r.last(2))),
    0x87: _push(lambda r: r.container(r.last(3))),
    ord("c"): _push(lambda r: r.named(r.line(), r.line())),
    0x93: _push(lambda r: r.named(*r.last(2))),
    ord("R"): _push(_Reader.called),
    0x81: _push(_Reader.called),
    ord("b"): _Reader.build,
    0x80: _Reader.proto,
    0x95: lambda r: r.take(8),  # a frame: only says how much to read at once
    ord("."): _Reader.stop,
}
