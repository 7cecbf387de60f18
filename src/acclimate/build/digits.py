"""The embedded benchmark: real handwritten digits seen through many noisy sensors.

scikit-learn's 1,797 digits (8 × 8 pixels, a public UCI set that ships with the library). Each
domain is a sensor with its own gain and offset and its own label frequencies; pixel noise makes a
single image ambiguous, so that knowing the domain helps. Training, validation and unseen domains
have digits of their own; `base_image` says which digit a row shows.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from acclimate.build.base import OUT, Builder, Built, Limited, required
from acclimate.config import setting
from acclimate.core.progress import Watch
from acclimate.core.randomness import stream
from acclimate.data.manifest import Manifest
from acclimate.data.pictures import BASE_IMAGE

LOWEST, HIGHEST = -2.0, 3.0  # the range of intensities that 0..255 stands for
VAL_SHARE = 0.2  # of a training domain's images, and of the digits that they show


@dataclass(frozen=True, kw_only=True)
class DigitsSettings(Limited):
    train_domains: int = setting(150, "Domains to train on.", at_least=2)
    test_domains: int = setting(20, "Unseen domains.", at_least=1)
    train_images: int = 200  # of which `VAL_SHARE` is for validation
    test_images: int = 400  # of which some are left unlabelled to adapt on
    noise: float = setting(0.6, "Pixel noise; digits span 0 to 1.", at_least=0)
    concentration: float = setting(
        0.2, "Dirichlet parameter: less, more label shift.", at_least=0.01
    )
    test_share: float = 1 / 3  # of the digits, kept for unseen domains
    seed: int = setting(0, "Seed of domains, images and splits.")


def build_digits(settings: DigitsSettings | None = None) -> Manifest:
    """Domains `train-SEED-000`… and `test-SEED-000`… with these roles; images are in the table."""
    settings = settings or DigitsSettings()
    images, pools = _pools(settings)
    parts = []
    for role, count, size in (
        ("train", settings.train_domains, settings.train_images),
        ("test", settings.test_domains, settings.test_images),
    ):
        for number in range(count):
            name = f"{role}-{settings.seed}-{number:03d}"
            parts.append(_domain(name, role, images, pools, size, settings))
    pixels, targets, splits, digits, names, *constants = (
        np.concatenate([part[i] for part in parts]) for i in range(8)
    )
    manifest = Manifest.from_arrays(pixels, targets, names, splits=splits)
    table = manifest.table.append_column(BASE_IMAGE, pa.array(digits))
    for column, values in zip(("role", "gain", "offset"), constants, strict=True):
        table = table.append_column(column, pa.array(values))
    return replace(manifest, table=table, source="digits")


def _pools(settings: DigitsSettings) -> tuple[np.ndarray, dict[str, list[np.ndarray]]]:
    """Digits in 0..1, and for training, validation and unseen domains the places of those of each
    class."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pools: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    for label in range(10):
        shuffled = stream(settings.seed, "pool", label).permutation(
            np.flatnonzero(data.target == label)
        )
        cut = round(len(shuffled) * settings.test_share)
        fifth = cut + round((len(shuffled) - cut) * VAL_SHARE)
        pools["test"].append(shuffled[:cut])
        pools["val"].append(shuffled[cut:fifth])
        pools["train"].append(shuffled[fifth:])
    return data.images / 16.0, pools


def _domain(
    name: str,
    role: str,
    images: np.ndarray,
    pools: dict[str, list[np.ndarray]],
    size: int,
    settings: DigitsSettings,
) -> tuple[np.ndarray, ...]:
    """Pixels, labels, splits and digits of a domain's images, and what is true of all of them."""
    splits = np.full(size, role)
    splits[size - round(size * VAL_SHARE) :] = "val" if role == "train" else role
    rng = stream(settings.seed, "domain", name)
    gain, offset = rng.uniform(0.5, 1.5), rng.uniform(-0.5, 0.5)
    frequencies = rng.dirichlet(np.full(10, settings.concentration))
    classes = rng.choice(10, size=size, p=frequencies)
    chosen = np.array([rng.choice(pools[of][c]) for of, c in zip(splits, classes, strict=True)])
    seen = gain * images[chosen] + offset + rng.normal(0, settings.noise, (size, 8, 8))
    scaled = (seen - LOWEST) / (HIGHEST - LOWEST) * 255
    pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    digits = np.array([f"digit {place}" for place in chosen])
    constant = [np.full(size, value) for value in (name, role, gain, offset)]
    return pixels, classes.astype(str), splits, digits, *constant


@dataclass(frozen=True, kw_only=True)
class Digits(Builder):
    example = "acclimate build digits --out digits.parquet"

    out: Path = required(OUT)
    settings: DigitsSettings = field(default_factory=DigitsSettings)

    def build(self, watch: Watch) -> Built:
        manifest = build_digits(self.settings)
        manifest.write(self.out)
        return Built(manifest=manifest, out=self.out)
