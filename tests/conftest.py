"""Small data that every test can train on in a second."""

import os

# Two test processes share two cores; more threads than cores slow everything down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from acclimate.config import RunConfig, from_dict, merged, nested
from acclimate.data.manifest import Manifest
from fixtures.pictures import write_sites
from fixtures.settings import TINY
from fixtures.sites import five_sites

settings.register_profile("unhurried", deadline=None)  # machines are not equally fast all the time
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def features() -> Manifest:
    """Trains in no time."""
    return five_sites()


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """domain/class/image: four sites, two classes, twelve 16-pixel JPEGs each."""
    return write_sites(tmp_path_factory.mktemp("tree") / "sites", 12, ".jpg")


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
