"""The second pass: from photos with labels and countries to domains and splits.

The order is that of the paper's text: categories in enough countries, then countries with enough
photos, then a sample of the larger ones, then the roles of domains, then the splits of each domain.
A photo has one split, whatever number of rows its labels give it later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from acclimate.build.base import MOST_SHARE, Limited
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ManifestError
from acclimate.core.randomness import stream
from acclimate.core.text import count
from acclimate.data.columns import ROLES
from acclimate.paper.geo_yfcc.grid import NOWHERE
from acclimate.paper.splits import Split, require_split


@dataclass(frozen=True, kw_only=True)
class GeoSettings(Limited):
    """The paper's Geo-YFCC. Its text says 45 training domains; 62 countries leave 40."""

    min_countries: int = setting(5, "Countries that a category must be found in.", at_least=1)
    min_images: int = setting(10_000, "Photos that a country must have.", at_least=1)
    max_images: int = setting(20_000, "Photos sampled from a country.")
    test_images: int = setting(3_000, "Photos of a domain's test split.")
    # The paper does not say.
    val_share: float = setting(
        0.2, "Share of a domain's other photos kept for validation.", at_least=0, at_most=MOST_SHARE
    )
    split: Split = setting((40, 7, 15), "Domains to train, validate and test on; in proportion.")
    plurals: bool = setting(False, "Let regular plurals of a lemma match.")
    exclude_ilsvrc12: bool = True
    seed: int = setting(0, "Seed of samples, roles and splits.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_images < self.min_images:
            raise ConfigError(
                f"--max-images {self.max_images} is less than --min-images {self.min_images}; "
                "raise the one or lower the other"
            )
        if not 0 <= self.test_images < self.min_images:
            raise ConfigError(
                f"--test-images {self.test_images} leaves nothing of a country with --min-images "
                f"{self.min_images}; lower the one or raise the other"
            )
        require_split(self.split)


@dataclass(frozen=True, eq=False)
class Photos:
    """Photos and their labels: those of photo i are label[first[i]:first[i + 1]]."""

    photo_id: np.ndarray  # int64 [n]
    country: np.ndarray  # int16 [n]
    first: np.ndarray  # int64 [n + 1]
    label: np.ndarray  # int32 [m]
    place: np.ndarray  # int64 [n]: which candidate of the first pass it was

    def __len__(self) -> int:
        return len(self.photo_id)

    @property
    def owner(self) -> np.ndarray:
        """int32 [m]: the photo of each label."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))

    def take(self, rows: np.ndarray) -> "Photos":
        count = np.diff(self.first)[rows]
        first = np.concatenate([[0], np.cumsum(count)])
        index = np.repeat(self.first[rows] - first[:-1], count)
        index += np.arange(first[-1])
        return Photos(
            self.photo_id[rows], self.country[rows], first, self.label[index], self.place[rows]
        )

    def with_labels(self, chosen: np.ndarray) -> "Photos":
        """chosen: bool [labels]. Photos without any of these go."""
        mask = chosen[self.label]
        count = np.bincount(self.owner[mask], minlength=len(self))
        left = replace(self, label=self.label[mask], first=np.concatenate([[0], np.cumsum(count)]))
        return left.take(np.flatnonzero(count))


class Stage(NamedTuple):
    """What a stage took away, and what it left."""

    lost_to: str
    lost: int
    left: int


@dataclass(frozen=True, eq=False)
class Selection:
    """The photos of the benchmark, by domain and photo id, and how they came to be chosen."""

    photos: Photos
    domains: tuple[str, ...]
    roles: tuple[str, ...]  # of each domain
    domain: np.ndarray  # int64 [n]
    split: np.ndarray  # object [n]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
    found: dict[str, int]  # photos of each country before it was dropped or sampled
    categories: dict[str, int]  # how many there are after the stages that take some away


def once(photos: Photos) -> Photos:
    """Sorted by photo id; of a photo that comes several times, the first."""
    return photos.take(np.unique(photos.photo_id, return_index=True)[1])


def select(photos: Photos, names: Sequence[str], labels: int, settings: GeoSettings) -> Selection:
    """photos: distinct and sorted by id; names: of the countries; labels: how many there are."""
    # One name for what is left: with a hundred million rows, two generations are all that fit.
    left = [len(photos)]
    categories = {"with a photo in a country": _distinct(photos)}
    spread = _countries_of_labels(photos, len(names), labels) >= settings.min_countries
    photos = photos.with_labels(spread)
    left.append(len(photos))
    categories[f"in at least {settings.min_countries} countries"] = _distinct(photos)
    count = np.bincount(photos.country, minlength=len(names)).tolist()
    sizes = {name: n for name, n in zip(names, count, strict=True) if n}
    _require_domains(sizes, settings)
    enough = np.array(count) >= settings.min_images
    photos = photos.take(np.flatnonzero(enough[photos.country]))
    left.append(len(photos))
    photos = _sampled(photos, names, settings)
    left.append(len(photos))
    categories["in the benchmark"] = _distinct(photos)
    domains = tuple(sorted(name for name, n in sizes.items() if n >= settings.min_images))
    position = {name: number for number, name in enumerate(domains)}
    domain = np.array([position.get(name, NOWHERE) for name in names])[photos.country]
    order = np.lexsort((photos.photo_id, domain))
    roles, notes = _roles(domains, settings)
    return Selection(
        photos.take(order),
        domains,
        roles,
        domain[order],
        _splits(domain[order], domains, settings),
        _stages(left, settings),
        (*notes, *_rare_note(photos, len(names), labels, settings)),
        sizes,
        categories,
    )


def _distinct(photos: Photos) -> int:
    return int(np.count_nonzero(np.bincount(photos.label)))


def _stages(left: Sequence[int], settings: GeoSettings) -> tuple[Stage, ...]:
    lost_to = (
        f"only categories in fewer than {settings.min_countries} countries",
        f"countries with fewer than {settings.min_images} photos",
        f"beyond a sample of {settings.max_images} per country",
    )
    return tuple(
        Stage(name, before - after, after)
        for name, before, after in zip(lost_to, left, left[1:], strict=False)
    )


def _countries_of_labels(photos: Photos, countries: int, labels: int) -> np.ndarray:
    """int64 [labels]: in how many countries each is found."""
    seen = np.zeros((countries, labels), dtype=bool)
    seen[photos.country[photos.owner], photos.label] = True
    count: np.ndarray = seen.sum(axis=0)
    return count


def _rare_note(
    photos: Photos, countries: int, labels: int, settings: GeoSettings
) -> tuple[str, ...]:
    spread = _countries_of_labels(photos, countries, labels)
    rare = int(np.sum((spread > 0) & (spread < settings.min_countries)))
    if not rare:
        return ()
    left = count(rare, "category is", "categories are")
    return (
        f"{left} left in fewer than {settings.min_countries} countries, now that small countries "
        "are gone and large ones sampled, and not removed: that is the order of the paper",
    )


def _require_domains(sizes: dict[str, int], settings: GeoSettings) -> None:
    enough = sum(photos >= settings.min_images for photos in sizes.values())
    needed = sum(part > 0 for part in settings.split)
    if enough < needed:
        ranked = sorted(sizes.items(), key=lambda item: -item[1])
        largest = ", ".join(f"{name} {photos}" for name, photos in ranked[:3])
        have = count(enough, "country has", "countries have")
        raise ManifestError(
            f"{have} at least {settings.min_images} labelled photos, and --split "
            f"{' '.join(map(str, settings.split))} needs {needed}; the largest are "
            f"{largest or 'none'}: lower --min-images or give more metadata"
        )


def _sampled(photos: Photos, names: Sequence[str], settings: GeoSettings) -> Photos:
    """At most so many photos of each country, whatever the order they came in."""
    order = np.argsort(photos.country, kind="stable")
    countries, start = np.unique(photos.country[order], return_index=True)
    samples = []
    for country, rows in zip(countries, np.split(order, start[1:]), strict=True):
        if len(rows) > settings.max_images:
            rng = stream(settings.seed, "sample", names[country])
            rows = rows[rng.permutation(len(rows))[: settings.max_images]]
        samples.append(rows)
    return photos.take(np.sort(np.concatenate(samples)))


def _roles(
    domains: Sequence[str], settings: GeoSettings
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A role for each domain, and a note where there are not as many as asked for."""
    counts = shared_out(len(domains), settings.split)
    notes: tuple[str, ...] = ()
    if counts != settings.split:
        notes = (
            f"{sum(settings.split)} domains were asked for ({_listed(settings.split)}) and "
            f"{len(domains)} found: they are shared out in proportion, {_listed(counts)}",
        )
    roles = np.repeat(np.array(ROLES, dtype=object), counts)
    drawn = np.empty(len(domains), dtype=object)
    drawn[stream(settings.seed, "roles").permutation(len(domains))] = roles
    return tuple(drawn.tolist()), notes


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(f"{count} {role}" for count, role in zip(counts, ROLES, strict=True))


def shared_out(total: int, parts: tuple[int, int, int]) -> tuple[int, int, int]:
    """`total` in proportion to `parts`, by largest remainders; each that is not 0 gets one.

    >>> shared_out(62, (40, 7, 15)), shared_out(31, (40, 7, 15)), shared_out(3, (40, 7, 15))
    ((40, 7, 15), (20, 4, 7), (1, 1, 1))
    """
    exact = [total * part / sum(parts) for part in parts]
    counts = [max(int(share), int(part > 0)) for share, part in zip(exact, parts, strict=True)]
    while sum(counts) != total:
        short = sum(counts) < total
        gaps = [
            (share - count) if short else (count - share if count > 1 else -total)
            for share, count in zip(exact, counts, strict=True)
        ]
        counts[gaps.index(max(gaps))] += 1 if short else -1
    return counts[0], counts[1], counts[2]


def _splits(domain: np.ndarray, domains: Sequence[str], settings: GeoSettings) -> np.ndarray:
    """object [n]: in each domain `test_images` for test, and a share of the others for val."""
    split = np.full(len(domain), "train", dtype=object)
    bounds = np.searchsorted(domain, np.arange(len(domains) + 1))
    for number, name in enumerate(domains):
        start, stop = bounds[number], bounds[number + 1]
        shuffled = start + stream(settings.seed, "split", name).permutation(stop - start)
        test, rest = np.split(shuffled, [settings.test_images])
        split[test] = "test"
        # One stays to train on, however large the share.
        split[rest[: min(round(settings.val_share * len(rest)), len(rest) - 1)]] = "val"
    return split
