"""Spawrious: four breeds of dogs, on backgrounds that tell them apart in training and mislead in
the test.

Of a folder's images the first so many by name are taken; the authors take them as the file system
lists them.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path

import pyarrow as pa

from acclimate.build.base import (
    OUT,
    Builder,
    Built,
    SplitSettings,
    argument,
    differences,
    required,
    written,
)
from acclimate.core.errors import ManifestError, require_known
from acclimate.core.progress import Watch
from acclimate.data.manifest import Manifest
from acclimate.data.readers import find_images

LICENCE = "https://creativecommons.org/licenses/by/4.0/"
SOURCE = "https://github.com/aengusl/spawrious"
BREEDS = ("bulldog", "dachshund", "labrador", "corgi")
IMAGES = 3168  # in each folder
COMMON = (0.97, 0.87)  # share of images on the breed's own background, one-to-one
# Backgrounds of the breeds in training and in the test. One to one, each breed has one, and a
# third list names what all breeds share; many to many, two breeds share two backgrounds.
CHALLENGES = {
    "o2o-easy": ("desert jungle dirt snow", "dirt snow desert jungle", "beach"),
    "o2o-medium": ("mountain beach dirt jungle", "jungle dirt beach snow", "desert"),
    "o2o-hard": ("jungle mountain snow desert", "mountain snow desert jungle", "beach"),
    "m2m-easy": ("desert mountain dirt jungle", "dirt jungle mountain desert"),
    "m2m-medium": ("beach snow mountain desert", "desert mountain beach snow"),
    "m2m-hard": ("dirt jungle snow beach", "snow beach dirt jungle"),
}


def parts_of(challenge: str) -> Iterator[tuple[str, str, int]]:
    """(domain, folder, how many of its images) of all that a challenge is made of."""
    training, test, *shared = (names.split() for names in CHALLENGES[challenge])
    for group, (place, breed) in product((0, 1), enumerate(BREEDS)):
        domain, own, folder, images = f"train-{group + 1}", place, group, IMAGES
        if shared:
            images = int(COMMON[group] * IMAGES)
            yield domain, f"{group}/{shared[0][0]}/{breed}", IMAGES - images
        else:  # the second group has the backgrounds of each pair of breeds swapped
            own, folder = place ^ group, 0
        yield domain, f"{folder}/{training[own]}/{breed}", images
        yield "test", f"{folder}/{test[own]}/{breed}", IMAGES


@dataclass(frozen=True, kw_only=True)
class Spawrious(Builder):
    example = "acclimate build spawrious data/spawrious224 --challenge o2o-hard --out hard.parquet"

    root: Path = argument("The folder with 0 and 1, each background/breed/image, or the one above.")
    challenge: str = required(f"{', '.join(CHALLENGES)}.")
    out: Path = required(OUT)
    splits: SplitSettings = field(default_factory=SplitSettings)

    def build(self, watch: Watch) -> Built:
        require_known(self.challenge, CHALLENGES, f"Spawrious has no '{self.challenge}'")
        root = self.root.expanduser()
        root = max(root.glob("spawrious224"), default=root)
        rows: list[dict[str, str]] = []
        found: list[str] = []
        for domain, folder, wanted in parts_of(self.challenge):
            if not (root / folder).is_dir():
                raise ManifestError(
                    f"there is no folder '{folder}' in {root}; name the one that holds 0 and 1"
                )
            paths = find_images([root / folder])
            found += differences(f"folder '{folder}'", len(paths), IMAGES)
            facts = {"domain": domain, "role": domain.split("-")[0]}
            _, facts["background"], facts["label"] = folder.split("/")
            names = (path.relative_to(root).as_posix() for path in paths[:wanted])
            rows += [{"image": name, **facts} for name in names]
        table, source = pa.Table.from_pylist(rows), f"{root.name}/"
        manifest = Manifest.from_rows(table, root, source, **asdict(self.splits))
        manifest.check()
        built = Built(manifest=manifest, out=self.out, summary=[f"Spawrious {self.challenge}"])
        # Once for a folder that serves two domains.
        return written(built, LICENCE, SOURCE, list(dict.fromkeys(found)))
