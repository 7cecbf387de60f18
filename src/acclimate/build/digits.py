"""The embedded benchmark: real handwritten digits seen through many noisy sensors.

scikit-learn's 1,797 digits (8 × 8 pixels, a public UCI set that ships with the library). Each
domain is a sensor with its own gain and offset and its own label frequencies; pixel noise makes a
single image ambiguous, so that knowing the domain helps. Unseen domains are made from digits that
no training domain holds.
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

LOWEST, HIGHEST = -2.0, 3.0  # the range of intensities that 0..255 stands for


@dataclass(frozen=True, kw_only=True)
class DigitsSettings(Limited):
    train_domains: int = setting(150, "Domains to train on.", at_least=2)
    test_domains: int = setting(20, "Unseen domains.", at_least=1)
    train_images: int = 200  # of which a fifth is for validation
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
            parts.append(_domain(name, role, images, pools[role], size, settings))
    pixels, targets, names, roles, gains, offsets = (
        np.concatenate([part[i] for part in parts]) for i in range(6)
    )
    manifest = Manifest.from_arrays(pixels, targets, names, seed=settings.seed)
    table = manifest.table
    for column, values in (("role", roles), ("gain", gains), ("offset", offsets)):
        table = table.append_column(column, pa.array(values))
    return replace(manifest, table=table, source="digits")


def _pools(settings: DigitsSettings) -> tuple[np.ndarray, dict[str, list[np.ndarray]]]:
    """Digits in 0..1, and for each role the places of those of each class that it may use."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pools: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for label in range(10):
        shuffled = stream(settings.seed, "pool", label).permutation(
            np.flatnonzero(data.target == label)
        )
        cut = round(len(shuffled) * settings.test_share)
        pools["test"].append(shuffled[:cut])
        pools["train"].append(shuffled[cut:])
    return data.images / 16.0, pools


def _domain(
    name: str,
    role: str,
    images: np.ndarray,
    pool: list[np.ndarray],
    size: int,
    settings: DigitsSettings,
) -> tuple[np.ndarray, ...]:
    rng = stream(settings.seed, "domain", name)
    gain, offset = rng.uniform(0.5, 1.5), rng.uniform(-0.5, 0.5)
    frequencies = rng.dirichlet(np.full(10, settings.concentration))
    classes = rng.choice(10, size=size, p=frequencies)
    chosen = np.array([rng.choice(pool[label]) for label in classes])
    seen = gain * images[chosen] + offset + rng.normal(0, settings.noise, (size, 8, 8))
    scaled = (seen - LOWEST) / (HIGHEST - LOWEST) * 255
    pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    constant = [np.full(size, value) for value in (name, role, gain, offset)]
    return pixels, classes.astype(str), *constant


@dataclass(frozen=True, kw_only=True)
class Digits(Builder):
    example = "acclimate build digits --out digits.parquet"

    out: Path = required(OUT)
    settings: DigitsSettings = field(default_factory=DigitsSettings)

    def build(self, watch: Watch) -> Built:
        manifest = build_digits(self.settings)
        manifest.write(self.out)
        return Built(manifest=manifest, out=self.out)
