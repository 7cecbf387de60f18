"""How bytes and JSON values go wrong."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

Random = np.random.Generator
_EVIL = (
    *(None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "\0"),
    *("../x", "ü" * 300, "\ud800", [], {}, [[]], {"a": {}}, [None], "=cmd()", "\x1b[31m", "1e999"),
)
_HUGE = tuple(
    n.to_bytes(4, order) for n in (2**31 - 1, 2**32 - 1, 65535) for order in ("big", "little")
)


def mutated(data: bytes, rng: Random) -> bytes:
    """The bytes with one to four things done to them."""
    for _ in range(int(rng.integers(1, 5)) if rng.random() < 0.5 else 1):
        data = _CHANGES[rng.integers(len(_CHANGES))](data, rng)
    return data


def flipped(data: bytes, rng: Random) -> bytes:
    """One bit."""
    if not data:
        return b"\0"
    place = int(rng.integers(len(data)))
    return data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :]


def _truncated(data: bytes, rng: Random) -> bytes:
    return data[: int(rng.integers(len(data) + 1))]


def _appended(data: bytes, rng: Random) -> bytes:
    return data + rng.bytes(int(rng.integers(1, 64)))


def _spliced(data: bytes, rng: Random) -> bytes:
    """Some bytes overwritten, zeroed, cut out, repeated, or a count that is far too large."""
    start, length = _place(data, rng)
    some = data[start : start + length]
    ways = (
        rng.bytes(length),
        bytes(length),
        b"",
        some * int(rng.integers(2, 9)),
        _HUGE[rng.integers(len(_HUGE))] + some[4:],
    )
    return data[:start] + ways[rng.integers(len(ways))] + data[start + length :]


def _place(data: bytes, rng: Random) -> tuple[int, int]:
    return int(rng.integers(len(data) + 1)), int(rng.integers(1, 1 + max(len(data) // 8, 4)))


_CHANGES = (*[flipped] * 3, _truncated, _appended, *[_spliced] * 5)


def mutated_values(values: Any, rng: Random) -> Any:
    """JSON values with a few of them replaced, dropped or doubled, anywhere."""
    values = copy.deepcopy(values)
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(values))
        if not places:
            return _evil(rng)
        holder, key = places[rng.integers(len(places))]
        if rng.random() < 0.2:
            del holder[key]
        elif isinstance(holder, dict) and rng.random() < 0.1:
            holder[str(_evil(rng))] = holder[key]
        else:
            holder[key] = _evil(rng)
    return values


def mutated_json(text: bytes, rng: Random) -> bytes:
    """A JSON document with other values, or nested beyond measure."""
    if rng.random() < 0.05:
        return b"[" * 200_000
    if rng.random() < 0.3:
        return mutated(text, rng)
    return json.dumps(mutated_values(json.loads(text), rng)).encode()


def _evil(rng: Random) -> Any:
    return copy.deepcopy(_EVIL[rng.integers(len(_EVIL))])


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(values, dict | list):
        for key in list(values) if isinstance(values, dict) else range(len(values)):
            yield values, key
            yield from _places(values[key])
