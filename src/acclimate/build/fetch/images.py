"""The images of a manifest: which are there, which can be fetched, which are gone for good.

Every image is decoded before it counts as there. What was found out is appended to a journal in
the image folder, so that a repeated command goes on where the last one stopped and leaves dead
links alone.
"""

import errno
import hashlib
import os
import posixpath
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from acclimate.build.base import flag
from acclimate.build.fetch.connection import Failed
from acclimate.build.fetch.download import PRIVATE, Downloader, DownloadSettings
from acclimate.build.fetch.journal import JOURNAL, Entry, Journal
from acclimate.config import setting
from acclimate.core.errors import ConfigError, ImageError, ManifestError
from acclimate.core.files import clear_temporary, write_atomically
from acclimate.core.progress import Watch, unwatched
from acclimate.data.images import decode
from acclimate.data.manifest import Manifest

_HINT = 64  # a JPEG is read to its end at an eighth of its size too, but faster


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    workers: int = setting(16, "Images fetched at a time.")
    download: DownloadSettings = field(default_factory=DownloadSettings)
    check_only: bool = flag("Look which images exist; fetch nothing.")
    retry_dead: bool = flag("Try links again that were found dead.")
    repeats: int = 10  # so many links to one and the same file lead to a placeholder

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"--workers is {self.workers}; give at least 1")
        if self.repeats < 2:  # no option of the command line
            raise ConfigError(f"'repeats' is {self.repeats}; give at least 2")
        if not self.download.timeout > 0:  # NaN is not above 0
            raise ConfigError(f"--timeout is {self.download.timeout:g}; give more than 0 seconds")
        if self.download.retries < 0:
            raise ConfigError(f"--retries is {self.download.retries}; give at least 0")


@dataclass(frozen=True, kw_only=True)
class DomainLoss:
    """What a domain keeps. Losses that differ between domains bias what is learnt from them."""

    domain: str
    role: str | None
    images: int
    there: int  # already, before the command
    fetched: int  # by this command
    missing: int  # or unreadable, and only looked at
    dead: int
    failed: int  # may work another time
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

    def as_dict(self) -> dict[str, object]:
        losses = [asdict(loss) | {"lost_share": loss.lost_share} for loss in self.domains]
        return {"losses": losses, "reasons": dict(self.reasons)}


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
    _require_folder(root)
    urls = _urls(manifest, settings)
    if not settings.check_only:
        for folder in {os.path.dirname(image) for image in urls}:  # noqa: PTH120 (millions)
            clear_temporary(root / folder)
    journal = Journal(root / JOURNAL)
    known = journal.read()
    downloader = Downloader(settings.download)
    found: dict[str, Entry] = {}
    status: Counter[str] = Counter()

    def settle(image: str) -> Entry:
        return _settle(image, urls[image], root, known.get(image), settings, downloader)

    try:
        for entry in _in_parallel(settle, list(urls), settings.workers, downloader.stop):
            found[entry.image] = entry
            if not settings.check_only and entry != known.get(entry.image):
                journal.add(entry)
            status[_standing(entry, known)] += 1
            watch("images", len(found), len(urls), _note(status, settings))
        for entry in _placeholders(found, settings.repeats):
            found[entry.image] = entry
            if not settings.check_only:
                (root / entry.image).unlink(missing_ok=True)
                journal.add(entry)
    finally:
        downloader.close()
        journal.flush()
    return _report(manifest, root, found, known, None if settings.check_only else journal.path)


def _require_folder(root: Path) -> None:
    """Refuses a root that is, or would lie below, a file."""
    nearest = next((path for path in (root, *root.parents) if path.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise ConfigError(f"--root: '{nearest}' is a file; name a folder for the images")


def _urls(manifest: Manifest, settings: FetchSettings) -> dict[str, str | None]:
    """Image -> its URL, in the manifest's order."""
    names = manifest.table.column_names
    if "image" not in names or "bytes" in names:
        raise ManifestError(f"{manifest.source} has no image paths; there is nothing to fetch")
    if "url" not in names and not settings.check_only:
        raise ManifestError(f"{manifest.source} has no column 'url'; add one, or use --check-only")
    manifest.check(check_files=False)  # above all: no path may lead out of the root
    images = manifest.table["image"].to_pylist()
    urls = manifest.table["url"].to_pylist() if "url" in names else [None] * len(images)
    found: dict[str, str | None] = {}
    if any(posixpath.normpath(image) == JOURNAL for image in images):
        raise ManifestError(
            f"{manifest.source} has an image named {JOURNAL}, as the list of what was fetched is; "
            f"rename it"
        )
    for image, url in zip(images, urls, strict=True):
        found[image] = found.get(image) or url or None
    return found


def _settle(
    image: str,
    url: str | None,
    root: Path,
    before: Entry | None,
    settings: FetchSettings,
    downloader: Downloader,
) -> Entry:
    """What is true of one image now, after trying to fetch it where it is missing."""
    try:
        return _settled(image, url, root, before, settings, downloader)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise  # a full disk is not this image's fault, and would be the next one's too
        reason = f"no place for it ({os.strerror(error.errno).lower()})"
        return Entry(image=image, status="dead", time=_now(), url=url, reason=reason)


_NO_PLACE = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR)


def _settled(
    image: str,
    url: str | None,
    root: Path,
    before: Entry | None,
    settings: FetchSettings,
    downloader: Downloader,
) -> Entry:
    path = root / image
    size = path.stat().st_size if path.is_file() else None
    if size is not None:
        if before is not None and before.present and before.bytes == size:
            return before  # decoded when it was written down
        try:
            decode(path, hint=_HINT)
            return Entry(image=image, status="there", time=_now(), bytes=size)
        except ImageError as error:
            missing = f"unreadable: {error}"
    else:
        missing = "missing"
    if settings.check_only:
        return Entry(image=image, status="missing", time=_now(), url=url, reason=missing)
    if before is not None and _known_dead(before, url, settings):
        return before
    if url is None:
        return Entry(image=image, status="dead", time=_now(), reason="no URL")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        reason = "a link leads out of the root"
        return Entry(image=image, status="dead", time=_now(), url=url, reason=reason)
    return _fetch(image, url, path, downloader)


def _known_dead(before: Entry, url: str | None, settings: FetchSettings) -> bool:
    """Whether there is no point in asking again."""
    allowed_now = settings.download.private and before.reason == PRIVATE
    same = before.status == "dead" and before.url == url
    return same and not settings.retry_dead and not allowed_now


def _fetch(image: str, url: str, path: Path, downloader: Downloader) -> Entry:
    try:
        content = downloader.get(url, _require_image)
    except Failed as failure:
        status = "dead" if failure.dead else "failed"
        return Entry(image=image, status=status, time=_now(), url=url, reason=failure.reason)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return Entry(
        image=image,
        status="fetched",
        time=_now(),
        url=url,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


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


def _placeholders(found: Mapping[str, Entry], repeats: int) -> list[Entry]:
    """Fetched images that are the same file under many links: a picture that says "gone"."""
    links: dict[str, set[str]] = defaultdict(set)
    for entry in found.values():
        if entry.sha256 is not None and entry.url is not None and entry.present:
            links[entry.sha256].add(entry.url)
    return [
        replace(entry, status="dead", time=_now(), reason="placeholder: one file for many links")
        for entry in found.values()
        if entry.present and len(links.get(entry.sha256 or "", ())) >= repeats
    ]


def _standing(entry: Entry, known: Mapping[str, Entry]) -> str:
    """The status as of this command: what an earlier one fetched is there."""
    earlier = entry.present and entry is known.get(entry.image)
    return "there" if earlier else entry.status


def _note(status: Mapping[str, int], settings: FetchSettings) -> str:
    if settings.check_only:
        return f"{status['there']} there, {status['missing']} missing"
    return f"{status['fetched']} fetched, {status['dead'] + status['failed']} gone"


def _report(
    manifest: Manifest,
    root: Path,
    found: Mapping[str, Entry],
    known: Mapping[str, Entry],
    journal: Path | None,
) -> FetchReport:
    images = manifest.table["image"].to_pylist()
    kept = np.array([found[image].present for image in images], dtype=bool)
    left = replace(manifest.select(np.flatnonzero(kept)), root=root.resolve())
    roles = manifest.roles()
    losses = []
    for domain in manifest.domains:
        rows = manifest.rows(domain=domain)
        own = {images[row] for row in rows.tolist()}
        status = Counter(_standing(found[image], known) for image in own)
        labels = manifest.label_index[rows]
        losses.append(
            DomainLoss(
                domain=domain,
                role=roles.get(domain),
                images=len(own),
                there=status["there"],
                fetched=status["fetched"],
                missing=status["missing"],
                dead=status["dead"],
                failed=status["failed"],
                classes=len(np.unique(labels)),
                classes_left=len(np.unique(labels[kept[rows]])),
            )
        )
    reasons = Counter(entry.reason or "" for entry in found.values() if not entry.present)
    return FetchReport(left, tuple(losses), dict(reasons.most_common()), journal)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
