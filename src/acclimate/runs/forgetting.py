"""What is kept of a site, and how it goes: in caches and beside a run; what a run learned stays."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate.core.errors import DamagedFile
from acclimate.core.tensors import read_metadata
from acclimate.data.erasing import erase_digests, erase_features, erase_pixels
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import content_digests
from acclimate.records.folder import MODEL, is_output, stored
from acclimate.runs.growth import line_of

# By what follows the site's name: what `adapt`, `export` and `watch` write of one.
OF_A_SITE = {".safetensors": "domain state", ".npz": ".npz file", ".json": "log of a watch"}


@dataclass(frozen=True)
class Erased:
    """How much of a site went from the caches, and what of its images others show as well."""

    images: int
    shared: int  # that other sites of the data have, too, and that were left alone
    features: int
    pixels: int
    digests: int


def erase_images(run: Path, manifest: Manifest, site: str) -> Erased:
    """Remove from the caches what only this site's images left there; rows of features leave
    nothing."""
    if manifest.has_features:
        return Erased(0, 0, 0, 0, 0)
    rows = manifest.rows(domain=site)
    others = np.setdiff1d(np.arange(len(manifest)), rows)
    sources = list(manifest.image_sources(rows))
    own = set(content_digests(sources))
    alone = own - set(content_digests(list(manifest.image_sources(others))))
    paths = [source for source in sources if isinstance(source, str)]
    return Erased(
        images=len(own),
        shared=len(own) - len(alone),
        features=erase_features(alone, run),
        pixels=erase_pixels(alone),
        digests=erase_digests(paths),
    )


def files_of(run: Path, site: str, folders: Collection[Path]) -> tuple[list[Path], list[Path]]:
    """The site's files beside the run and in `folders`: its own, and states of other models."""
    own: list[Path] = []
    others: list[Path] = []
    model = stored(run / MODEL).get("digest")
    for folder in dict.fromkeys(path.absolute() for path in (run.parent, *folders)):
        for ending, kind in OF_A_SITE.items():
            path = folder / f"{site}{ending}"
            if Path(site).name != site or not path.is_file() or not is_output(path, kind):
                continue
            try:
                foreign = kind == "domain state" and read_metadata(path).get("model") != model
            except DamagedFile:
                foreign = False
            (others if foreign else own).append(path)
    return own, others


def what_stays(run: Path, site: str) -> tuple[str, ...]:
    """What the run itself has of the site, in sentences, with the command that trains it anew."""
    line, weights = line_of(run)
    learned = any(site in known["train_domains"] for known in line)
    found = "the weights have learned from its images" if learned else ""
    if not found and site in line[0].get("val_domains", ()):
        found = "its images chose the weights"
    if not found and site in line[0].get("test_domains", ()):
        found = "scores and predictions of its images are in the run"
    if weights and not Path(weights).exists():
        found = found or f"the run started from {weights}, and nobody knows what that had learned"
    if not found:
        return ()
    data, out = str(line[0].get("source", "DATA")), f"{run}-without-{site}"
    words = ["acclimate", "train", data, "--from", str(run), "--without", site, "--out", out]
    return (f"{found}; to be rid of that, train anew and delete {run}: {shlex.join(words)}",)
