"""Runs on rows of features, in a folder of the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acclimate.config import RunConfig
from acclimate.data.manifest import Manifest
from acclimate.rehearse.training import train
from acclimate.runs.training import train_embedding

ARGUMENTS = {"watch", "say", "embedding", "device"}  # of `train`; all others are settings


@pytest.fixture
def fit(features: Manifest, tiny: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., Path]:
    """`fit("erm", to="a", **{"train.steps": 3})` trains and gives the run's folder."""

    def make(
        algorithm: str = "da-erm", data: Manifest = features, to: str = "run", **settings: Any
    ) -> Path:
        own = {name: settings.pop(name) for name in ARGUMENTS & settings.keys()}
        train(tiny(algorithm, **settings), data, tmp_path / to, **own)
        return tmp_path / to

    return make


@pytest.fixture
def fit_phi(
    features: Manifest, tiny: Callable[..., RunConfig], tmp_path: Path
) -> Callable[..., Path]:
    """`fit_phi(seed=1)` learns Φ alone, and gives its file."""

    def make(
        algorithm: str = "da-erm", data: Manifest = features, to: str = "phi", **settings: Any
    ) -> Path:
        return train_embedding(tiny(algorithm, **settings), data, tmp_path / to)

    return make
