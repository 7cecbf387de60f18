"""Pickle read as data: nothing that a file names is imported, called or built.

A pickle is a small program. The usual reader runs it, and so runs whatever its author wished. This
one follows the same steps but only writes down what would have been called with what: a name
becomes a `Global`, a call a `Call`. The rest are numbers, text, bytes, lists, tuples and
dictionaries. What is not needed for tables of plain columns is refused.
"""

import mmap
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.core.errors import ManifestError

MAX_BYTES = 8 << 30
MAX_CONTAINERS = 50_000_000
_DISTRUST = "it was not run: do not trust the file, and fetch it again from its authors"

Buffer = bytes | mmap.mmap


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
        self.steps: list[Callable[[], None]] = [self.unknown] * 256
        for code, step in _STEPS.items():
            self.steps[code] = step.__get__(self)

    def read(self) -> object:
        content, steps = self.content, self.steps
        try:
            while True:
                code = content[self.at]
                self.at += 1
                steps[code]()
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

    def take(self, count: int) -> bytes:
        if count < 0 or count > self.end - self.at:
            raise self.broken("it claims more bytes than it has")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def contained(self) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise self.refused(f"holds more than {MAX_CONTAINERS} lists, tuples and dictionaries")

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def line(self) -> str:
        end = self.content.find(b"\n", self.at, self.at + 1000)
        if end < 0:
            raise self.broken()
        return self.take(end - self.at + 1)[:-1].decode("utf-8")

    def unknown(self) -> None:
        code = self.content[self.at - 1]
        raise self.refused(f"has the instruction 0x{code:02x}, which no table needs,")

    # Instructions, in the order of their likely number.

    def binget(self) -> None:
        self.recall(self.content[self.at])
        self.at += 1

    def long_binget(self) -> None:
        self.recall(self.number(4))

    def recall(self, number: int) -> None:
        memo = self.memo
        self.stack.append(memo[number] if number < len(memo) else self.other_memo[number])

    def memoize(self) -> None:
        self.note(len(self.memo) + len(self.other_memo))

    def binput(self) -> None:
        self.note(self.content[self.at])
        self.at += 1

    def long_binput(self) -> None:
        self.note(self.number(4))

    def note(self, number: int) -> None:
        memo = self.memo
        if number == len(memo):
            memo.append(self.stack[-1])
        elif number < len(memo):
            memo[number] = self.stack[-1]
        else:
            self.other_memo[number] = self.stack[-1]

    def binint1(self) -> None:
        self.stack.append(self.content[self.at])
        self.at += 1

    def binint2(self) -> None:
        self.stack.append(self.number(2))

    def binint(self) -> None:
        self.stack.append(int.from_bytes(self.take(4), "little", signed=True))

    def long1(self) -> None:
        self.stack.append(int.from_bytes(self.take(self.number(1)), "little", signed=True))

    def binfloat(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def short_binunicode(self) -> None:
        self.stack.append(self.take(self.number(1)).decode("utf-8", "surrogatepass"))

    def binunicode(self) -> None:
        self.stack.append(self.take(self.number(4)).decode("utf-8", "surrogatepass"))

    def binunicode8(self) -> None:
        self.stack.append(self.take(self.number(8)).decode("utf-8", "surrogatepass"))

    def short_binbytes(self) -> None:
        self.stack.append(self.take(self.number(1)))

    def binbytes(self) -> None:
        self.stack.append(self.take(self.number(4)))

    def binbytes8(self) -> None:  # bytes and bytearrays alike: nobody writes to them
        self.stack.append(self.take(self.number(8)))

    def none(self) -> None:
        self.stack.append(None)

    def true(self) -> None:
        self.stack.append(True)

    def false(self) -> None:
        self.stack.append(False)

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []
        self.contained()

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def pop_mark(self) -> None:
        self.since_mark()

    def empty_list(self) -> None:
        self.contained()
        self.stack.append([])

    def append(self) -> None:
        value = self.stack.pop()
        self.listed().append(value)

    def appends(self) -> None:
        values = self.since_mark()
        self.listed().extend(values)

    def listed(self) -> list[Any]:
        target = self.stack[-1]
        if type(target) is not list:
            raise self.refused("appends to what is no list")
        return target

    def empty_dict(self) -> None:
        self.contained()
        self.stack.append({})

    def setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.filled([key, value])

    def setitems(self) -> None:
        self.filled(self.since_mark())

    def filled(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise self.refused("sets an entry of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Text is hashed with a secret; numbers are not, and could be made to collide.
            if type(key) is not str and not (type(key) is int and 0 <= key < 1 << 32):
                raise self.refused("has a dictionary key that is neither text nor a small number")
            target[key] = value

    def tuple_(self) -> None:
        self.contained()
        items = tuple(self.since_mark())
        self.stack.append(items)

    def tuple0(self) -> None:
        self.stack.append(())

    def tuple1(self) -> None:
        self.tupled(1)

    def tuple2(self) -> None:
        self.tupled(2)

    def tuple3(self) -> None:
        self.tupled(3)

    def tupled(self, count: int) -> None:
        self.contained()
        if len(self.stack) < count:
            raise self.broken()
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def global_(self) -> None:
        module = self.line()
        self.named(module, self.line())

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.named(module, name)

    def named(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:
            raise self.refused("builds a name from what is no text")
        found = Global(module, name)
        if found not in self.allowed:
            raise self.refused(f"asks for {_shown(str(found))}, which is no part of a table,")
        self.stack.append(found)

    def called(self) -> None:
        arguments, target = self.stack.pop(), self.stack.pop()
        if type(target) is not Global or type(arguments) is not tuple:
            raise self.refused("calls what is no function")
        self.contained()
        self.stack.append(Call(target, arguments))

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

    def frame(self) -> None:  # only says how much to read at once
        self.take(8)

    def stop(self) -> None:
        raise _Done


def _shown(name: str) -> str:
    return ascii(name[:80])[1:-1]


_STEPS: dict[int, Callable[[_Reader], None]] = {
    ord("h"): _Reader.binget,
    ord("j"): _Reader.long_binget,
    0x94: _Reader.memoize,
    ord("q"): _Reader.binput,
    ord("r"): _Reader.long_binput,
    ord("K"): _Reader.binint1,
    ord("M"): _Reader.binint2,
    ord("J"): _Reader.binint,
    0x8A: _Reader.long1,
    ord("G"): _Reader.binfloat,
    0x8C: _Reader.short_binunicode,
    ord("X"): _Reader.binunicode,
    0x8D: _Reader.binunicode8,
    ord("C"): _Reader.short_binbytes,
    ord("B"): _Reader.binbytes,
    0x8E: _Reader.binbytes8,
    0x96: _Reader.binbytes8,
    ord("N"): _Reader.none,
    0x88: _Reader.true,
    0x89: _Reader.false,
    ord("("): _Reader.mark,
    ord("0"): _Reader.pop,
    ord("1"): _Reader.pop_mark,
    ord("]"): _Reader.empty_list,
    ord("a"): _Reader.append,
    ord("e"): _Reader.appends,
    ord("}"): _Reader.empty_dict,
    ord("s"): _Reader.setitem,
    ord("u"): _Reader.setitems,
    ord("t"): _Reader.tuple_,
    ord(")"): _Reader.tuple0,
    0x85: _Reader.tuple1,
    0x86: _Reader.tuple2,
    0x87: _Reader.tuple3,
    ord("c"): _Reader.global_,
    0x93: _Reader.stack_global,
    ord("R"): _Reader.called,
    0x81: _Reader.called,
    ord("b"): _Reader.build,
    0x80: _Reader.proto,
    0x95: _Reader.frame,
    ord("."): _Reader.stop,
}
