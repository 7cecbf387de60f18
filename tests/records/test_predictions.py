"""Rows of predictions on disk: whole, as they were, and never quietly damaged."""

from pathlib import Path

import numpy as np
import pytest

from acclimate.core.errors import DamagedFile, RunError
from acclimate.records.folder import RunFolder, write_checksums
from acclimate.records.predictions import COLUMNS, Predictions
from fixtures.errors import refused


def rows(n: int, method: str = "none") -> Predictions:
    rng = np.random.default_rng(n)
    names = {"domain": "Zürich", "split": "all", "method": method}
    return Predictions(
        ("cat", "dog"),
        row=np.arange(n) * 7,
        **{key: np.full(n, name, dtype=object) for key, name in names.items()},
        **{key: rng.integers(0, 2, n, dtype=np.int32) for key in ("label", "predicted", "rank")},
        **{
            key: rng.random(n, dtype=np.float32)
            for key in ("p_predicted", "p_label", "p_squares", "loss")
        },
    )


def assert_equal(one: Predictions, other: Predictions) -> None:
    assert one.classes == other.classes
    for name in COLUMNS:
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype and np.array_equal(a, b), name


@pytest.mark.parametrize("n", [0, 5])
def test_rows_come_back_as_they_were(n: int, tmp_path: Path) -> None:
    both = Predictions.joined([rows(n), rows(3, "prior")])
    assert len(both) == n + 3
    both.write(tmp_path / "a.parquet")
    found = Predictions.read(tmp_path / "a.parquet")
    assert_equal(found, both)
    assert_equal(found.where(found.method == "prior"), rows(3, "prior"))
    both.write(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_damage_is_noticed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.predictions() is None
    path = tmp_path / "predictions.parquet"
    rows(2000).write(path)
    write_checksums(tmp_path, finished=True)
    whole = path.read_bytes()
    for place in (len(whole) // 3, len(whole) // 2, len(whole) - 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with refused(RunError, path):
            run.predictions()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedFile):
        Predictions.read(path)
