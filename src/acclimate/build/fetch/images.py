"""The images of a manifest: which are there, which can be fetched, which are gone for good.

Every image is decoded before it counts as there. What was found out is appended to a journal in
the image folder, so that a repeated command goes on where the last one stopped and leaves dead
links alone.
"""

import errno
import hashlib
import json
import os
import posixpath
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from acclimate.build.base import Limited, flag
from acclimate.build.fetch.download import PRIVATE, Downloader, DownloadSettings, Failed
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ImageError, ManifestError
from acclimate.core.files import (
    append_line,
    clear_temporary,
    parse_json,
    read_bytes,
    write_atomically,
)
from acclimate.core.progress import Watch, unwatched
from acclimate.core.text import timestamp
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest

JOURNAL = "fetch.jsonl"
MOST = 1 << 32  # bytes of the journal, some 200 for each image
_FLUSH = 64  # lines are written together: a sync for each would take longer than the download
_HINT = 64  # a JPEG is read to its end at an eighth of its size too, but faster
# What is wrong with one image's name; a full disk is not its fault, and would be the next one's.
_NO_PLACE = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR)


@dataclass(frozen=True, kw_only=True)
class FetchSettings(Limited):
    workers: int = setting(16, "Images fetched at a time.", at_least=1)
    download: DownloadSettings = field(default_factory=DownloadSettings)
    check_only: bool = flag("Look which images exist; fetch nothing.")
    retry_dead: bool = flag("Try links again that were found dead.")
    repeats: int = 10  # so many links to one and the same file lead to a placeholder


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one image: `there`, `fetched`, `dead` (not tried again) or `failed`.

    `missing` is said of images that were only looked at, and is not written down.
    """

    image: str
    status: str
    time: str = field(default_factory=timestamp)
    url: str | None = None
    reason: str | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def present(self) -> bool:
        return self.status in ("there", "fetched")


class Journal:
    """Append-only lines, from several threads; a line that a crash tore off is cut before the next
    is written. What is waiting is written by `flush`, or with the next line that cannot wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []
        self._mended = False
        self._turn = threading.Lock()

    def read(self) -> dict[str, Entry]:
        """Returns the last entry of each image."""
        entries: dict[str, Entry] = {}
        lines = read_bytes(self.path, MOST).split(b"\n")[:-1] if self.path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                entry = Entry(**parse_json(line))
            except (ValueError, TypeError):
                raise ManifestError(
                    f"{self.path}, line {number}: not an entry; restore or delete the line"
                ) from None
            entries[entry.image] = entry
        return entries

    def add(self, entry: Entry, *, now: bool = False) -> None:
        facts = {name: value for name, value in asdict(entry).items() if value is not None}
        with self._turn:
            self._waiting.append(json.dumps(facts, ensure_ascii=False))
            if now or len(self._waiting) >= _FLUSH:
                self._write(sync=not now)

    def flush(self) -> None:
        with self._turn:
            self._write(sync=True)

    def _write(self, *, sync: bool) -> None:
        if not self._waiting:
            return
        if not self._mended:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                os.truncate(self.path, read_bytes(self.path, MOST).rfind(b"\n") + 1)
        self._mended = False  # until the line is whole: another thread may write after a failure
        append_line(self.path, "\n".join(self._waiting), sync=sync)
        self._waiting.clear()
        self._mended = True


@dataclass(frozen=True, kw_only=True)
class DomainLoss:
    """What a domain keeps. Losses that differ between domains bias what is learnt from them."""

    domain: str
    role: str | None
    images: int
    there: int = 0  # already, before the command
    fetched: int = 0  # by this command
    missing: int = 0  # or unreadable, and only looked at
    dead: int = 0
    failed: int = 0  # may work another time
    classes: int
    classes_left: int

    @property
    def lost_share(self) -> float:
        return (self.missing + self.dead + self.failed) / self.images


@dataclass(frozen=True, eq=False)
class FetchReport:
    manifest: Manifest  # of the images that exist
    domains: tuple[DomainLoss, ...]
    reasons: Mapping[str, int]  # why images are gone -> how many
    journal: Path | None


def fetch_images(
    manifest: Manifest,
    root: str | Path,
    settings: FetchSettings | None = None,
    *,
    watch: Watch = unwatched,
) -> FetchReport:
    """Check the images of `manifest` below `root` and fetch those that are missing.

    The manifest's `url` column says from where. The report's manifest holds the rows whose images
    exist and decode, with `root` as its root.
    """
    settings = settings or FetchSettings()
    root = Path(root).expanduser()
    nearest = next((path for path in (root, *root.parents) if path.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise ConfigError(f"--root: '{nearest}' is a file; name a folder for the images")
    urls = _urls(manifest, settings)
    if not settings.check_only:
        for folder in {os.path.dirname(image) for image in urls}:  # noqa: PTH120 (millions)
            clear_temporary(root / folder)
    journal = Journal(root / JOURNAL)
    known = journal.read()
    downloader = Downloader(settings.download)
    fetcher = _Fetcher(root, urls, known, settings, downloader, journal)
    entries: dict[str, Entry] = {}
    status: Counter[str] = Counter()
    try:
        for entry in _in_parallel(fetcher.settle, list(urls), settings.workers, downloader.stop):
            entries[entry.image] = entry
            noted = entry == known.get(entry.image) or entry.status == "fetched"
            if not settings.check_only and not noted:
                journal.add(entry)
            status[fetcher.standing(entry)] += 1
            watch("images", len(entries), len(urls), _note(status, settings))
        for entry in _placeholders(entries, settings.repeats):
            entries[entry.image] = entry
            if not settings.check_only:
                (root / entry.image).unlink(missing_ok=True)
                journal.add(entry)
    finally:
        downloader.close()
        journal.flush()
    return _report(manifest, fetcher, entries, None if settings.check_only else journal.path)


def _urls(manifest: Manifest, settings: FetchSettings) -> dict[str, str | None]:
    """Image -> its URL, in the manifest's order."""
    names = manifest.table.column_names
    if "image" not in names or "bytes" in names:
        raise ManifestError(f"{manifest.source} has no image paths; there is nothing to fetch")
    if "url" not in names and not settings.check_only:
        raise ManifestError(f"{manifest.source} has no column 'url'; add one, or use --check-only")
    manifest.check(check_files=False)  # above all: no path may lead out of the root
    images = manifest.table["image"].to_pylist()
    if any(posixpath.normpath(image) == JOURNAL for image in images):
        raise ManifestError(
            f"{manifest.source} has an image named {JOURNAL}, as the list of what was fetched is; "
            f"rename it"
        )
    urls = manifest.table["url"].to_pylist() if "url" in names else [None] * len(images)
    first: dict[str, str | None] = {}
    for image, url in zip(images, urls, strict=True):
        first[image] = first.get(image) or url or None
    return first


@dataclass(frozen=True)
class _Fetcher:
    root: Path
    urls: Mapping[str, str | None]
    known: Mapping[str, Entry]  # by earlier commands
    settings: FetchSettings
    downloader: Downloader
    journal: Journal

    def settle(self, image: str) -> Entry:
        """Returns what is true of one image now, after trying to fetch it where it is missing."""
        url = self.urls[image]
        try:
            missing = self._missing(image)
            if isinstance(missing, Entry):
                return missing
            if self.settings.check_only:
                return Entry(image=image, status="missing", url=url, reason=missing)
            if self._known_dead(image):
                return self.known[image]
            return self._fetch(image, url)
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            reason = f"no place for it ({os.strerror(error.errno).lower()})"
            return Entry(image=image, status="dead", url=url, reason=reason)

    def _missing(self, image: str) -> Entry | str:
        """The entry of an image that is there, or why it is missing."""
        path, known = self.root / image, self.known.get(image)
        if not path.is_file():
            return "missing"
        size = path.stat().st_size
        if known is not None and known.present and known.bytes == size:
            return known  # decoded when it was written down
        try:
            decode(path, hint=_HINT)
        except ImageError as error:
            return f"unreadable: {error}"
        return Entry(image=image, status="there", bytes=size)

    def _known_dead(self, image: str) -> bool:
        """Whether there is no point in asking again."""
        known = self.known.get(image)
        if known is None or known.status != "dead" or known.url != self.urls[image]:
            return False
        allowed_now = self.settings.download.private and known.reason == PRIVATE
        return not self.settings.retry_dead and not allowed_now

    def _fetch(self, image: str, url: str | None) -> Entry:
        path = self.root / image
        if url is None:
            return Entry(image=image, status="dead", reason="no URL")
        try:
            if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
                raise Failed("a link leads out of the root", dead=True)
            content = self.downloader.get(url, _require_image)
        except Failed as failure:
            status = "dead" if failure.dead else "failed"
            return Entry(image=image, status=status, url=url, reason=failure.reason)
        digest = hashlib.sha256(content).hexdigest()
        entry = Entry(image=image, status="fetched", url=url, bytes=len(content), sha256=digest)
        # First: of a file that nobody wrote down, a repeated command would not know that it came
        # from here, and could not tell that many links led to it.
        self.journal.add(entry, now=True)
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
        return entry

    def standing(self, entry: Entry) -> str:
        """The status as of this command: what an earlier one fetched is there."""
        earlier = entry.present and entry is self.known.get(entry.image)
        return "there" if earlier else entry.status


def _require_image(content: bytes) -> None:
    try:
        decode(content, hint=_HINT)
    except ImageError as error:
        # Cut short on the way, perhaps; anything else that is no image will not become one.
        raise Failed(f"no image: {error}", dead=str(error) != "truncated") from None


def _in_parallel(
    settle: Callable[[str], Entry],
    images: Sequence[str],
    workers: int,
    stop: Callable[[], None],
) -> Iterator[Entry]:
    """Entries as they come, with a bounded number of images under way; `stop` ends their waits."""
    pool = ThreadPoolExecutor(workers)
    waiting = iter(images)
    under_way: set[Future[Entry]] = set()
    try:
        while True:
            more = islice(waiting, 8 * workers - len(under_way))
            under_way |= {pool.submit(settle, image) for image in more}
            if not under_way:
                return
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        stop()
        pool.shutdown(wait=True, cancel_futures=True)


def _placeholders(entries: Mapping[str, Entry], repeats: int) -> list[Entry]:
    """Fetched images that are the same file under many links: a picture that says "gone"."""
    links: dict[str, set[str]] = defaultdict(set)
    for entry in entries.values():
        # Also of those that were found out before a command was killed.
        if entry.sha256 is not None and entry.url is not None:
            links[entry.sha256].add(entry.url)
    reason = "placeholder: one file for many links"
    return [
        replace(entry, status="dead", time=timestamp(), reason=reason)
        for entry in entries.values()
        if entry.present and len(links.get(entry.sha256 or "", ())) >= repeats
    ]


def _note(status: Mapping[str, int], settings: FetchSettings) -> str:
    if settings.check_only:
        return f"{status['there']} there, {status['missing']} missing"
    return f"{status['fetched']} fetched, {status['dead'] + status['failed']} gone"


def _report(
    manifest: Manifest, fetcher: _Fetcher, entries: Mapping[str, Entry], journal: Path | None
) -> FetchReport:
    images = manifest.table["image"].to_pylist()
    present = np.array([entries[image].present for image in images], dtype=bool)
    usable = replace(manifest.select(np.flatnonzero(present)), root=fetcher.root.resolve())
    roles = manifest.roles()
    losses = []
    for domain in manifest.domains:
        rows = manifest.rows(domain=domain)
        of_domain = {images[row] for row in rows.tolist()}
        labels = manifest.label_index[rows]
        losses.append(
            DomainLoss(
                domain=domain,
                role=roles.get(domain),
                images=len(of_domain),
                classes=len(np.unique(labels)),
                classes_left=len(np.unique(labels[present[rows]])),
                **Counter(fetcher.standing(entries[image]) for image in of_domain),
            )
        )
    reasons = Counter(entry.reason or "" for entry in entries.values() if not entry.present)
    return FetchReport(usable, tuple(losses), dict(reasons.most_common()), journal)
