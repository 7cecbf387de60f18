"""Files that know what they held: a checksum inside, compared whenever they are read.

A JSON document has the checksum of its values under `seal`. A safetensors file has, in its
metadata, that of all its bytes, as they are with zeros in the checksum's place. Files of earlier
versions have none, and are taken as they come.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
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


def seal_tensors(path: Path) -> None:
    """Put the checksum into a safetensors file that was written with BLANK for its `seal`."""
    _sort_metadata(path)
    place = _seal_of(path)
    assert place is not None
    checksum = _checksum(path, place)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(checksum)


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


def _sort_metadata(path: Path) -> None:
    """The same content gives the same bytes: the library writes metadata in a random order."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        metadata = dict(sorted(header.pop("__metadata__").items()))
        text = json.dumps(
            {"__metadata__": metadata, **header}, ensure_ascii=False, separators=(",", ":")
        )
        sorted_header = text.encode().ljust(size)
        if len(sorted_header) == size:  # it always is, unless the library escapes otherwise
            file.seek(8)
            file.write(sorted_header)


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
