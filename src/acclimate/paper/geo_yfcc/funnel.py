"""What became of every row: the stages, the domains and what was odd, as data and as Markdown."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from acclimate.data.columns import SPLITS
from acclimate.paper.geo_yfcc.reading import LOSSES, ODDITIES
from acclimate.paper.geo_yfcc.stages import GeoSettings, Selection, Stage


class DomainCounts(NamedTuple):
    domain: str
    role: str
    found: int  # photos before sampling
    photos: int
    train: int
    val: int
    test: int
    rows: int  # with a row for each label of a photo


@dataclass(frozen=True)
class Funnel:
    """From rows of metadata to rows of the manifest."""

    sources: dict[str, object]
    settings: GeoSettings
    rows: int
    stages: tuple[Stage, ...]
    photos: int
    manifest_rows: int
    categories: dict[str, int]
    domains: tuple[DomainCounts, ...]
    too_small: dict[str, int]  # photos of the countries that had too few
    odd: dict[str, int]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "stages": [stage._asdict() for stage in self.stages],
            "domains": [domain._asdict() for domain in self.domains],
        }

    def markdown(self) -> str:
        stages = [(stage.lost_to, _n(stage.lost), _n(stage.left)) for stage in self.stages]
        domains = [(domain.domain, domain.role, *map(_n, domain[2:])) for domain in self.domains]
        parts = [
            "# Geo-YFCC: what became of every row",
            *("", "## Sources and settings", ""),
            _table(("what", "value"), _facts({**self.sources, **asdict(self.settings)})),
            *("", "## Stages", ""),
            _table(("lost to", "lost", "left"), [("rows read", "", _n(self.rows)), *stages]),
            f"\n{_n(self.photos)} photos make {_n(self.manifest_rows)} rows: a photo has one for "
            "each of its labels, all in one split.",
            *("", "## Categories", ""),
            _table(("categories", "number"), [(k, _n(v)) for k, v in self.categories.items()]),
            *("", "## Domains", ""),
            _table(("domain", "role", "found", "photos", *SPLITS, "rows"), domains),
            *("", "## Odd, and kept", ""),
            _table(("what", "number"), [(what, _n(number)) for what, number in self.odd.items()]),
            *("", "## Countries with too few photos", ""),
            _table(("country", "photos"), [(k, _n(v)) for k, v in self.too_small.items()]),
            *("", *(f"Note: {note}." for note in self.notes)),
        ]
        return "\n".join(parts).rstrip() + "\n"


def funnel(
    counts: Counter[str],
    selection: Selection,
    settings: GeoSettings,
    sources: dict[str, object],
) -> Funnel:
    """Put the counts of the first pass before the stages of the second."""
    left = counts["rows"]
    stages = []
    for loss in (*LOSSES, "duplicates of a photo"):
        left -= counts[loss]
        stages.append(Stage(loss, counts[loss], left))
    small = {
        name: count for name, count in selection.found.items() if name not in selection.domains
    }
    return Funnel(
        sources,
        settings,
        counts["rows"],
        (*stages, *selection.stages),
        len(selection.photos),
        len(selection.photos.label),
        selection.categories,
        _domains(selection),
        dict(sorted(small.items(), key=lambda item: (-item[1], item[0]))),
        {name: counts[name] for name in (*ODDITIES, "damaged files", "files without rows")},
        selection.notes,
    )


def _domains(selection: Selection) -> tuple[DomainCounts, ...]:
    labels = np.diff(selection.photos.first)
    rows = np.bincount(selection.domain, labels, minlength=len(selection.domains))
    splits = [
        np.bincount(selection.domain[selection.split == split], minlength=len(selection.domains))
        for split in SPLITS
    ]
    counts = []
    for i, name in enumerate(selection.domains):
        train, val, test = (int(split[i]) for split in splits)
        before, photos = selection.found[name], train + val + test
        numbers = (before, photos, train, val, test, int(rows[i]))
        counts.append(DomainCounts(name, selection.roles[i], *numbers))
    return tuple(counts)


def _n(number: int) -> str:
    return f"{number:,}"


def _facts(values: dict[str, Any]) -> list[tuple[str, ...]]:
    listed = {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in values.items()
    }
    return [(name.replace("_", " "), value) for name, value in listed.items()]


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    # A country may well be called "A|B"; that is no column.
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
