"""The seam: what a tracker is told, once, whatever happens to the run or to the tracker."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acclimate.config import RunConfig
from acclimate.core.errors import ConfigError, RunError, TrackError, UnknownName
from acclimate.data.manifest import Manifest
from acclimate.records.folder import RunFolder
from acclimate.records.records import key_of, values_by_use
from acclimate.rehearse.training import train
from acclimate.track import TRACKERS, replay, tracked
from acclimate.track.mlflow import name_of
from fixtures.command_line import command
from fixtures.errors import refused
from fixtures.interruption import Killed, assert_same_weights, count_writes
from fixtures.settings import TINY, as_flags
from fixtures.trackers import Seen

Tiny = Callable[..., RunConfig]
Fit = Callable[..., None]


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Seen]]:
    monkeypatch.setitem(TRACKERS, "seen", "fixtures.trackers:Seen")
    yield Seen
    Seen.clear()


@pytest.fixture
def fit(features: Manifest, tiny: Tiny) -> Fit:
    """Trains with trackers."""

    def make(out: Path, *names: str, say: Any = print, config: RunConfig | None = None) -> None:
        config = config or tiny("erm", test_domains=["site-4"])
        with tracked(out, names, say) as listen:
            train(config, features, out, listen=listen)

    return make


def told_of(run: Path) -> list[Any]:
    (entries,) = Seen.runs.values()
    assert [entry.number for entry in entries] == list(range(len(entries)))
    assert [key_of(entry.record) for entry in entries] == list(
        map(key_of, RunFolder(run).records().all)
    )
    return entries


def test_numbers_have_names(fit: Fit, tmp_path: Path) -> None:
    fit(tmp_path / "run", "seen", "seen")
    entries = told_of(tmp_path / "run")
    kinds = [entry.record.kind for entry in entries]
    assert kinds[0] == "started" and kinds[-1] == "finished" and {"loss", "score"} <= {*kinds}
    values = {name: value for entry in entries for name, value in entry.values.items()}
    records = RunFolder(tmp_path / "run").records()
    assert values["main/risk"] == records.losses[-1].risk
    last = {(score.moment, score.domain, score.method): score for score in records.scores}
    assert values["final/site-4/all/top-1"] == last["final", "site-4", "none"].top1
    assert values["validation/site-0/val/nll"] == last["validation", "site-0", "none"].loss
    ceiling = last["final", "site-4", "oracle-prior"]
    assert values["final/site-4/all/oracle-prior/top-1"] == ceiling.top1
    tops = [last["final", f"site-{site}", "none"].top1 or 0 for site in range(4)]
    assert values["mean/train/val/none/top-1"] == pytest.approx(sum(tops) / 4)
    assert "main/penalty" not in values  # there was none
    assert {entry.step for entry in entries if entry.record.kind == "loss"} == {2, 4, 6}


def test_facts_of_a_run(fit: Fit, tmp_path: Path, tiny: Tiny) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        fit(tmp_path / name, "seen", config=tiny("erm", seed=seed))
    assert [run.name for run in Seen.facts] == ["a", "b", "c"]
    assert len({run.id for run in Seen.facts}) == 3
    one = Seen.facts[-1]
    assert one.settings["train.steps"] == 6 and one.settings["seed"] == 1
    assert one.facts["train_domains"] == "site-0, site-1, site-2, site-3, site-4"
    assert Seen.ends == [True] * 3


def test_tracking_is_no_part_of_a_run(fit: Fit, tmp_path: Path) -> None:
    fit(tmp_path / "tracked", "seen")
    fit(tmp_path / "plain")
    assert_same_weights(tmp_path / "tracked", tmp_path / "plain")
    names = [{path.name for path in (tmp_path / run).iterdir()} for run in ("tracked", "plain")]
    assert names[0] == names[1]
    identities = [RunFolder(tmp_path / run).identity() for run in ("tracked", "plain")]
    assert identities[0] == identities[1]


@pytest.mark.slow
def test_killed_at_any_write_each_record_is_told_once(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        writes = count_writes(patch)
        fit(tmp_path / "undisturbed")
    for fatal in range(1, len(writes) + 1):
        Seen.clear()
        run = tmp_path / f"killed-{fatal}"
        with monkeypatch.context() as patch:
            count_writes(patch, die_at=fatal)
            with pytest.raises(Killed):
                fit(run, "seen")
        first = dict(Seen.runs)
        fit(run, "seen")
        if len(Seen.runs) > 1:  # no checkpoint: the run was begun anew
            (began,) = first
            del Seen.runs[began]
        told_of(run)


def test_a_tracker_that_fails_does_not_end_the_run(fit: Fit, tmp_path: Path) -> None:
    said: list[str] = []
    Seen.fails_at = 3
    fit(tmp_path / "run", "seen", say=said.append)
    assert len(said) == 1 and "seen failed (no route to host)" in said[0]
    assert RunFolder(tmp_path / "run").finished is not None
    with refused(TrackError, "no route", f"acclimate track {tmp_path / 'run'} --to seen"):
        replay(tmp_path / "run", "seen")
    Seen.fails_at = -1
    (entries,) = Seen.runs.values()
    before = len(entries)
    assert before == 3
    assert replay(tmp_path / "run", "seen") == len(told_of(tmp_path / "run")) - before
    assert replay(tmp_path / "run", "seen") == 0
    fit(tmp_path / "run", "seen")  # a finished run
    told_of(tmp_path / "run")


def test_a_wrong_name_or_a_missing_library_is_refused_before_training(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused(UnknownName, "'sene'", "'seen'"):
        fit(tmp_path / "run", "seen", "sene")
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    with refused(ConfigError, "tensorboard", 'pip install "acclimate[tensorboard]"'):
        fit(tmp_path / "run", "tensorboard")
    assert not (tmp_path / "run").exists()


def test_commands(features: Manifest, tmp_path: Path) -> None:
    """What a tool prints is no result."""
    data, sweep = tmp_path / "sites.parquet", tmp_path / "sweep"
    features.write(data)
    flags = ["--algorithm", "erm", *as_flags(TINY), "--json"]
    done = command("train", data, *flags, "--out", sweep / "a" / "one", "--track", "seen")
    assert json.loads(done)["run"].endswith("one")
    command("train", data, *flags, "--out", sweep / "two")
    (sweep / "three").mkdir()
    said = json.loads(command("track", sweep, "--to", "seen", "--json"))
    records = len(RunFolder(sweep / "two").records().all)
    assert (said["runs"], said["new_records"]) == (2, records)
    labels = {(run.name, run.group) for run in Seen.facts}
    assert labels == {("one", None), ("a/one", "sweep"), ("two", "sweep")}
    with refused(RunError, sweep / "three"):
        command("track", sweep / "three", "--to", "seen")
    with refused(ConfigError, "--model", "mlflow", "seen"):
        command("track", sweep, "--to", "seen", "--model")
    with refused(ConfigError, "--site", "--model"):
        command("track", sweep, "--to", "mlflow", "--site", "north.safetensors")


def test_names_for_mlflow() -> None:
    assert name_of("final/café 1.b/top-1") == "final/café 1.b/top-1"
    assert name_of("a(b") == "a_28_b" != name_of("a)b")


def test_means_never_mix_two_uses(fit: Fit, tmp_path: Path) -> None:
    fit(tmp_path / "run")
    finals = [s for s in RunFolder(tmp_path / "run").records().scores if s.moment == "final"]
    means = values_by_use(finals, "top-1")
    assert len(means["train", "val", "none"]) == 4 and len(means["test", "all", "none"]) == 1
    assert values_by_use(finals, "auroc") == {}  # three classes
