"""Corruptions of known severity as domains, in the manner of ImageNet-C, of any images.

Each domain shows the same pictures, in the splits that they have in the data: no domain is scored
on what another one trains on. Widths of blurs are those of an image of 224 pixels.
"""

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from scipy import ndimage

from acclimate.build.base import OUT, Builder, Built, argument, required
from acclimate.build.shift.images import open_image
from acclimate.config import setting
from acclimate.core.errors import ConfigError, require_known
from acclimate.core.progress import Watch
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import BASE_IMAGE, GROUP
from acclimate.data.readers import data_name, encode_image, require_name, write_parts

CLEAN = "clean"  # the domain of images as they are
# Image [h, w, 3] in 0..1, strength -> the same shape, in any range
Damage = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


def _impulse(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(image.shape) < share, rng.integers(0, 2, image.shape), image)


def _smear(image: np.ndarray, thickness: float, length: float, angle: float) -> np.ndarray:
    """Average over a stroke of so many pixels, with smooth edges."""
    reach = int(np.ceil(thickness + length / 2)) + 1
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along = np.clip(x * np.cos(angle) + y * np.sin(angle), -length / 2, length / 2)
    distance = np.hypot(x - along * np.cos(angle), y - along * np.sin(angle))
    stroke = np.clip(thickness + 0.5 - distance, 0, 1)
    return np.asarray(ndimage.convolve(image, stroke[..., None] / stroke.sum(), mode="reflect"))


def _unit(image: np.ndarray) -> float:
    """Pixels that stand for one of an image of 224 pixels; of small images, no blur is too thin."""
    return float(max(min(image.shape[:2]) / 224, 0.5))


def _defocus(image: np.ndarray, radius: float, rng: np.random.Generator) -> np.ndarray:
    return _smear(image, radius * _unit(image), 0, 0)


def _motion(image: np.ndarray, length: float, rng: np.random.Generator) -> np.ndarray:
    return _smear(image, 0.5, length * _unit(image), rng.uniform(-np.pi / 4, np.pi / 4))


def _contrast(image: np.ndarray, part: float, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(part * image + (1 - part) * image.mean((0, 1)))


def _saturate(image: np.ndarray, times: float, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(times * image + (1 - times) * image.mean(2, keepdims=True))


def _pixelate(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    whole = Image.fromarray(_rounded(image))
    small = whole.resize([max(round(share * side), 1) for side in whole.size], Image.Resampling.BOX)
    return np.asarray(small.resize(whole.size, Image.Resampling.NEAREST)) / 255


def _jpeg(image: np.ndarray, quality: float, rng: np.random.Generator) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(_rounded(image)).save(file, "jpeg", quality=int(quality))
    return np.asarray(Image.open(file)) / 255


# Strengths of severities 1 to 5.
CORRUPTIONS: dict[str, tuple[Damage, tuple[float, ...]]] = {
    "gaussian-noise": (lambda x, sd, rng: rng.normal(x, sd), (0.06, 0.1, 0.15, 0.22, 0.32)),
    "shot-noise": (lambda x, photons, rng: rng.poisson(x * photons) / photons, (80, 40, 20, 10, 5)),
    "impulse-noise": (_impulse, (0.02, 0.05, 0.1, 0.17, 0.27)),
    "defocus-blur": (_defocus, (2, 3, 4.5, 6.5, 9)),
    "motion-blur": (_motion, (6, 10, 15, 21, 28)),
    "brightness": (lambda x, more, rng: x + more, (0.08, 0.16, 0.25, 0.35, 0.46)),
    "contrast": (_contrast, (0.6, 0.45, 0.32, 0.2, 0.1)),
    "saturate": (_saturate, (1.5, 2.2, 3.2, 5, 8)),
    "pixelate": (_pixelate, (0.55, 0.42, 0.32, 0.24, 0.17)),
    "jpeg": (_jpeg, (24, 17, 12, 8, 5)),
}


def _rounded(image: np.ndarray) -> np.ndarray:
    return np.asarray(np.rint(np.clip(image, 0, 1) * 255), dtype=np.uint8)


def corrupted(image: np.ndarray, kind: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """uint8 [h, w, 3] -> the same shape; severity 1 to 5."""
    damage, strengths = CORRUPTIONS[kind]
    return _rounded(damage(image / 255, strengths[severity - 1], rng))


@dataclass(frozen=True, kw_only=True)
class Corrupt(Builder):
    """Domains are called `jpeg-3`, and `clean`."""

    example = "acclimate build corrupt photos.parquet --kinds jpeg,contrast --out corrupt.parquet"

    data: Path = argument("A manifest, a table, or a folder: domain/class/image, or class/image.")
    out: Path = required(OUT)
    kinds: str = setting(",".join(CORRUPTIONS), "Kinds of corruption, with commas between them.")
    severities: str = setting("1,3,5", "Severities from 1 to 5, with commas between them.")
    seed: int = setting(0, "Seed of noise and of the directions of motion.")

    def build(self, watch: Watch) -> Built:
        require_name(self.out)
        named = dict.fromkeys(product(self.kinds.split(","), self.severities.split(",")))
        for kind, severity in named:
            require_known(kind, CORRUPTIONS, f"there is no corruption '{kind}'")
            if severity not in ("1", "2", "3", "4", "5"):
                raise ConfigError(f"--severities has '{severity}'; give numbers from 1 to 5")
        domains, data = [(CLEAN, "0"), *named], self.data.expanduser()
        # A folder of classes is one domain, of which a part is kept for validation.
        folder = partial(Manifest.from_folder, only_domain=data_name(data))
        base = folder(data) if data.is_dir() else Manifest.open(data)
        base.check()

        def tables() -> Iterator[pa.Table]:
            for done, (kind, severity) in enumerate(domains, start=1):
                yield self._table(base, kind, int(severity), workers)
                watch("images of domains", done, len(domains), "")

        with ThreadPoolExecutor(os.cpu_count()) as workers:
            write_parts(self.out, tables(), classes=base.classes, root=base.root)
        return Built(manifest=Manifest.read(self.out), out=self.out)

    def _table(self, base: Manifest, kind: str, severity: int, workers: Executor) -> pa.Table:
        """The rows of a domain: those of the base, with other images."""
        domain = f"{kind}-{severity}" if severity else CLEAN

        def image(row: int) -> bytes:
            pixels = np.asarray(open_image(base, row))
            if severity:
                pixels = corrupted(pixels, kind, severity, stream(self.seed, domain, row))
            return encode_image(pixels)

        rows, names = range(len(base)), base.table.column_names
        columns = {name: base.table[name] for name in ("label", "split", GROUP) if name in names}
        own = pa.array([base.image_name(row) for row in rows], pa.string())
        columns |= {
            "bytes": pa.array(list(workers.map(image, rows)), pa.large_binary()),
            BASE_IMAGE: base.table[BASE_IMAGE] if BASE_IMAGE in names else own,
            "base_domain": base.table["domain"],
        }
        constants = {"domain": domain, "corruption": kind, "severity": severity}
        constant = {name: pa.repeat(value, len(base)) for name, value in constants.items()}
        return pa.table(columns | constant)
