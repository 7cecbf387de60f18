"""A run's files are its own: another run's, a shortened one, a pipe or a huge one is refused."""

import os
import shutil
from pathlib import Path

import pytest

from acclimate.core.errors import AcclimateError, RecordError, RunError
from acclimate.core.files import read_bytes, write_document
from acclimate.records.folder import RunFolder, write_checksums
from acclimate.rehearse.training import train
from acclimate.results.runs import find_runs
from fixtures.errors import refused
from fixtures.run_folders import make_run, score
from fixtures.sites import five_sites
from fuzz.families import _train_until_killed, settings


@pytest.fixture
def unfinished(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs that go on."""
    made = [
        make_run(tmp_path / name, "erm", seed, [], finished=False) for seed, name in enumerate("ab")
    ]
    return made[0], made[1]


def test_records_of_another_run_are_refused(unfinished: tuple[Path, Path]) -> None:
    one, other = unfinished
    assert len(RunFolder(one).records().all) == 4
    for names in (["records.jsonl"], ["records.jsonl", "records.end"]):
        for name in names:
            shutil.copy(other / name, one / name)
        with refused(RecordError, one / "records.jsonl"):
            RunFolder(one).records()
        (view, _) = find_runs(one.parent)
        assert view.problem is not None and view.records.all == ()


def test_lines_that_are_gone_or_changed_are_missed(unfinished: tuple[Path, Path]) -> None:
    run, _ = unfinished
    path = run / "records.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for number in range(len(lines)):
        path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        with refused(RecordError, path):
            RunFolder(run).records()
        path.write_bytes(whole.replace(b'"risk": 0.1', b'"risk": 0.2'))
        with refused(RecordError, path, "line 2"):
            RunFolder(run).records()
    path.unlink()
    with refused(RecordError, path):
        RunFolder(run).records()
    path.write_bytes(whole)
    assert len(RunFolder(run).records().all) == len(lines)


def test_a_crash_between_a_line_and_its_mark_loses_nothing(unfinished: tuple[Path, Path]) -> None:
    run, _ = unfinished
    before = (run / "records.end").read_bytes()
    RunFolder(run).append(score("a", 0.5))
    (run / "records.end").write_bytes(before)
    assert len(RunFolder(run).records().all) == 5
    RunFolder(run).append(score("b", 0.5))
    assert len(RunFolder(run).records().all) == 6
    fresh = run.parent / "fresh"
    fresh.mkdir()
    write_document(fresh / "run.json", {})
    RunFolder(fresh).append(score("a", 0.5))
    (fresh / "records.end").unlink()
    assert len(RunFolder(fresh).records().all) == 1


@pytest.mark.parametrize(
    "name", ["consistency.json", "rehearsal.json", "domains.safetensors", "predictions.parquet"]
)
def test_files_of_another_run_are_refused(tmp_path: Path, name: str) -> None:
    runs = [make_run(tmp_path / one, "da-erm", 0, [score("a", 0.5)]) for one in "ab"]
    for number, run in enumerate(runs):
        write_document(run / name, {"run": number})
        write_checksums(run, finished=True)
        assert RunFolder(run).listed(name) == run / name
    shutil.copy(runs[1] / name, runs[0] / name)
    with refused(RunError, runs[0] / name, "damaged"):
        RunFolder(runs[0]).listed(name)
    (runs[0] / name).unlink()
    with refused(RunError, runs[0] / name, "missing"):
        RunFolder(runs[0]).records()
    assert find_runs(tmp_path)[0].problem is not None


def test_what_no_checksum_lists_is_not_the_run_s(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "da-erm", 0, [score("a", 0.5)])
    write_checksums(run, finished=True)
    for name in ("consistency.json", "rehearsal.json", "domains.safetensors"):
        write_document(run / name, {})
        assert RunFolder(run).listed(name) is None
    assert RunFolder(run).rehearsal() is None and RunFolder(run).consistency() is None


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge"])
def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path, kind: str) -> None:
    names = ("run.json", "records.jsonl", "records.end", "checksums.json", "quarantine.jsonl")
    for name in names:
        run = make_run(tmp_path / name, "erm", 0, [score("a", 0.5)])
        write_checksums(run, finished=True)
        path = run / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        else:
            with path.open("wb") as file:
                file.truncate(1 << 40)
        with pytest.raises(AcclimateError, match=name):
            run_folder = RunFolder(run)
            run_folder.identity(), run_folder.records(), run_folder.quarantined()
        (view,) = find_runs(run)
        assert view.problem is not None
        shutil.rmtree(run)


def test_a_settings_file_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")
    with refused(AcclimateError, "a.toml", "pipe"):
        read_bytes(tmp_path / "a.toml")


@pytest.mark.parametrize("name", ["checkpoint-*", "embedding.safetensors", "consistency.json"])
def test_a_run_goes_on_from_its_own_files_alone(tmp_path: Path, name: str) -> None:
    """Two runs that were killed, and what one keeps to go on is put where the other's was."""
    data = five_sites()
    for place in ("a", "b"):
        _train_until_killed(data, tmp_path / place, seed=int(place == "b"))
    swapped = 0
    for mine in (tmp_path / "a").glob(name):
        for theirs in (tmp_path / "b").glob(name):
            swapped += mine.name == theirs.name
            shutil.copy(theirs, mine)
    if not swapped:
        pytest.skip("none is there when they are killed")
    with refused(RunError, tmp_path / "a"):
        train(settings(seed=0), data, tmp_path / "a", device="cpu")
