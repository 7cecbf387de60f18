"""Small data that every test can train on in a second."""

import os

# Two test processes share two cores; more threads than cores slow everything down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from acclimate.config import RunConfig, from_dict, merged, nested
from acclimate.data.manifest import Manifest
from fixtures.settings import TINY

settings.register_profile("unhurried", deadline=None)  # machines are not equally fast all the time
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def features() -> Manifest:
    """Five domains of 5 features, 3 classes: trains in no time."""
    rng = np.random.default_rng(0)
    domains = np.repeat([f"site-{i}" for i in range(5)], 24)
    y = np.tile(["ant", "bee", "cat"], 40)
    X = rng.normal(size=(120, 5)).astype(np.float32)
    X[:, 0] += np.unique(y, return_inverse=True)[1]
    X[:, 1] += np.unique(domains, return_inverse=True)[1]
    return Manifest.from_arrays(X, y, domains)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """domain/class/image: four sites, two classes, twelve 16-pixel JPEGs each."""
    root = tmp_path_factory.mktemp("tree") / "sites"
    rng = np.random.default_rng(0)
    for site, brightness in {"north": 40, "south": 90, "east": 140, "west": 190}.items():
        for label, channel in {"red": 0, "blue": 2}.items():
            folder = root / site / label
            folder.mkdir(parents=True)
            for number in range(12):
                pixels = rng.normal(brightness, 20, (16, 16, 3))
                pixels[4:12, 4:12, channel] += 80
                image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                image.save(folder / f"{number:02d}.jpg")
    return root


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Frozen features of tests are not those of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCLIMATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny() -> Callable[..., RunConfig]:
    """`tiny("da-erm", **{"train.steps": 3})`: settings that train in a second."""

    def make(algorithm: str = "da-erm", **changes: Any) -> RunConfig:
        values = merged(nested({"algorithm": algorithm, **TINY}), nested(changes))
        return from_dict(RunConfig, values, where="test")

    return make
