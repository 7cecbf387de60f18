"""What DomainBed's image folders should hold: domains, classes and numbers of images."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from acclimate.core.errors import unknown


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set's expected content, and other names that its folders go by."""

    title: str
    editions: Mapping[str, Mapping[str, int]]  # as it is, or was, given out: images of each domain
    classes: int  # how many each domain has
    sources: tuple[str, ...]  # official pages
    licence: str
    aliases: Mapping[str, str]  # of domains
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    lists: tuple[str, ...] = ()  # files that its authors put beside the domains

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(next(iter(self.editions.values())))


def benchmark(name: str) -> Benchmark:
    key = folded(name)
    for known, expected in BENCHMARKS.items():
        if folded(known) == key:
            return expected
    raise unknown(f"there is no benchmark '{name}'", name, BENCHMARKS)


def folded(name: str) -> str:
    """Equal for 'Real World', 'Real_World' and 'realworld'."""
    return "".join(filter(str.isalnum, name.casefold()))


def _read() -> dict[str, Benchmark]:
    text = Path(__file__).with_name("benchmarks.toml").read_text(encoding="utf-8")
    read = {name: Benchmark(**values) for name, values in tomllib.loads(text).items()}
    # In the file a domain lists its other names.
    return {
        name: replace(
            one, aliases={other: d for d, names in one.aliases.items() for other in names.split()}
        )
        for name, one in read.items()
    }


BENCHMARKS = _read()
