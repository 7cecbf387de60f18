"""The list of images that did not decode: a few are passed over, many stop the run."""

import json
import threading
from pathlib import Path
from typing import Self

from acclimate.core.errors import ImageError, RecordError, TooManyUnreadable
from acclimate.core.files import append_line, parse_json, write_text


class Quarantine:
    """Unreadable images of a data set of `total`, each with its reason. Safe from threads.

    A list left at `path` by an earlier start of the same run is continued. One that is already
    over the limit belongs to a run that stopped there: it is begun anew, so that mended files
    are tried again and others are counted again.
    """

    def __init__(self, path: Path | None, *, total: int, max_share: float) -> None:
        self._path = path
        self._total = total
        self._max_share = max_share
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {} if path is None else _read_back(path)
        if path is not None and self._too_many():
            self._reasons = {}
            write_text(path, "")

    @classmethod
    def lenient(cls, total: int) -> Self:
        """Every bad image is noted and none is fatal, as at prediction time."""
        return cls(None, total=total, max_share=1.0)

    def add(self, image: str, reason: str) -> None:
        """Record `image` once; raise `TooManyUnreadable` when the share is over the limit."""
        with self._lock:
            if image not in self._reasons:
                self._reasons[image] = reason
                if self._path is not None:
                    append_line(self._path, _line(image, reason))
            if self._too_many():
                raise TooManyUnreadable(self._complaint(image))

    def refresh(self) -> None:
        """Take in what other processes of the run listed at the same path, and check the limit."""
        with self._lock:
            if self._path is not None:
                self._reasons = _read_back(self._path)
            if self._too_many():
                raise TooManyUnreadable(self._complaint(next(iter(self._reasons))))

    @property
    def entries(self) -> list[tuple[str, str]]:
        """(image, reason) in the order of discovery."""
        with self._lock:
            return list(self._reasons.items())

    def as_dicts(self) -> list[dict[str, str]]:
        return [{"image": image, "reason": reason} for image, reason in self.entries]

    def __len__(self) -> int:
        return len(self._reasons)

    def __contains__(self, image: object) -> bool:
        return image in self._reasons

    def _too_many(self) -> bool:
        # Divided rather than multiplied: 0.29 * 100 is a little less than 29.
        return len(self._reasons) / max(self._total, 1) > self._max_share

    def _complaint(self, image: str) -> str:
        listed = "" if self._path is None else f"; all are listed in {self._path}"
        return (
            f"{len(self._reasons)} of {self._total} images cannot be read, more than the allowed "
            f"{100 * self._max_share:.4g} %, for example {image} ({self._reasons[image]}){listed}; "
            "mend the files or raise data.max_unreadable"
        )


class NoQuarantine(Quarantine):
    """Passes over nothing: the first unreadable image is an error."""

    def __init__(self) -> None:
        super().__init__(None, total=0, max_share=1.0)

    def add(self, image: str, reason: str) -> None:
        raise ImageError(f"{image}: {reason}")


def _read_back(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")
    reasons: dict[str, str] = {}
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = parse_json(line)
            reasons[str(entry["image"])] = str(entry["reason"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{path} line {number} is not an entry of a quarantine list; delete the file"
            ) from error
    if lines[-1]:  # torn: the next line must not be joined to it; its image will be met again
        write_text(path, "".join(_line(*entry) + "\n" for entry in reasons.items()))
    return reasons


def _line(image: str, reason: str) -> str:
    # ASCII with escapes: file names may hold bytes that are no UTF-8, or line separators.
    return json.dumps({"image": image, "reason": reason})
