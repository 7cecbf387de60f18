"""MNIST and what is stored like it, as DomainBed makes domains of it: turned, or coloured.

Training and test files are joined and shuffled, and each image is in one domain.
"""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from acclimate.build.base import OUT, Builder, Built, SplitSettings, argument, required
from acclimate.core.errors import ManifestError, require_known
from acclimate.core.files import require_regular
from acclimate.core.progress import Watch
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import BASE_IMAGE
from acclimate.data.readers import data_name, encode_image

MOST = 1 << 30  # bytes of a file, unpacked
MISLEADING = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}  # how often the colour is not the label's
LABEL_NOISE = 0.25


# Images [n, h, w] and labels [n] of a domain -> pixels [h, w] or [h, w, 3], labels, other columns
Made = tuple[Iterable[np.ndarray], np.ndarray, Mapping[str, np.ndarray]]
Make = Callable[[np.ndarray, np.ndarray, np.random.Generator], Made]


def _turned(
    images: np.ndarray, labels: np.ndarray, rng: np.random.Generator, *, angle: int
) -> Made:
    pictures = (Image.fromarray(image).rotate(angle, Image.Resampling.BILINEAR) for image in images)
    return map(np.asarray, pictures), labels.astype(str), {}


def _coloured(
    images: np.ndarray, labels: np.ndarray, rng: np.random.Generator, *, misleading: float
) -> Made:
    small = (labels < 5) ^ (rng.random(len(labels)) < LABEL_NOISE)
    green = small ^ (rng.random(len(labels)) < misleading)
    pixels = np.zeros((*images.shape, 3), dtype=np.uint8)
    pixels[np.arange(len(images)), :, :, green.astype(int)] = images
    return pixels, np.where(small, "0 to 4", "5 to 9"), {"digit": labels, "green": green}


KINDS: dict[str, dict[str, Make]] = {  # the domains of each
    "rotated": {str(angle): partial(_turned, angle=angle) for angle in range(0, 90, 15)},
    "coloured": {name: partial(_coloured, misleading=m) for name, m in MISLEADING.items()},
    "plain": {"plain": partial(_turned, angle=0)},
}


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The uint8 array of a file in the idx format, plain or gzipped, with so many axes."""
    require_regular(path, MOST)
    with (
        suppress(OSError, EOFError, ValueError, zlib.error),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
    ):
        content = file.read(MOST)
        shape = np.frombuffer(content, ">u4", axes, 4).tolist()
        if content.startswith(bytes([0, 0, 8, axes])):
            return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    raise ManifestError(f"{path} is no idx file of bytes with {axes} axes; get it again")


def _read(root: Path, part: str, kind: str, axes: int) -> np.ndarray:
    """The images or labels of `train` or `t10k`, wherever below `root` they are."""
    pattern = f"{part}-{kind}?idx{axes}-ubyte*"
    paths = sorted(root.rglob(pattern))
    if not paths:
        raise ManifestError(f"there is no '{pattern}' in {root}; name the folder of idx files")
    return read_idx(paths[0], axes)


@dataclass(frozen=True, kw_only=True)
class Idx(Builder):
    example = "acclimate build idx data/MNIST --kind coloured --out coloured-mnist.parquet"

    root: Path = argument("The folder with train-images-idx3-ubyte and its like, .gz or not.")
    kind: str = required("rotated, coloured, or plain: as they are, one domain.")
    out: Path = required(OUT)
    splits: SplitSettings = field(default_factory=SplitSettings)

    def build(self, watch: Watch) -> Built:
        require_known(self.kind, KINDS, f"there is no kind '{self.kind}'")
        root, seed, domains = self.root.expanduser(), self.splits.seed, KINDS[self.kind]
        images, labels = (
            np.concatenate([_read(root, part, kind, axes) for part in ("train", "t10k")])
            for kind, axes in (("images", 3), ("labels", 1))
        )
        if len(images) != len(labels):
            both = f"{len(images)} images and {len(labels)} labels"
            raise ManifestError(f"the files in {root} have {both}; get them again")
        order = stream(seed, "order").permutation(len(images))
        tables: list[pa.Table] = []
        for place, (domain, make) in enumerate(domains.items()):
            rows = order[place :: len(domains)]
            pixels, names, free = make(images[rows], labels[rows], stream(seed, "domain", domain))
            columns = {
                "bytes": pa.array([encode_image(one) for one in pixels], pa.large_binary()),
                "label": pa.array(names.tolist()),
                "domain": pa.repeat(domain, len(rows)),
                # By its content: it is known in other data made from the same files.
                BASE_IMAGE: [hashlib.sha256(images[row].tobytes()).hexdigest() for row in rows],
            }
            tables.append(pa.table({**columns, **free}))
            watch("images of domains", place + 1, len(domains), "")
        table, source = pa.concat_tables(tables), data_name(root)
        manifest = Manifest.from_rows(table, root, source, **asdict(self.splits))
        manifest.check()
        manifest.write(self.out)
        return Built(manifest=manifest, out=self.out)
