"""`build fetch`: the manifest of the images that exist, and what is lost."""

from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

from acclimate.build.base import Builder, Built, Listing, argument, in_short, required
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
        if self.out is not None:  # refused now, and not after the work
            require_name(self.out)
            if self.out.is_dir():
                folder = f"'{self.out}' is a folder"
                raise ManifestError(f"--out: {folder}; name a file that ends in .parquet")
        report = fetch_images(Manifest.open(self.data), self.root, self.settings, watch=watch)
        manifest, summary, problem = report.manifest, _summary(report), None
        out = self.out if len(manifest) else None
        if out is not None:
            manifest.write(out)
            summary.append(in_short(manifest))
        if not len(manifest) and (self.out is not None or not self.settings.check_only):
            reason, number = next(iter(report.reasons.items()), ("no rows", 0))
            problem = ManifestError(
                f"no image of {manifest.source} is there ({number} × {reason}); "
                "mend its URLs or --root, no manifest was written"
            )
        losses = [asdict(loss) | {"lost_share": loss.lost_share} for loss in report.domains]
        facts = {"losses": losses, "reasons": report.reasons}
        return Built(manifest=manifest, out=out, facts=facts, summary=summary, problem=problem)


def _summary(report: FetchReport) -> list[str | Listing]:
    rows = [
        (
            *(DASH if value is None else str(value) for value in astuple(loss)[:8]),
            percent(loss.lost_share),
            str(loss.classes - loss.classes_left),
        )
        for loss in report.domains
    ]
    lines = [f"gone: {number} × {reason}" for reason, number in report.reasons.items()]
    if report.journal is not None:
        lines.append(f"journal: {report.journal}")
    return [Listing(("domain", "role", *_LOSSES), rows), *lines]
