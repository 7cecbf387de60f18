"""Artefacts of a run with other bytes than were written: refused in one line, never used."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from acclimate.config import RunConfig
from acclimate.core.errors import AcclimateError, ManifestError, RunError
from acclimate.core.files import read_document, write_document
from acclimate.data.manifest import Manifest
from acclimate.learn.model import Trained
from acclimate.records.folder import RunFolder, write_checksums
from acclimate.rehearse.training import train
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, count_writes

Tiny = Callable[..., RunConfig]
AGAIN = "restore it, or train again in another folder"


@pytest.fixture(scope="module")
def made(features: Manifest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("made") / "run"
    train(tiny(), features, run)
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(copytree(made, tmp_path / "run"))


def flips(path: Path, number: int, seed: int = 0) -> Iterator[int]:
    """The file with one other bit, `number` times, at places of a seed; then whole again."""
    whole = path.read_bytes()
    rng = np.random.default_rng(seed)
    for place, bit in rng.integers((len(whole), 8), size=(number, 2)).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        yield place
    path.write_bytes(whole)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "run.json", "checksums.json"])
def test_a_flipped_bit_of_a_model_is_noticed(run: Path, name: str) -> None:
    path, refused = run / name, 0
    before = (Trained.load(run).classes, Trained.load(run).digest())
    for _ in flips(path, 60):
        try:
            found = Trained.load(run)
        except AcclimateError:
            refused += 1
            continue
        # Only spaces between names, or the number of a format that JSON writes otherwise.
        assert (found.classes, found.digest()) == before
    assert refused > 55
    Trained.load(run)


def rewritten(path: Path, **changes: Any) -> None:
    """A document with other values, and with checksums that agree with them."""
    write_document(path, {**read_document(path), **changes})
    write_checksums(path.parent, finished=True)


def test_weights_of_another_run_are_noticed(
    run: Path, features: Manifest, tiny: Tiny, tmp_path: Path
) -> None:
    train(tiny(seed=1), features, tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(run / "model.safetensors")
    with refused(RunError, run / "model.safetensors", "damaged"):
        Trained.load(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": "abc"},
        {"classes": None},
        {"config": []},
        {"config": {"model": 3}},
        {"label_prior": [0.5, 0.5]},
        {"label_prior": [float("nan"), 0.5, 0.5]},
        {"size": 10**9},
        {"size": 7},
        {"digest": None},
        {"train_domains": ["site-0"] * 5},
        {"val_domains": [1]},
        {"rehearsal": 1},
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense(run: Path, changes: dict[str, Any]) -> None:
    rewritten(run / "model.json", **changes)
    with pytest.raises(AcclimateError) as error:
        Trained.load(run)
    assert str(run) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["model.width", "model.hidden", "embedding.dim"])
def test_huge_sizes_are_refused_before_they_are_allocated(run: Path, key: str) -> None:
    description = read_document(run / "model.json")
    for size in (10**6, 10**12):
        group, _, name = key.rpartition(".")
        description["config"][group][name] = size
        rewritten(run / "model.json", **description)
        with pytest.raises(AcclimateError):
            Trained.load(run)


def test_a_rehearsal_that_was_deleted_is_missed(
    run: Path,
) -> None:
    rewritten(run / "model.json", rehearsal=True)
    with refused(RunError, run / "rehearsal.json", "missing"):
        Trained.load(run)


def test_a_flipped_bit_of_a_checkpoint_is_noticed(
    features: Manifest, tiny: Tiny, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        writes = count_writes(patch, die_at=20)
        train(tiny(), features, run)
    assert any("checkpoint-main" in path.name for path in writes)
    (checkpoint,) = run.glob("checkpoint-main*")
    for _ in flips(checkpoint, 12):
        with refused(RunError, checkpoint, "damaged"):
            train(tiny(), features, run)
    checkpoint.unlink()
    train(tiny(), features, run)
    assert_same_weights(run, made)


def test_another_digit_in_a_record_is_noticed(run: Path) -> None:
    path = run / "records.jsonl"
    lines = path.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if '"kind": "score"' in line)
    values = json.loads(lines[number])
    lines[number] = lines[number].replace(f'"n": {values["n"]}', f'"n": {values["n"] + 1}')
    path.write_text("\n".join(lines) + "\n")
    for look in (RunFolder(run).records, lambda: Trained.load(run)):
        with refused(RunError, path, "damaged"):
            look()


def test_a_flipped_bit_of_a_manifest_is_noticed(features: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "features.parquet"
    features.write(path)
    before = Manifest.read(path).digest()
    refused = 0
    for _ in flips(path, 150):
        try:
            found = Manifest.open(path)
        except AcclimateError:
            refused += 1
            continue
        assert found.digest() == before and found.classes == features.classes
    assert refused > 100


def test_a_manifest_with_another_s_checksum_is_damaged(features: Manifest, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "features.parquet"
    features.write(path)
    table = pq.ParquetFile(path).read()
    assert Manifest.open(path).digest() == features.digest()
    pq.write_table(table.slice(1), path)
    with refused(ManifestError, path, "damaged"):
        Manifest.open(path)
