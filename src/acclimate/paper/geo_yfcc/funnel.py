"""What became of every row: the stages, the domains and what was odd."""

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
