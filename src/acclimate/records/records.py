"""What a run writes down: typed JSON lines. The only reader and writer of records.jsonl.

A record is one line, written at once and synced. A crash can tear the last line; a resumed run
writes again what came after its checkpoint. `read` tolerates the first and keeps the last of the
second, so that a killed and resumed run reads like an undisturbed one.

Each line ends in a digest of itself and the line before it, the first of the run's description. So
no line can be changed, left out or come from another run. A file beside it holds the last digest:
lines that were cut off at the end are missed too.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from acclimate.config import from_dict
from acclimate.core.errors import ConfigError, RecordError, UnknownName
from acclimate.core.files import (
    FORMAT,
    append_line,
    parse_json,
    read_bytes,
    require_format,
    write_text,
)
from acclimate.core.text import count, percent

MOST = 1 << 30  # bytes of all records
_CHAIN = ', "chain": "{}"}}'
_LENGTH = len(_CHAIN.format("")) + 64  # of the end of a line


@dataclass(frozen=True, kw_only=True)
class Started:
    """Once per session: which program, data and machine."""

    kind: ClassVar[str] = "started"
    key: ClassVar[tuple[str, ...]] = ("time",)
    time: str
    version: str
    device: str
    processes: int
    resumed_at: str | None  # the last phase and step recorded before, as "main 300"


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Training progress, averaged since the last one."""

    kind: ClassVar[str] = "loss"
    key: ClassVar[tuple[str, ...]] = ("phase", "step")
    phase: str
    step: int
    risk: float
    penalty: float | None
    lr: float
    images_per_second: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """One domain, scored once. `None` where there was nothing to score."""

    kind: ClassVar[str] = "score"
    key: ClassVar[tuple[str, ...]] = ("moment", "step", "domain", "split", "method")
    # "validation" during training, "averaged" on a mean of weights that training ended with,
    # "final" on the kept weights
    moment: str
    step: int
    domain: str
    role: str  # train | val | test: how this run used the domain
    split: str  # train | val | test | all
    n: int
    top1: float | None
    top5: float | None
    # "none", "embedding", a chain such as "embedding+prior"; "wrong-embedding",
    # "auto-neutral", "auto-other" and "lame" are controls, "oracle-prior" is a ceiling
    method: str
    adapted_on: str | None = None  # "held-out", "test", "training" or None
    adapt_n: int | None = None
    adapt_seed: int | None = None
    loss: float | None = None  # mean cross-entropy
    shared: int = 0  # rows of the split that show pictures that were trained on, or of their groups
    top1_unshared: float | None = None  # on the other rows, where those are scored too
    # Every metric of `metrics.METRICS` that is one number, by name; these three among them.
    metrics: Mapping[str, float | None] = field(default_factory=dict, hash=False)

    def value(self, metric: str) -> float | None:
        """By the metric of this name; `None` where the run did not compute it."""
        own = {"top-1": self.top1, "top-5": self.top5, "nll": self.loss}
        return own[metric] if metric in own else self.metrics.get(metric)


def shared_notes(scores: Iterable[Score]) -> list[str]:
    """A sentence for each domain that shares pictures with the training data."""
    rows: dict[tuple[str, str], Score] = {}
    for score in scores:
        if score.shared and score.method in ("none", "embedding"):
            rows.setdefault((score.domain, score.split), score)
    notes = []
    for (domain, _), score in rows.items():
        shown = f"{domain}: {count(score.shared, 'row')} of pictures that were trained on"
        if score.top1_unshared is None:
            notes.append(f"{shown}, left out of its scores (--keep-shared scores them)")
        else:
            notes.append(f"{shown}, and scored; without them {percent(score.top1_unshared)} %")
    return notes


class Validated(NamedTuple):
    """The outcome of a validation: scores, and means over the domains that have any: of the metric
    that chooses the weights, and of the loss."""

    scores: list[Score]
    value: float | None
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The run is complete: which step's weights were kept, and why.

    `kept_score` is of the weights that were chosen, on rows that they were not fitted on; a last
    fit on all rows comes after it. `seconds` are those of all sessions; of a killed one, those
    until its last checkpoint.
    """

    kind: ClassVar[str] = "finished"
    key: ClassVar[tuple[str, ...]] = ()
    kept_step: int
    kept_by: str
    kept_score: float | None
    seconds: float
    quarantined: int
    kept_from: int | None = None  # of a mean over many steps, the first; the last is `kept_step`


Record = Started | Loss | Score | Finished
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in (Started, Loss, Score, Finished)}


def key_of(record: Record) -> tuple[Any, ...]:
    """What a record is about: of two with the same key, the later one counts."""
    return (record.kind, *(getattr(record, name) for name in record.key))


def values_by_use(scores: Iterable[Score], metric: str) -> dict[tuple[str, str, str], list[float]]:
    """The values over domains of each (role, split, method): means never mix two splits."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for score in scores:
        value = score.value(metric)
        if value is not None:
            groups.setdefault((score.role, score.split, score.method), []).append(value)
    return groups


def append(path: Path, record: Record, whose: str = "") -> None:
    """Write a record of the run whose description has the digest `whose`."""
    values = {"format": FORMAT, "kind": record.kind, **dataclasses.asdict(record)}
    _mend_torn_line(path)
    text = json.dumps(values, ensure_ascii=False)
    chain = _link(_last_link(path) or whose, text.encode())
    append_line(path, text[:-1] + _CHAIN.format(chain))
    write_text(end_of(path), chain)


def end_of(path: Path) -> Path:
    """The file that holds the digest of the last record."""
    return path.with_suffix(".end")


def require_all(path: Path) -> None:
    """Refuse records that were cut off behind a whole line."""
    end = end_of(path)
    # Before the records: a run that goes on writes them first.
    last = read_bytes(end) if end.exists() else b""
    lines = read_bytes(path, MOST).split(b"\n")[:-1] if path.exists() else []
    # Of the first record, a crash may have left the line alone.
    if not (last in [line[-66:-2] for line in lines] if last else len(lines) < 2):
        raise RecordError(f"{path} is not what the run wrote; restore it and {end.name}")


def _link(before: str, line: bytes) -> str:
    return hashlib.sha256(before.encode() + line).hexdigest()


def _last_link(path: Path) -> str:
    """What the next record is to follow, "" for the first; all lines are whole."""
    if not path.exists() or not path.stat().st_size:
        return ""
    with path.open("rb") as file:
        file.seek(-min(67, path.stat().st_size), os.SEEK_END)
        return file.read(64).decode("utf-8", "replace")


@dataclass(frozen=True)
class Records:
    """The records of a run, duplicates removed, with what was found wrong on the way."""

    all: tuple[Record, ...]
    torn: int = 0
    duplicates: int = 0

    @property
    def scores(self) -> list[Score]:
        return [record for record in self.all if isinstance(record, Score)]

    @property
    def losses(self) -> list[Loss]:
        return [record for record in self.all if isinstance(record, Loss)]

    @property
    def finished(self) -> Finished | None:
        return next((record for record in self.all if isinstance(record, Finished)), None)


def read(path: Path, whose: str = "") -> Records:
    """Every record, the last of each key; a torn line is counted, other damage is an error, and
    so are records of another run than `append` was told of."""
    if not path.exists():
        return Records(())
    lines = read_bytes(path, MOST).split(b"\n")
    torn = int(lines[-1] != b"")
    records = list(_parse(path, lines[:-1], whose))
    latest = {key_of(record): record for record in records}
    return Records(tuple(latest.values()), torn=torn, duplicates=len(records) - len(latest))


def _parse(path: Path, lines: Iterable[bytes], link: str) -> Iterable[Record]:
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            values = parse_json(line)
            version, kind = values.pop("format"), values.pop("kind")
            chain = values.pop("chain", None)
        except (ValueError, KeyError, AttributeError, TypeError):
            raise RecordError(
                f"{path}, line {number}: not a record; restore or delete the line"
            ) from None
        require_format(version, f"{path}, line {number}")
        try:
            record: Record = from_dict(_KINDS[kind], values, where=kind)
        except (KeyError, TypeError, ConfigError, UnknownName):
            raise RecordError(
                f"{path}, line {number}: no known '{kind}' record; restore or delete the line"
            ) from None
        link = _link(link, line[:-_LENGTH] + b"}")
        if chain != link:
            raise RecordError(
                f"{path}, line {number}: not what this run wrote there; restore the file"
            )
        yield record


def _mend_torn_line(path: Path) -> None:
    """Cut what a crash left of a line, lest the next record be glued to it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content_end = file.seek(0, 2)
        if content_end == 0:
            return
        file.seek(-1, 2)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
