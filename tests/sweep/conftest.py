"""Data that lie in a file, as sweeps want them."""

from pathlib import Path

import pytest

from acclimate.data.manifest import Manifest


@pytest.fixture
def data(features: Manifest, tmp_path: Path) -> Path:
    path = tmp_path / "features.parquet"
    features.write(path)
    return path
