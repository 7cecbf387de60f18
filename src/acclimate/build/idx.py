"""MNIST and what is stored like it, as DomainBed makes domains of it: turned, or coloured.

Training and test files are joined and shuffled, and each image is in one domain.
"""

import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping
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
ANGLES = (0, 15, 30, 45, 60, 75)  # degrees, counter-clockwise
# How often the colour is not the label's: it tells the label in training, and misleads in the last.
MISLEADING = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
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
    "rotated": {str(angle): partial(_turned, angle=angle) for angle in ANGLES},
    "coloured": {name: partial(_coloured, misleading=m) for name, m in MISLEADING.items()},
    "plain": {"plain": partial(_turned, angle=0)},
}


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The uint8 array of a file in the idx format, plain or gzipped, with so many axes."""
    require_regular(path, MOST)
    problem = ManifestError(f"{path} is no idx file of bytes with {axes} axes; get it again")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST)
    except (OSError, EOFError) as error:
        raise problem from error
    shape = np.frombuffer(content[4 : 4 + 4 * axes], dtype=">u4").tolist()
    values = np.frombuffer(content[4 + 4 * axes :], dtype=np.uint8)
    if content[:4] != bytes([0, 0, 8, axes]) or int(np.prod(shape, dtype=object)) != len(values):
        raise problem
    return values.reshape(shape)


def _read_part(root: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of `train` or `t10k`, wherever below `root` they are."""
    arrays = []
    for kind, axes in (("images", 3), ("labels", 1)):
        pattern = f"{part}-{kind}?idx{axes}-ubyte*"
        paths = sorted(root.rglob(pattern))
        if not paths:
            raise ManifestError(f"there is no '{pattern}' in {root}; name the folder of idx files")
        arrays.append(read_idx(paths[0], axes))
    images, labels = arrays
    if len(images) != len(labels):
        raise ManifestError(
            f"{part} in {root} has {len(images)} images and {len(labels)} labels; get it again"
        )
    return images, labels


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
        pairs = [_read_part(root, part) for part in ("train", "t10k")]
        images, labels = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
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
