"""`build fetch`: the manifest of the images that exist, and what is lost."""

from dataclasses import astuple, dataclass, field
from pathlib import Path

from acclimate.build.base import (
    Builder,
    Built,
    Listing,
    argument,
    in_short,
    required,
)
from acclimate.build.fetch.images import FetchReport, FetchSettings, fetch_images
from acclimate.config import setting
from acclimate.core.errors import ManifestError
from acclimate.core.progress import Watch
from acclimate.core.text import DASH, percent
from acclimate.data.manifest import Manifest
from acclimate.data.readers import require_name

_LOSSES = ("images", "there", "fetched now", "missing", "dead", "failed", "lost %", "classes lost")


@dataclass(frozen=True, kw_only=True)
class Fetch(Builder):
    example = "acclimate build fetch geo.parquet --root images --out geo-here.parquet"
    resumes = True

    data: Path = argument("A manifest with a column 'url'.")
    root: Path = required("Folder that the images are in, or go to.")
    out: Path | None = setting(None, "Write a manifest of the images that exist.")
    settings: FetchSettings = field(default_factory=FetchSettings)

    def build(self, watch: Watch) -> Built:
        if self.out is not None:
            self._require_file(self.out)
        report = fetch_images(Manifest.open(self.data), self.root, self.settings, watch=watch)
        left = report.manifest
        out = self.out if len(left) else None
        if out is not None:
            left.write(out)
        wanted = self.out is not None or not self.settings.check_only
        return Built(
            manifest=left,
            out=out,
            facts=report.as_dict(),
            told=[*_told(report), *([in_short(left)] if out is not None else [])],
            problem=_nothing_left(report) if wanted and not len(left) else None,
        )

    def _require_file(self, out: Path) -> None:
        """Refuses a name that could only be refused after the work."""
        require_name(out)
        if out.is_dir():
            raise ManifestError(f"--out: '{out}' is a folder; name a file that ends in .parquet")


def _nothing_left(report: FetchReport) -> ManifestError:
    reason, number = next(iter(report.reasons.items()), ("no rows", 0))
    return ManifestError(
        f"no image of {report.manifest.source} is there ({number} × {reason}); "
        "mend its URLs or --root, no manifest was written"
    )


def _told(report: FetchReport) -> list[str | Listing]:
    rows = [
        (
            *(DASH if value is None else str(value) for value in astuple(loss)[:8]),
            percent(loss.lost_share),
            str(loss.classes - loss.classes_left),
        )
        for loss in report.domains
    ]
    return [
        Listing(("domain", "role", *_LOSSES), rows),
        *(f"gone: {number} × {reason}" for reason, number in report.reasons.items()),
        *([f"journal: {report.journal}"] if report.journal is not None else []),
    ]
