"""What became of each image of a folder: appended lines, so that work goes on after a crash."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from acclimate.core.errors import ManifestError
from acclimate.core.files import append_line, parse_json

JOURNAL = "fetch.jsonl"
_FLUSH = 64  # lines are written together: a sync for each would take longer than the download


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one image: `there`, `fetched`, `dead` (not tried again) or `failed`.

    `missing` is said of images that were only looked at, and is not written down.
    """

    image: str
    status: str
    time: str
    url: str | None = None
    reason: str | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def present(self) -> bool:
        return self.status in ("there", "fetched")


class Journal:
    """Append-only lines; a line that a crash tore off is cut before the next is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []
        self._mended = False

    def read(self) -> dict[str, Entry]:
        """The last entry of each image."""
        if not self.path.exists():
            return {}
        found = {}
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                entry = Entry(**parse_json(line))
            except (ValueError, TypeError):
                raise ManifestError(
                    f"{self.path}, line {number}: not an entry; restore or delete the line"
                ) from None
            found[entry.image] = entry
        return found

    def add(self, entry: Entry) -> None:
        facts = {name: held for name, held in asdict(entry).items() if held is not None}
        self._waiting.append(json.dumps(facts, ensure_ascii=False))
        if len(self._waiting) >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        if not self._mended:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._mend()
        append_line(self.path, "\n".join(self._waiting))
        self._waiting.clear()

    def _mend(self) -> None:
        self._mended = True
        if self.path.exists():
            whole = self.path.read_bytes()
            with self.path.open("rb+") as file:
                file.truncate(whole.rfind(b"\n") + 1)
