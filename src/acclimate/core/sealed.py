"""Files that know what they held: a checksum inside, compared whenever they are read.

A JSON document has the checksum of its values under `seal`. A safetensors file has, in its
metadata, that of all its bytes, as they are with zeros in the checksum's place. Files of earlier
versions have none, and are taken as they come.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from acclimate.core.errors import DamagedFile
from acclimate.core.files import require_regular, write_text

SEAL = "seal"
BLANK = "0" * 64
MOST_JSON = 1 << 30  # bytes; the largest that we write, a sweep of many jobs, is a hundredth of it
MOST_HEADER = 100_000_000  # bytes of a safetensors header, the format's own limit
_PLACE = re.compile(rb'"seal":"([^"]{64})"|"seal":"')


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`, where all that can be wrong with a text is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_sealed(path: Path, values: Mapping[str, Any]) -> None:
    """A JSON object with its checksum, whole or absent."""
    sealed = {**values, SEAL: json_checksum(values)}
    write_text(path, json.dumps(sealed, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """The object in a JSON file, without its checksum; a missing one is the caller's to explain."""
    require_regular(path)
    if path.stat().st_size > MOST_JSON:
        raise DamagedFile(path)
    try:
        values = parse_json(path.read_bytes())
    except ValueError:
        raise DamagedFile(path) from None
    if not isinstance(values, dict):
        raise DamagedFile(path)
    seal = values.pop(SEAL, None)
    if seal is not None and seal != json_checksum(values):
        raise DamagedFile(path)
    return values


def json_checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of values as JSON has them, however a file is laid out."""
    plain = json.loads(json.dumps(values))  # keys that are numbers become text
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def write_tensors(
    path: Path, header: Mapping[str, Any], metadata: Mapping[str, str], parts: Iterable[memoryview]
) -> None:
    """A safetensors file of `header`, which says where each tensor lies, and `parts`, which are
    those tensors on end. Written here rather than by the library: its checksum comes in the same
    pass, equal content is equal bytes, and a full disk is the system's own error."""
    facts = {**dict(sorted(metadata.items())), SEAL: BLANK}
    known = {"__metadata__": facts, **header}
    text = json.dumps(known, ensure_ascii=True, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    found = _PLACE.search(text)
    assert found is not None
    with path.open("wb") as file:
        digest = hashlib.sha256()
        start = (memoryview(len(text).to_bytes(8, "little")), memoryview(text))
        for part in chain(start, parts):
            digest.update(part)
            file.write(part)
        file.seek(8 + found.start(1))
        file.write(digest.hexdigest().encode())


def check_tensors(path: Path) -> None:
    """Refuse a safetensors file that does not hold what it held when it was written."""
    require_regular(path)
    place = _seal_of(path)
    if place is None:
        return
    with path.open("rb") as file:
        file.seek(place)
        stored = file.read(len(BLANK))
    if stored != _checksum(path, place):
        raise DamagedFile(path)


def _seal_of(path: Path) -> int | None:
    """Where in the file its checksum stands; None where there is none."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(MOST_HEADER, path.stat().st_size):
            raise DamagedFile(path)
        # In text the quotes would be escaped: what matches is a key and its value.
        found = _PLACE.search(file.read(size))
    if found is None:
        return None
    if found[1] is None:
        raise DamagedFile(path)
    return 8 + found.start(1)


def _checksum(path: Path, place: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(place))
        digest.update(BLANK.encode())
        file.seek(len(BLANK), 1)
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest().encode()


@dataclass(frozen=True)
class Fields:
    """Values of a file, taken out by name, each of the kind that it should be."""

    values: Mapping[str, Any]
    path: Path

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        return str(self._of(name, str))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._list(name, str))

    def table(self, name: str) -> dict[str, Any]:
        return dict(self._of(name, dict))

    def tables(self, name: str) -> list["Fields"]:
        return [Fields(values, self.path) for values in self._list(name, dict)]

    def whole(self, name: str, *, least: int = 0, most: int = 1 << 53) -> int:
        """An integer from `least` to `most`; beyond 2⁵³ none is a count of anything."""
        value = self.values.get(name)
        if type(value) is not int or not least <= value <= most:
            raise DamagedFile(self.path)
        return value

    def number(self, name: str) -> float:
        """A finite one."""
        return _finite(self._of(name, int | float), self.path)

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(_finite(value, self.path) for value in self._list(name, int | float))

    def _list(self, name: str, kind: Any) -> list[Any]:
        found = self._of(name, list)
        if not all(isinstance(value, kind) and not isinstance(value, bool) for value in found):
            raise DamagedFile(self.path)
        return list(found)

    def _of(self, name: str, kind: Any) -> Any:
        value = self.values.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise DamagedFile(self.path)
        return value


def _finite(value: float, path: Path) -> float:
    try:
        if math.isfinite(number := float(value)):
            return number
    except OverflowError:  # an integer of hundreds of digits
        pass
    raise DamagedFile(path)
