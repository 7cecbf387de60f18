"""A folder beside the data set that it should be."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from acclimate.build.base import listed
from acclimate.build.domainbed.expected import Benchmark
from acclimate.core.text import count


@dataclass(frozen=True, kw_only=True)
class DomainCheck:
    """One domain as found, beside what was expected; None where there is no expectation."""

    domain: str
    folder: str | None  # None: it is not there
    images: int
    expected: int | None
    classes: int
    expected_classes: int


@dataclass(frozen=True, kw_only=True)
class FolderCheck:
    """A folder beside the data set that it should be."""

    title: str
    edition: str  # the one that is nearest
    images: int
    expected: int
    domains: tuple[DomainCheck, ...]
    left_out: Mapping[str, int]  # reason -> images
    unlisted: int  # lines of the drop list that match no image
    others: tuple[str, ...]  # files that are no images of a domain
    empty: tuple[str, ...]  # images of no bytes

    def differences(self) -> list[str]:
        """Everything that is not as expected, one sentence each."""
        found = [line for domain in self.domains for line in _differences(domain)]
        found += [
            f"{count(number, 'image')} left out: {why}" for why, number in self.left_out.items()
        ]
        if self.unlisted:
            verb = "matches" if self.unlisted == 1 else "match"
            found.append(f"{count(self.unlisted, 'line')} of the drop list {verb} no image")
        if self.empty:
            found.append(f"{count(len(self.empty), 'image')} of no bytes: {listed(self.empty)}")
        if self.others:
            found.append(f"files that are no images of a domain: {listed(self.others)}")
        return found

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "differences": self.differences()}


def compare(
    expected: Benchmark,
    folders: Mapping[str, str],
    rows: Sequence[tuple[str, str]],
    **others: Any,
) -> FolderCheck:
    """`rows` are the domain and the class of each image, `others` further fields of the check."""
    images = Counter(domain for domain, _ in rows)
    classes: dict[str, set[str]] = defaultdict(set)
    for domain, label in rows:
        classes[domain].add(label)
    edition, numbers = min(
        expected.editions.items(),
        key=lambda item: sum(abs(images[domain] - number) for domain, number in item[1].items()),
    )
    extra = sorted(set(images) - set(expected.domains))
    domains = tuple(
        DomainCheck(
            domain=domain,
            folder=folders.get(domain),
            images=images[domain],
            expected=numbers.get(domain),
            classes=len(classes[domain]),
            expected_classes=expected.classes,
        )
        for domain in (*expected.domains, *extra)
    )
    return FolderCheck(
        title=expected.title,
        edition=edition,
        images=len(rows),
        expected=sum(numbers.values()),
        domains=domains,
        **others,
    )


def _differences(found: DomainCheck) -> list[str]:
    name = found.domain
    if found.expected is None:
        return [f"domain '{name}' with {count(found.images, 'image')} is extra"]
    if found.folder is None or not found.images:
        return [f"domain '{name}' is missing: {found.expected} images expected"]
    lines = []
    more = found.images - found.expected
    if more:
        word = "more" if more > 0 else "fewer"
        held = count(found.images, "image")
        lines.append(f"domain '{name}' has {held}, {abs(more)} {word} than expected")
    if found.classes != found.expected_classes:
        held = count(found.classes, "class", "classes")
        lines.append(f"domain '{name}' has {held}, not {found.expected_classes}")
    return lines
