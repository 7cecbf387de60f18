"""What a builder is: a frozen dataclass whose fields are what it is asked for.

Fields say their purpose, as settings of algorithms do, and the command line is made from them: an
`argument`, an option that is `required`, a `flag`, or a `setting` with a default. A field that is a
dataclass of settings itself adds its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from acclimate.config import setting
from acclimate.config.values import range_missed
from acclimate.core.errors import AcclimateError, ConfigError
from acclimate.core.progress import Watch
from acclimate.core.text import count
from acclimate.data.manifest import Manifest

OUT = "The manifest to write, ending in .parquet."
SEED = "Seed of the splits."
MOST_SHARE = 0.99  # of a domain for validation: something stays to train on


def argument(about: str, *, default: Any = MISSING, metavar: str | None = None) -> Any:
    """A field that is given by its place."""
    return field(default=default, metadata={"about": about, "argument": True, "metavar": metavar})


def required(about: str) -> Any:
    """A field without which nothing can be built."""
    return field(metadata={"about": about})


def flag(about: str) -> bool:
    """A field that is off unless it is named."""
    return field(default=False, metadata={"about": about, "flag": True})


@dataclass(frozen=True)
class Listing:
    """What is best said in rows and columns."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Built:
    """What a builder made, and what it has to say of it."""

    manifest: Manifest
    out: Path | None  # where it was written, if it was
    facts: Mapping[str, object] = field(default_factory=dict)  # beside those of every manifest
    # What the command prints, in the order to be read; nothing: the manifest in short.
    summary: Sequence[str | Listing] = ()
    files: Sequence[tuple[str, Path]] = ()  # what else was written: (kind, path)
    problem: AcclimateError | None = None  # to be raised once the rest has been said

    def as_dict(self) -> dict[str, object]:
        return {
            "manifest": None if self.out is None else str(self.out),
            "rows": len(self.manifest),
            "domains": len(self.manifest.domains),
            "classes": len(self.manifest.classes),
            "digest": self.manifest.digest(),
            **self.facts,
        }


def in_short(manifest: Manifest) -> str:
    """The size of a manifest in one line, and what identifies it."""
    return (
        f"{len(manifest)} rows, {len(manifest.domains)} domains, {len(manifest.classes)} classes "
        f"(digest {manifest.digest()[:12]})"
    )


def differences(what: str, images: int, expected: int | None) -> Iterator[str]:
    """A sentence if a domain or a split has not the expected number of images, if one is known."""
    if not images and expected != 0:
        yield f"{what} is missing" + (f": {expected} images expected" if expected else "")
    elif expected is not None and images != expected:
        more = f"{abs(images - expected)} {'more' if images > expected else 'fewer'}"
        yield f"{what} has {count(images, 'image')}, {more} than expected"


def written(built: Built, licence: str, source: str, found: Sequence[str]) -> Built:
    """Write a known data set, with free columns that state its licence and official page; say how
    it differs from what it should be."""
    table, out = built.manifest.table, built.out
    for name, value in (("licence", licence), ("source", source)):
        table = table.append_column(name, pa.repeat(value, table.num_rows))
    manifest = replace(built.manifest, table=table)
    if out is not None:
        manifest.write(out)
    told = [f"warning: {difference}" for difference in found] or ["as expected"]
    summary, facts = [*built.summary, *told, in_short(manifest)], {"differences": found}
    return replace(built, manifest=manifest, summary=summary, facts={**built.facts, **facts})


@dataclass(frozen=True, kw_only=True)
class Limited:
    """Settings that refuse a number outside the limits beside its default."""

    def __post_init__(self) -> None:
        for one in fields(self):
            low, high = one.metadata.get("at_least"), one.metadata.get("at_most")
            value = getattr(self, one.name)
            if low is None or value is None:
                continue
            if allowed := range_missed(value, low, high):
                option = one.name.replace("_", "-")
                raise ConfigError(f"--{option} must be {allowed}, not {value:g}")


@dataclass(frozen=True, kw_only=True)
class SplitSettings(Limited):
    val_share: float = setting(
        0.2, "Share of each domain kept for validation.", at_least=0, at_most=MOST_SHARE
    )
    seed: int = setting(0, SEED)


@dataclass(frozen=True, kw_only=True)
class Builder(Limited, ABC):
    """One data set, asked for. `build` writes its manifest, whole or not at all."""

    example: ClassVar[str]  # a command, as --help and the documentation show it
    resumes: ClassVar[bool] = False  # takes long, and goes on where it was stopped

    @abstractmethod
    def build(self, watch: Watch) -> Built: ...

    def when_stopped(self) -> str:
        """What becomes of one that `resumes`, said to whoever stops it."""
        return "stopped; the same command goes on"
