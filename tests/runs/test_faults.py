"""Disks that are full, fail or take half: one line, and the next start ends as if unharmed."""

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acclimate.adapt.classifier import adapt
from acclimate.build.fetch.images import Entry, Journal
from acclimate.config import RunConfig, as_dict
from acclimate.core.errors import WriteError
from acclimate.core.files import write_document
from acclimate.core.tensors import read_tensors
from acclimate.data.manifest import Manifest
from acclimate.learn.embeddings import DomainState
from acclimate.learn.model import Trained
from acclimate.rehearse.training import train
from acclimate.results.sweep_folder import SweepFolder
from acclimate.sweep.worker import Task, perform
from fixtures.faults import KINDS, failing
from fixtures.interruption import assert_same_weights, stable

Tiny = Callable[..., RunConfig]


def through(work: Callable[[], object], kind: str) -> int:
    """Start it again and again, each time with a fault one write later, until it ends."""
    for at in itertools.count(1):
        with failing(at, kind) as seen:
            try:
                work()
            except WriteError as error:
                said = str(error)
                assert " cannot be written: " in said and "\n" not in said
                assert said.endswith(("repeat the command", "check the path"))
                continue
            assert len(seen) < at
            return at - 1
    raise AssertionError("it never ended")


@pytest.fixture(scope="module")
def whole(features: Manifest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(tiny(), features, run)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training(features: Manifest, tiny: Tiny, whole: Path, tmp_path: Path, kind: str) -> None:
    faults = through(lambda: train(tiny(), features, tmp_path / "run"), kind)
    assert faults >= 5
    assert_same_weights(tmp_path / "run", whole)
    assert stable(tmp_path / "run") == stable(whole)
    assert not list((tmp_path / "run").glob(".*.tmp"))


def content(path: Path) -> tuple[dict[str, list[float]], dict[str, str]]:
    """What a file of tensors holds: the order of its metadata may differ from write to write."""
    tensors, metadata = read_tensors(path)
    return {name: value.tolist() for name, value in tensors.items()}, metadata


@pytest.mark.parametrize("kind", ("no space", "input/output", "no rename"))
def test_a_state_and_a_manifest(features: Manifest, whole: Path, tmp_path: Path, kind: str) -> None:
    state = adapt(Trained.load(whole), features.features()[:9], method="embedding").state
    assert state is not None
    path, data = tmp_path / "state", tmp_path / "a.parquet"
    earlier = DomainState.empty("m", 2)
    earlier.save(path)
    before = content(path)

    def save() -> None:
        try:
            state.save(path)
        except WriteError:
            assert content(path) in (before, after)
            raise

    state.save(tmp_path / "whole")
    after = content(tmp_path / "whole")
    assert through(save, kind) >= 1
    assert content(path) == after
    assert through(lambda: features.write(data), kind) >= 1
    assert Manifest.open(data).digest() == features.digest()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "state", "whole"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("no space", "input/output"))
def test_a_job_of_a_sweep(
    features: Manifest, tiny: Tiny, whole: Path, tmp_path: Path, kind: str
) -> None:
    data = tmp_path / "a.parquet"
    features.write(data)
    config: dict[str, Any] = as_dict(tiny())
    task = Task(
        sweep=str(tmp_path / "sweep"), kind="run", id="job", data=str(data),
        digest=features.digest(), config=config, device="cpu",
    )  # fmt: skip
    (tmp_path / "sweep").mkdir()
    states = []
    for at in itertools.count(2, 5):
        with failing(at, kind):
            states.append(perform(task).state)
        if states[-1] == "done":
            break
    assert set(states[:-1]) == ({"full"} if kind == "no space" else {"failed"})
    assert_same_weights(SweepFolder(Path(task.sweep)).run(task.id).path, whole)


@pytest.mark.parametrize("kind", ("no space", "input/output", "short write"))
def test_a_journal(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "fetch.jsonl"
    entries = [Entry(image=f"{n}.jpg", status="dead", time="t") for n in range(4)]

    def note() -> None:
        known = Journal(path).read()
        for entry in entries:
            if entry.image not in known:
                journal = Journal(path)
                journal.add(entry)
                journal.flush()

    assert through(note, kind) >= 1
    assert Journal(path).read() == {entry.image: entry for entry in entries}


def test_a_document_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, {"n": 1})
    before = path.read_bytes()
    with failing(1, "no space"), pytest.raises(WriteError) as error:
        write_document(path, {"n": 2})
    assert error.value.errno == errno.ENOSPC
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
