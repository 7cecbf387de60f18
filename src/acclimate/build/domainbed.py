"""DomainBed's image folders, checked against what each data set should hold.

Nothing is downloaded. Missing and extra domains, images and classes are listed in the check, and
extra images stay unless they are asked to go.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from acclimate.build.base import (
    OUT,
    Builder,
    Built,
    Listing,
    SplitSettings,
    argument,
    differences,
    flag,
    required,
    written,
)
from acclimate.config import setting
from acclimate.core.errors import ManifestError, unknown
from acclimate.core.progress import Watch
from acclimate.core.text import DASH, count, listed
from acclimate.data import readers
from acclimate.data.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set's expected content, and other names that its folders go by."""

    title: str
    # As it is, or was, given out: images of each domain.
    editions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # of the domains, where their numbers of images are not published
    classes: int  # how many each domain has
    sources: tuple[str, ...]  # official pages
    licence: str
    aliases: Mapping[str, str] = field(default_factory=dict)  # of domains

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(next(iter(self.editions.values()), self.names))

    def domain(self, folder: str) -> str:
        """The authors' name of the domain in `folder`; the folder's own where it is extra."""
        names = {folded(name): name for name in self.domains}
        return names.get(folded(folder)) or self.aliases.get(folded(folder)) or folder

    def domains_in(self, folder: Path) -> set[str]:
        """The expected domains that `folder` holds."""
        names = (self.domain(entry.name) for entry in folder.iterdir() if entry.is_dir())
        return set(names) & set(self.domains)


def benchmark(name: str) -> Benchmark:
    for known, expected in BENCHMARKS.items():
        if folded(known) == folded(name):
            return expected
    raise unknown(f"there is no benchmark '{name}'", name, BENCHMARKS)


def folded(name: str) -> str:
    """Equal for 'Real World', 'Real_World' and 'realworld'."""
    return "".join(filter(str.isalnum, name.casefold()))


def _read_benchmarks() -> dict[str, Benchmark]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    benchmarks = {name: Benchmark(**values) for name, values in tomllib.loads(text).items()}
    # In the file a domain lists its other names.
    return {
        name: replace(
            one, aliases={other: d for d, names in one.aliases.items() for other in names.split()}
        )
        for name, one in benchmarks.items()
    }


BENCHMARKS = _read_benchmarks()


@dataclass(frozen=True, kw_only=True)
class DomainCheck:
    """One domain of a folder, beside what was expected; None where no number is known."""

    domain: str
    folder: str | None  # None: it is not there
    images: int
    expected: int | None
    classes: int
    expected_classes: int
    extra: bool = False  # no domain of the data set

    def differences(self) -> Iterator[str]:
        name, images = self.domain, count(self.images, "image")
        if self.extra:
            yield f"domain '{name}' with {images} is extra"
            return
        yield from differences(f"domain '{name}'", self.images, self.expected)
        if self.images and self.classes != self.expected_classes:
            classes = count(self.classes, "class", "classes")
            yield f"domain '{name}' has {classes}, not {self.expected_classes}"


@dataclass(frozen=True, kw_only=True)
class FolderCheck:
    """A folder beside the data set that it should be."""

    title: str
    edition: str  # the one that is nearest
    images: int
    expected: int | None
    domains: Sequence[DomainCheck]
    left_out: Mapping[str, int]  # reason -> images
    unlisted: int  # lines of the drop list that match no image

    def differences(self) -> list[str]:
        """Everything that is not as expected, one sentence each."""
        lines = [line for domain in self.domains for line in domain.differences()]
        for reason, images in self.left_out.items():
            lines.append(f"{count(images, 'image')} left out: {reason}")
        if self.unlisted:
            verb = "matches" if self.unlisted == 1 else "match"
            lines.append(f"{count(self.unlisted, 'line')} of the drop list {verb} no image")
        return lines


def _check_domains(
    expected: Benchmark, folders: Mapping[str, str], table: pa.Table
) -> tuple[str, list[DomainCheck]]:
    """(nearest edition, its domains beside those of `table`). `folders` are named by domain."""
    grouped = table.group_by("domain").aggregate([("label", "count"), ("label", "count_distinct")])
    sizes = {row["domain"]: row for row in grouped.to_pylist()}
    images = {domain: row["label_count"] for domain, row in sizes.items()}
    edition, numbers = min(
        expected.editions.items(),
        key=lambda item: sum(abs(images.get(d, 0) - number) for d, number in item[1].items()),
        default=("numbers of images are not published", {}),
    )
    checks = [
        DomainCheck(
            domain=domain,
            folder=folders.get(domain),
            images=images.get(domain, 0),
            expected=numbers.get(domain),
            classes=sizes[domain]["label_count_distinct"] if domain in sizes else 0,
            expected_classes=expected.classes,
            extra=domain not in expected.domains,
        )
        for domain in (*expected.domains, *sorted(set(images) - set(expected.domains)))
    ]
    return edition, checks


@dataclass(frozen=True, kw_only=True)
class DomainBed(Builder):
    """Domains get the names that their authors gave them, whatever the folders are called."""

    example = "acclimate build domainbed --dataset pacs data/PACS --out pacs.parquet"

    root: Path = argument("The folder that holds the domains.")
    dataset: str = required("vlcs, pacs, office-home, domainnet, terra-incognita or sviro.")
    out: Path = required(OUT)
    drop_list: Path | None = setting(
        None, "Images to leave out, such as domain_net_duplicates.txt of DomainBed."
    )
    only_expected: bool = flag("Leave out domains that are extra.")
    splits: SplitSettings = field(default_factory=SplitSettings)

    def build(self, watch: Watch) -> Built:
        manifest, check = self.checked()
        found = check.differences()
        header = ("domain", "folder", "images", "expected", "classes", "expected")
        rows = [
            [DASH if value is None else str(value) for value in astuple(domain)[: len(header)]]
            for domain in check.domains
        ]
        nearest = f"nearest edition: {check.edition} ({check.expected} images)"
        title = f"{check.title}, {nearest if check.expected is not None else check.edition}"
        summary: list[str | Listing] = [title, Listing(header, rows)]
        facts = {"check": {**asdict(check), "differences": found}}
        built = Built(manifest=manifest, out=self.out, facts=facts, summary=summary)
        known = benchmark(self.dataset)
        return written(built, known.licence, known.sources[0].partition(" ")[0], found)

    def checked(self) -> tuple[Manifest, FolderCheck]:
        """The manifest of the folder, and the folder beside what it should be."""
        expected = benchmark(self.dataset)
        listed_images = set() if self.drop_list is None else _drop_list(self.drop_list, expected)
        root = _domain_folder(self.root.expanduser(), expected)
        source = f"{root.resolve().name}/"
        folders, table, paths = _read(root, source, expected)
        on_list = [path in listed_images for path in paths]
        extra = [
            self.only_expected and domain not in expected.domains
            for domain in table["domain"].to_pylist()
        ]
        stays = [not (drop or stray) for drop, stray in zip(on_list, extra, strict=True)]
        table = table.filter(pa.array(stays))
        reasons = {"drop list": sum(on_list), "not a domain of the data set": sum(extra)}
        edition, domains = _check_domains(expected, folders, table)
        manifest = Manifest.from_rows(table, root, source, **asdict(self.splits))
        manifest.check()
        return manifest, FolderCheck(
            title=expected.title,
            edition=edition,
            images=len(manifest),
            expected=sum(numbers.values()) if (numbers := expected.editions.get(edition)) else None,
            domains=domains,
            left_out={reason: images for reason, images in reasons.items() if images},
            unlisted=len(listed_images - set(paths)),
        )


def _domain_folder(root: Path, expected: Benchmark) -> Path:
    """`root`, or a folder in it, as archives make one: whichever holds most of the domains."""
    if not root.is_dir():
        raise ManifestError(
            f"there is no folder '{root}' with {expected.title}; "
            f"get it from {' or '.join(expected.sources)}; licence: {expected.licence}"
        )
    inside = sorted(entry for entry in root.iterdir() if entry.is_dir())
    best = max([root, *inside], key=lambda folder: len(expected.domains_in(folder)))
    present = expected.domains_in(best)
    if not present:
        names = listed([folder.name for folder in inside]) if inside else "no folders"
        raise ManifestError(
            f"{root} has no domain of {expected.title} ({', '.join(expected.domains)}); it has "
            f"{names}: name the folder that holds the domains, or another --dataset"
        )
    # One folder called sketch makes no DomainNet.
    if 2 * len(present) < len(expected.domains):
        remedy = "check --dataset and the folder"
        for name, other in BENCHMARKS.items():
            if 2 * len(other.domains_in(best)) >= len(other.domains):
                remedy = f"it looks like {other.title}, --dataset {name}"
        raise ManifestError(
            f"{best} has {len(present)} of the {len(expected.domains)} domains of "
            f"{expected.title} ({', '.join(sorted(present))}); {remedy}"
        )
    return best


def _read(
    root: Path, source: str, expected: Benchmark
) -> tuple[dict[str, str], pa.Table, list[str]]:
    """(folder of each domain, table of image, label, domain, images as drop lists name them)."""
    table, names = readers.read_folder(root, source)
    folders: dict[str, str] = {}
    for folder in names:
        domain = expected.domain(folder)
        if domain in folders:
            raise ManifestError(
                f"{source} has '{folders[domain]}' and '{folder}', which are both {domain}; "
                "remove one of them"
            )
        folders[domain] = folder
    images = table["image"].to_pylist()
    domains = [expected.domain(folder) for folder in table["domain"].to_pylist()]
    paths = [f"{d}/{image.partition('/')[2]}" for d, image in zip(domains, images, strict=True)]
    # "Alarm_Clock" in one domain and "alarm clock" in another are one class, spelt as first seen.
    spelling: dict[str, str] = {}
    labels = [spelling.setdefault(folded(label), label) for label in table["label"].to_pylist()]
    columns = {"image": images, "label": labels, "domain": domains}
    renamed = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    return folders, renamed, paths


def _drop_list(path: Path, expected: Benchmark) -> set[str]:
    path = path.expanduser()
    if not path.is_file():
        raise ManifestError(f"there is no drop list '{path}'; check the path")
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    split = (line.removeprefix("./").partition("/") for line in lines if line)
    return {f"{expected.domain(folder)}/{rest}" for folder, _, rest in split}
